//! The interface, generated from AIDL.

rsbinder::include_aidl!("adder");

/// Name of the service unless the command line gives another.
pub const SERVICE: &str = "example.IAdder/default";
