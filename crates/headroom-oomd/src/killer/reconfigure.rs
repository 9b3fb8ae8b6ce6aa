//! A new configuration while everything runs: limits, the machine's levels and the rules are exchanged; victims on
//! their way out, leases, and what was set while running stay.

use memory_ledger::{AccountId, CgroupLimit, Groups};

use super::Killer;
use crate::config::Config;

impl Killer {
    /// Puts a configuration into force. Returns what has changed, and what could not be put into force.
    pub fn reconfigure(&mut self, config: &Config) -> (Vec<String>, Vec<String>) {
        let (mut changes, mut problems) = (Vec::new(), Vec::new());
        // The rules first: a limit that is broken already strikes at once.
        self.exchange_rules(config, &mut changes, &mut problems);
        self.exchange_limits(config, &mut changes, &mut problems);
        if self.newcomers.limit() != config.everyone {
            changes.push(match config.everyone {
                Some(limit) => format!("every ordinary user: limit {} bytes", limit.hard_bytes()),
                None => "ordinary users: no limit any more".to_owned(),
            });
            self.limit_everyone(config.everyone);
        }
        self.exchange_cgroups(config, &mut changes, &mut problems);
        self.exchange_levels(config, &mut changes, &mut problems);
        (changes, problems)
    }

    fn exchange_limits(
        &mut self,
        config: &Config,
        changes: &mut Vec<String>,
        problems: &mut Vec<String>,
    ) {
        let before = self.ledger.groups().clone();
        let name = |id: AccountId| match config.groups.get(id).or(before.get(id)) {
            Some(group) => format!("@{}", group.name),
            None => id.to_string(),
        };
        self.ledger.set_groups(config.groups.clone());
        let plan = self.ledger.plan_reload(&config.limits, config.everyone);
        // First the accounts that end, then who belongs to whom, then what is new: nobody is in two meanwhile.
        let (end, go_on): (Vec<_>, Vec<_>) =
            plan.into_iter().partition(|change| change.limit().is_none());
        for change in end {
            let account = change.account;
            let joined = account.user().and_then(|user| config.groups.of(user));
            match (self.put_into_force(change), joined) {
                (Ok(()), Some(group)) => {
                    changes.push(format!("{account}: shares the limit of @{}", group.name));
                }
                (Ok(()), None) => changes.push(format!("{}: no limit any more", name(account))),
                (Err(error), _) => {
                    problems.push(format!("the limit of {}: {error}", name(account)))
                }
            }
        }
        self.regroup(&before, changes, problems);
        for change in go_on {
            let account = change.account;
            let line = change
                .limit()
                .filter(|limit| self.ledger.account(account).map(|it| it.limit()) != Some(*limit))
                .map(|limit| {
                    let (hard, counts) = (limit.hard_bytes(), limit.count().unusual_names());
                    let of = if counts.is_empty() {
                        String::new()
                    } else {
                        format!(" of {}", counts.join(", "))
                    };
                    format!("{}: limit {hard} bytes{of}", name(account))
                });
            match self.put_into_force(change) {
                Ok(()) => changes.extend(line),
                Err(error) => problems.push(format!("the limit of {}: {error}", name(account))),
            }
        }
    }

    fn exchange_cgroups(
        &mut self,
        config: &Config,
        changes: &mut Vec<String>,
        problems: &mut Vec<String>,
    ) {
        let before = self.cgroups.accounts.limits();
        for ended in before.iter().filter(|it| !is_limited(&config.cgroups, it)) {
            changes.push(format!("{}: no limit any more", ended.pattern));
        }
        for new in config.cgroups.iter().filter(|it| !before.contains(it)) {
            changes.push(format!("{}: limit {} bytes", new.pattern, new.limit.hard_bytes()));
        }
        // Those that stay as well: what could not be enforced is tried again.
        problems.extend(self.limit_cgroups(config.cgroups.clone()));
    }

    /// Groups that have other members now.
    fn regroup(&mut self, before: &Groups, changes: &mut Vec<String>, problems: &mut Vec<String>) {
        for account in self.accounts() {
            let groups = self.ledger.groups();
            let (then, now) = (before.get(account), groups.get(account));
            let Some(group) = now.filter(|now| Some(*now) != then).cloned() else { continue };
            let Some(count) = self.ledger.account(account).map(|it| it.limit().count()) else {
                continue;
            };
            changes.push(format!("@{}: {} users", group.name, group.uids.len()));
            let said = self
                .say_what_is_charged(account, count)
                .and_then(|()| self.say_whether_to_spare(account));
            if let Err(error) = said {
                problems.push(format!("the users of @{}: {error}", group.name));
            }
            self.helpless.remove(&account);
            self.arm_or_disarm(account);
        }
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
        for account in self.accounts() {
            if let Err(error) = self.say_whether_to_spare(account) {
                problems.push(format!("the rules about {account}: {error}"));
            }
            self.helpless.remove(&account);
            // Whoever is armed may be protected now.
            self.arm_or_disarm(account);
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

/// Something is said of the cgroups that this one is of.
fn is_limited(limits: &[CgroupLimit], one: &CgroupLimit) -> bool {
    limits.iter().any(|limit| limit.pattern == one.pattern)
}
