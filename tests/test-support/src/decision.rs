//! A decision of the OOM manager, as a fixture.

use control::Uid;
use control::oomd::{AccountRef, Outcome, Trigger, Why};

/// A decision about user 7 without an outcome. Tests change the fields that they need.
pub fn decision(id: u64) -> Why {
    Why {
        id,
        at_micros: id,
        account: AccountRef::user(Uid(7)),
        group: None,
        cgroup: None,
        trigger: Trigger::Timer,
        state: String::new(),
        killer: None,
        hard_bytes: 1,
        used_bytes: 2,
        victim: None,
        others: Vec::new(),
        runner_up: None,
        considered: 3,
        rule: String::new(),
        kept: String::new(),
        decide_micros: None,
        outcome: Outcome::Dying,
    }
}
