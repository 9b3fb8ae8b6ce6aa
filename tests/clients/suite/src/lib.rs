//! The interfaces that `build.rs` made from AIDL.

rsbinder::include_aidl!("suite");
