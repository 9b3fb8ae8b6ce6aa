//! The interfaces that `build.rs` generates from AIDL.

rsbinder::include_aidl!("suite");

pub mod tasks;

/// A stamp with this kind and time.
pub fn stamp(
    kind: headroom::suite::Packet::Kind::Kind,
    time: i64,
) -> headroom::suite::Packet::Stamp::Stamp {
    headroom::suite::Packet::Stamp::Stamp { kind, time }
}
