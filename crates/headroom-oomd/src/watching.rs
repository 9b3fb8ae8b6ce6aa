//! Selection of the watch: the BPF notifier, or the fallback.

use std::path::Path;

use memory_watch::{Chosen, NotifierError, ProcPoller};

/// Which watch is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Wanted {
    /// The BPF notifier where it works, else polling.
    #[default]
    Auto,
    /// The BPF notifier or nothing.
    Bpf,
    /// Polling of `/proc`.
    Proc,
}

/// Returns the watch, and what is degraded if it is not the notifier. With `pins`, a directory of a
/// BPF filesystem, the notifier's accounts outlive a daemon that is killed.
pub fn select(wanted: Wanted, pins: Option<&Path>) -> Result<Chosen, NotifierError> {
    match wanted {
        Wanted::Auto => memory_watch::choose_source(pins),
        Wanted::Bpf => memory_watch::choose_notifier(pins),
        Wanted::Proc => Ok(Chosen {
            watch: Box::new(ProcPoller::new()?),
            degraded: Some(
                "--notifier proc reads /proc on a timer, which acts later than the BPF notifier"
                    .to_owned(),
            ),
        }),
    }
}
