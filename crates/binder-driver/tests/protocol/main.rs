//! The rules of the protocol, one sentence a test. Every ioctl is followed by a full check of the
//! driver's invariants.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod deaths;
mod descriptors;
mod freezes;
mod hostile;
mod logs;
mod manager;
mod oneway;
mod priorities;
mod quotas;
mod reclaim;
mod references;
mod scatter_gather;
mod threads;
