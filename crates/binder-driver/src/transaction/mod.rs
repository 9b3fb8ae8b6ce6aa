//! Calls, one-way calls and replies: from the sender's command to the receiver's queue.

mod descriptors;
mod fill;
mod oneway;
pub mod prediction;
pub mod priority;
mod scatter_gather;
mod send;
mod stack;
mod translate;
pub mod types;
