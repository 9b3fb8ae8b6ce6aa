//! The rules of the protocol, one per test. The driver's invariants are checked after every ioctl.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod deaths;
mod descriptors;
mod freezes;
mod held;
mod hostile;
mod logs;
mod manager;
mod oneway;
mod prediction;
mod priorities;
mod quotas;
mod reclaim;
mod references;
mod scatter_gather;
mod threads;
