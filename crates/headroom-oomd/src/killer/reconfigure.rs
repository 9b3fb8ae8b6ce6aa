//! A new configuration while everything runs: limits, the machine's levels and the rules are exchanged; victims on
//! their way out, leases, and what was set while running stay.

use super::Killer;
use crate::config::Config;

impl Killer {
    /// Puts a configuration into force. Returns what has changed, and what could not be put into force.
    pub fn reconfigure(&mut self, config: &Config) -> (Vec<String>, Vec<String>) {
        let (mut changes, mut problems) = (Vec::new(), Vec::new());
        // The rules first: a limit that is broken already strikes at once.
        self.exchange_rules(config, &mut changes, &mut problems);
        for change in self.ledger.plan_reload(&config.limits, config.everyone) {
            let (uid, before) = (change.uid, self.ledger.account(change.uid).map(|it| it.limit()));
            let line = match change.limit() {
                Some(limit) if before == Some(limit) => None,
                Some(limit) => Some(format!("uid {uid}: limit {} bytes", limit.hard_bytes())),
                None => Some(format!("uid {uid}: no limit any more")),
            };
            match self.put_into_force(change) {
                Ok(()) => changes.extend(line),
                Err(error) => problems.push(format!("the limit of uid {uid}: {error}")),
            }
        }
        if self.newcomers.limit() != config.everyone {
            changes.push(match config.everyone {
                Some(limit) => format!("every ordinary user: limit {} bytes", limit.hard_bytes()),
                None => "ordinary users: no limit any more".to_owned(),
            });
            self.limit_everyone(config.everyone);
        }
        self.exchange_levels(config, &mut changes, &mut problems);
        (changes, problems)
    }

    fn exchange_rules(
        &mut self,
        config: &Config,
        changes: &mut Vec<String>,
        problems: &mut Vec<String>,
    ) {
        if *self.stances.rules() == config.rules {
            return;
        }
        self.obey(config.rules.clone());
        changes.push(format!("{} rules", config.rules.0.len()));
        for uid in self.users() {
            if let Err(error) = self.say_whether_to_spare(uid) {
                problems.push(format!("the rules about uid {uid}: {error}"));
            }
            self.helpless.remove(&uid);
            // Whoever is armed may be protected now.
            self.arm_or_disarm(uid);
        }
    }

    fn exchange_levels(
        &mut self,
        config: &Config,
        changes: &mut Vec<String>,
        problems: &mut Vec<String>,
    ) {
        match (config.machine, &mut self.machine) {
            (None, None) => {}
            (None, watching) => {
                *watching = None;
                changes.push("the machine as a whole is not watched any more".to_owned());
            }
            (Some(levels), Some(watch)) if *watch.machine.thresholds() == levels => {}
            (Some(levels), Some(watch)) => {
                watch.machine.set_thresholds(levels);
                self.kill_rate.set_limit(levels.kills);
                changes.push("the machine's levels".to_owned());
            }
            (Some(levels), None) => match self.watch_machine(levels) {
                Ok(lost) => {
                    changes.push("the machine as a whole is watched".to_owned());
                    problems.extend(lost);
                }
                Err(error) => problems.push(error.to_string()),
            },
        }
    }
}
