//! Nodes, references of other processes to them, and handle numbers.

mod handles;
pub mod nodes;
pub mod references;

use serde::{Deserialize, Serialize};

/// The two kinds of reference counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Strength {
    Weak,
    /// Keeps the object itself alive, not only its identity.
    Strong,
}
