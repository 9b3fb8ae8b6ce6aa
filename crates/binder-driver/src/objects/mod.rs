//! Nodes, the references that other processes hold to them, and handle numbers.

pub mod handles;
mod node_counts;
mod reference_counts;
pub mod types;
