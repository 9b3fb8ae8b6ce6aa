//! `headroom binder`: commands about the binder driver.

pub mod attach;
pub mod ls;
pub mod reclaim;
pub mod service_manager;
pub mod stat;
pub mod trace;
pub mod upgrade;
