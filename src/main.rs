//! The `dressage` command.
fn main() {}
