//! The interfaces that `build.rs` generates from AIDL.

/// Name of the service unless the command line gives another.
pub const SERVICE: &str = "headroom.hello.IHello/default";

rsbinder::include_aidl!("hello");
