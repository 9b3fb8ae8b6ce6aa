//! Chooses a watch: the BPF notifier where it works, the poller otherwise.

use std::path::Path;

use crate::error::NotifierError;
use crate::notifier::Notifier;
use crate::poller::ProcPoller;
use crate::watch::Watch;

/// A watch, and the reason if it is not the preferred one.
pub struct Chosen {
    /// The watch that was chosen.
    pub watch: Box<dyn Watch>,
    /// Why the BPF notifier could not be used, or why its accounts end with the daemon, as text for
    /// an operator; `None` without a problem. To be logged once, at start.
    pub degraded: Option<String>,
}

/// The BPF notifier, with accounts pinned under `pins` if requested and possible.
pub fn notifier(pins: Option<&Path>) -> Result<Chosen, NotifierError> {
    let Some(root) = pins else {
        return Ok(Chosen { watch: Box::new(Notifier::load()?), degraded: None });
    };
    match Notifier::load_pinned(root) {
        Ok(notifier) => Ok(Chosen { watch: Box::new(notifier), degraded: None }),
        Err(error @ NotifierError::Pins { .. }) => Ok(Chosen {
            watch: Box::new(Notifier::load()?),
            degraded: Some(format!("limits end with a daemon that is killed: {error}")),
        }),
        Err(error) => Err(error),
    }
}

/// The BPF notifier (see [`notifier`]), or else the poller. Fails only if neither works.
pub fn choose_source(pins: Option<&Path>) -> Result<Chosen, NotifierError> {
    match notifier(pins) {
        Ok(chosen) => Ok(chosen),
        Err(error) => Ok(Chosen {
            watch: Box::new(ProcPoller::new()?),
            degraded: Some(format!(
                "{error}; watching by reading /proc on a timer instead, which acts later"
            )),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Backend;

    #[test]
    fn polling_comes_with_a_reason_and_the_notifier_without() {
        let chosen = choose_source(None).unwrap();
        match chosen.watch.backend() {
            Backend::Bpf => assert_eq!(chosen.degraded, None),
            Backend::ProcPolling => {
                test_support::skip(format_args!(
                    "{}",
                    chosen.degraded.as_deref().unwrap_or_default()
                ));
                assert!(chosen.degraded.is_some());
            }
        }
    }
}
