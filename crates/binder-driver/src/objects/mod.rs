//! Nodes, references of other processes to them, and handle numbers.

pub mod handles;
mod node_counts;
mod reference_counts;
pub mod types;
