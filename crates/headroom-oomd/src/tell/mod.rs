//! The last step of the escalation: whoever wants to know is told.
//!
//! * [`metrics`]: counters in a file;
//! * [`teller`]: a thread that tells of decisions, and warns;
//! * [`kill_log`]: log entries about kills, with a field for each fact;
//! * [`hooks`]: programs of the administrator;
//! * [`before`]: the one that is run before a kill, and its budget.
//!
//! None of it is done by the event loop, so a slow disk or program holds up no kill.

pub mod before;
pub mod hooks;
pub mod kill_log;
pub mod metrics;
pub mod teller;

/// Threads that tell compete for the CPU like any other program: only the kill has precedence.
/// Those they start inherit it.
fn be_ordinary() {
    // Giving up a real-time priority is always allowed.
    let _ = headroom_linux::sched::SchedAttr::other(0).apply(None);
}
