//! The context manager of a bus: clients register objects by name, and find them.
//!
//! * [`names`]: what is registered, who waits for it, and who may register; no I/O;
//! * [`aidl`]: parcels of Android's `IServiceManager`, versions 9 to 16;
//! * [`hidl`]: parcels of HIDL's `IServiceManager`, version 1.0;
//! * [`parcel`]: strings and objects in parcels;
//! * [`request`]: what both get, and what they return;
//! * [`serve`]: threads that answer for a device.
//!
//! Lazy services (`registerClientCallback`) do not exist here, and no manifest declares services.

pub mod aidl;
pub mod hidl;
pub mod names;
pub mod parcel;
pub mod request;
mod server;

pub use server::{Dialect, serve};
