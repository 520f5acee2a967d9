//! The codecs of the payload columns.
