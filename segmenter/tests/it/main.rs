//! The SQL session as its users see it: one binary for all integration tests.

mod files;
mod fixture;
mod limits;
mod pushdown;
mod session;
mod slt;
mod stored;
