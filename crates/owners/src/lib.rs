//! The *owner* of a process, and fair sharing of a daemon's resources between owners.
//!
//! A uid is a poor unit for quotas: a user with subordinate uids has 65,536 of them. The owner of a
//! process is the user that is responsible for it ([`owner`]). The reason for each rule is in
//! `docs/design/owners.md`.
//!
//! These modules make no system calls and read no clock:
//!
//! * [`owner`]: which owner a uid in a user namespace belongs to;
//! * [`quota`]: a bounded number of slots, of which one owner cannot take all;
//! * [`token_bucket`]: a bounded rate;
//! * [`round_robin`]: a queue that serves owners in turn, and the uids of an owner in turn.
//!
//! [`bounds`] lists every bound with its parts. [`reader`] reads user namespaces from the kernel.

pub mod bounds;
pub mod owner;
pub mod quota;
pub mod reader;
pub mod round_robin;
pub mod token_bucket;

pub use owner::{NamespaceId, NamespaceLevel, Owner, Uid};
pub use quota::{Exhausted, Quota, QuotaSize};
pub use round_robin::FairQueue;
pub use token_bucket::{Rate, TokenBucket, TokenBuckets};
