//! Ranks as they are: processes of this program, on loopback. Each test starts some, and looks at what they say.

#![allow(clippy::unwrap_used)]

mod exchange;
mod failures;
mod meeting;
mod processes;
mod pytorch;
mod training;
