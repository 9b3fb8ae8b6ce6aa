//! Log entries and hooks: the last step of the escalation.
//!
//! * [`queue`]: the bounded queue from the event loop to the notification thread, which does not
//!   repeat warnings;
//! * [`kill_log`]: log entries about kills, with a field for each fact, and the part of each owner;
//! * [`hooks`]: programs that the administrator configured;
//! * [`pre_kill_hook`]: the program that runs before a kill, within a time budget.
//!
//! None of it is done by the event loop, so a slow disk or program holds up no kill.

pub mod hooks;
pub mod kill_log;
pub mod pre_kill_hook;
pub mod queue;

/// Threads that report or start programs run with ordinary priority: only the kill has precedence.
/// The programs that they start inherit it.
pub(crate) fn use_ordinary_priority() {
    headroom_linux::sched::leave_realtime(0);
}
