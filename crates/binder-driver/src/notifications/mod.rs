//! Death notifications, freezing and freeze notifications.

mod death;
mod freeze;
mod freeze_notification;
pub mod types;
