//! The libtorch trainer: rows to tensors, losses and checkpoints.
