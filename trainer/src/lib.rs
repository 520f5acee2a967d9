//! The libtorch trainer: batches in, better weights out. Nothing here yet but the room.
//!
//! Takes a stream of record batches (a plan's samples), gives metrics and checkpoints, and refuses to query, filter or
//! reorder data: that is the segmenter's work.
//!
//! ```text
//!  samples (RecordBatch stream) ─▶ tensors ─▶ model · loss ─▶ optimiser ─▶ checkpoints, train_metrics
//! ```
