//! The rig proves itself on a real server before anything is proved with it.

mod proxy;
mod server;
