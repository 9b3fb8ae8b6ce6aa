//! Death notifications, freezing and freeze notifications.

mod death;
pub mod delivered;
mod freeze;
mod freeze_notification;
pub mod types;
