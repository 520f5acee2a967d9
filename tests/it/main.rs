//! The command as a user types it, over real stores: one binary, one module a subject.

mod cli;
