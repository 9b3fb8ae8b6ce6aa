//! Code that several commands share.

pub mod client;
pub mod decision;
pub mod output;
pub mod programs;
pub mod quantity;
pub mod signals;
pub mod user;
