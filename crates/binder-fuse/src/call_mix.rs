//! Whether it pays to watch rings: calls of rings prevail over requests.
//!
//! While the event loop waits for rings, another thread has to wake it for a request: with a server
//! that uses a ring and a client that does not, a call takes twice the time that it takes by
//! requests alone.

/// Calls of rings that outweigh a request.
const CALLS_FOR_A_REQUEST: u32 = 8;
/// Requests more than that, after which no ring is watched for [`PAUSE_NS`]: threads make some
/// before they attach their rings.
const MAX_EXCESS: u32 = 512;
/// Then it is tried again, nanoseconds: the trial costs some ten milliseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct CallMix {
    /// Requests that are not outweighed, in calls.
    excess: u32,
    paused_until_ns: u64,
}

impl CallMix {
    /// A thread without a ring makes a request while rings are watched. True: no ring is to be
    /// watched any more.
    pub(crate) fn request(&mut self, now_ns: u64) -> bool {
        self.excess += CALLS_FOR_A_REQUEST;
        if self.excess <= MAX_EXCESS * CALLS_FOR_A_REQUEST {
            return false;
        }
        self.excess = 0;
        self.paused_until_ns = now_ns.saturating_add(PAUSE_NS);
        true
    }

    /// A call was taken from a ring.
    pub(crate) fn call(&mut self) {
        self.excess = self.excess.saturating_sub(1);
    }

    /// Whether rings may be watched.
    pub(crate) fn allows_rings(&self, now_ns: u64) -> bool {
        now_ns >= self.paused_until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_paused_if_half_of_the_calls_are_requests() {
        let mut mix = CallMix::default();
        let rounds = (0..1_000).take_while(|_| {
            mix.call();
            !mix.request(7)
        });
        assert!((512..600).contains(&rounds.count()));
        assert!(!mix.allows_rings(8) && !mix.allows_rings(PAUSE_NS));
        assert!(mix.allows_rings(7 + PAUSE_NS));
    }

    #[test]
    fn a_few_requests_do_not_pause_rings() {
        let mut mix = CallMix::default();
        for _ in 0..10_000 {
            (0..10).for_each(|_| mix.call());
            assert!(!mix.request(7));
        }
        assert!(mix.allows_rings(8));
    }
}
