//! Code that several commands share.

pub mod client;
pub mod clock;
pub mod output;
pub mod signals;
pub mod size;
pub mod user;
