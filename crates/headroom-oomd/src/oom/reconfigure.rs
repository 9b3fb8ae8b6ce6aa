//! Applies a configuration, at the start and at runtime.
//!
//! Limits, levels of the system and rules are replaced. Kills in flight, leases and limits set at
//! runtime are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use control::oomd::Reloaded;
use memory_ledger::limit::Bytes;
use memory_ledger::{
    AccountId, CgroupLimit, Change, Count, Grace, Groups, Limit, LimitLayers, Requester, Uid,
};
use memory_watch::NotifierError;

use super::accounts::{after_seconds, size_by};
use super::earlier_daemon::{follow_earlier_kills, inherit_own_limits, inherit_runtime_limits};
use super::manager::OomManager;
use crate::config::Config;
use crate::config::Enforcement;

/// What holds when a configuration lowers a limit below the usage.
#[derive(Clone, Copy, Debug)]
pub enum Lowering<'a> {
    /// The new limit, at once.
    AtOnce,
    /// The limit before, for this time in seconds.
    AfterGrace(u32),
    /// As [`AfterGrace`](Self::AfterGrace), at the start: what held before the daemon was there.
    AtStart(&'a FirstGrace),
}

/// Applies the first configuration, and takes over limits and accounts left by an earlier daemon.
pub fn start(manager: &mut OomManager, config: &Config) -> Reloaded {
    inherit_runtime_limits(manager, &config.groups);
    let done = if config.grace_s == 0 {
        reconfigure(manager, config, Lowering::AtOnce)
    } else {
        let grace = FirstGrace::new(manager, config.grace_s);
        reconfigure(manager, config, Lowering::AtStart(&grace))
    };
    inherit_own_limits(manager);
    follow_earlier_kills(manager);
    manager.state.accounts.watch_mut().end_limits_of_other_versions();
    done
}

/// Applies another configuration.
pub fn reconfigure(manager: &mut OomManager, config: &Config, lowering: Lowering<'_>) -> Reloaded {
    let mut done = Reloaded::default();
    exchange_enforcement(manager, config, &mut done);
    // Rules come first, since a limit that is exceeded already is enforced at once.
    exchange_rules(manager, config, &mut done);
    exchange_backstop(manager, config, &mut done);
    exchange_limits(manager, config, lowering, &mut done);
    exchange_default_limit(manager, config, lowering, &mut done);
    exchange_cgroups(manager, config, &mut done);
    exchange_levels(manager, config, &mut done);
    done
}

fn exchange_enforcement(manager: &mut OomManager, config: &Config, done: &mut Reloaded) {
    if manager.accounts().enforcement() == config.enforcement {
        return;
    }
    manager.state.accounts.set_enforcement(config.enforcement);
    done.changes.push(match config.enforcement {
        Enforcement::Kill => "kills are carried out".to_owned(),
        Enforcement::Observe => "kills are recorded and not carried out".to_owned(),
    });
    for account in manager.state.accounts.ids() {
        let state = &mut manager.state;
        if let Err(error) = state.accounts.restrict_unarmed_kills(account, state.snapshot.rules()) {
            done.problems.push(format!("kills for {account}: {error}"));
        }
        // Disarms the victims chosen before.
        manager.user_limits.disarm(account, &mut manager.state);
        manager.user_limits.forget_no_victim(account);
        manager.rearm(account);
    }
}

/// A backstop kills, so it is off while kills are only observed.
fn exchange_backstop(manager: &mut OomManager, config: &Config, done: &mut Reloaded) {
    let wanted = config.backstop && config.enforcement == Enforcement::Kill;
    let OomManager { backstop, state, .. } = manager;
    if wanted == backstop.is_on() {
        return;
    }
    if !wanted {
        backstop.switch_off(&state.accounts);
        done.changes.push("users' limits have no backstop any more".to_owned());
        return;
    }
    match backstop.switch_on(&state.accounts) {
        Ok(()) => done.changes.push("users' limits have a backstop".to_owned()),
        Err(error) => done.problems.push(format!("the backstop of users' limits: {error}")),
    }
}

fn exchange_rules(manager: &mut OomManager, config: &Config, done: &mut Reloaded) {
    if *manager.state.snapshot.rules().rules() == config.rules {
        return;
    }
    manager.state.snapshot.set_rules(config.rules.clone());
    // Counts the processes that each rule matches.
    manager.state.refresh_processes();
    done.changes.push(format!("{} rules", config.rules.0.len()));
    for account in manager.state.accounts.ids() {
        let state = &mut manager.state;
        if let Err(error) = state.accounts.restrict_unarmed_kills(account, state.snapshot.rules()) {
            done.problems.push(format!("the rules about {account}: {error}"));
        }
        manager.user_limits.forget_no_victim(account);
        // The armed victim may be protected now.
        manager.rearm(account);
    }
}

fn exchange_limits(
    manager: &mut OomManager,
    config: &Config,
    lowering: Lowering<'_>,
    done: &mut Reloaded,
) {
    let before = manager.accounts().ledger().groups().clone();
    let name = |account: AccountId| match config.groups.get(account).or(before.get(account)) {
        Some(group) => format!("@{}", group.name),
        None => account.to_string(),
    };
    let ledger = manager.state.accounts.ledger_mut();
    ledger.set_groups(config.groups.clone());
    let plan = ledger.plan_reload(&config.limits, config.default_limit);
    // First the accounts that end, then the members of groups, then new limits, so that no user is
    // charged to two accounts meanwhile.
    let (end, go_on): (Vec<_>, Vec<_>) =
        plan.into_iter().partition(|change| change.limit().is_none());
    for change in end {
        let account = change.account;
        let joined = account.user().and_then(|uid| config.groups.of(uid));
        match (manager.apply_limit(change), joined) {
            (Ok(()), Some(group)) => {
                done.changes.push(format!("{account}: shares the limit of @{}", group.name));
            }
            (Ok(()), None) => done.changes.push(format!("{}: no limit any more", name(account))),
            (Err(error), _) => {
                done.problems.push(format!("the limit of {}: {error}", name(account)))
            }
        }
    }
    exchange_members(manager, &before, done);
    for change in go_on {
        let account = change.account;
        let of = |layers: &LimitLayers| layers.after_grace().map(|(limit, _)| limit);
        let in_force = manager.accounts().ledger().account(account).and_then(|it| of(&it.layers()));
        let new = of(change.layers()).filter(|limit| in_force != Some(*limit));
        let applied = match lowering {
            Lowering::AtOnce => manager.apply_limit(change),
            Lowering::AfterGrace(grace_s) => {
                manager.apply_with_grace(change, grace_s, Requester::Root)
            }
            Lowering::AtStart(grace) => grace.apply(manager, change),
        };
        match applied {
            Ok(()) => {
                if let Some(limit) = new {
                    let (hard, counts) = (limit, limit.count().unusual_names());
                    let of = if counts.is_empty() {
                        String::new()
                    } else {
                        format!(" of {}", counts.join(", "))
                    };
                    let grace = manager.accounts().lowered_limit(account).and_then(|it| it.grace_s);
                    let after = grace.map(|seconds| format!(", in {seconds} s"));
                    let after = after.unwrap_or_default();
                    done.changes.push(format!("{}: limit {hard}{of}{after}", name(account)));
                }
            }
            Err(error) => done.problems.push(format!("the limit of {}: {error}", name(account))),
        }
    }
}

/// Updates groups whose members have changed.
fn exchange_members(manager: &mut OomManager, before: &Groups, done: &mut Reloaded) {
    for account in manager.state.accounts.ids() {
        let groups = manager.accounts().ledger().groups();
        let (then, now) = (before.get(account), groups.get(account));
        let Some(group) = now.filter(|now| Some(*now) != then).cloned() else { continue };
        done.changes.push(format!("@{}: {} users", group.name, group.uids.len()));
        let state = &mut manager.state;
        if let Err(error) = state.accounts.regroup(account, state.snapshot.rules()) {
            done.problems.push(format!("the users of @{}: {error}", group.name));
        }
        manager.user_limits.forget_no_victim(account);
        manager.rearm(account);
    }
}

fn exchange_default_limit(
    manager: &mut OomManager,
    config: &Config,
    lowering: Lowering<'_>,
    done: &mut Reloaded,
) {
    if manager.default_limits.limit() == config.default_limit {
        return;
    }
    done.changes.push(match config.default_limit {
        Some(limit) => format!("every ordinary user: limit {limit}"),
        None => "ordinary users: no limit any more".to_owned(),
    });
    manager.default_limits.set_limit(config.default_limit);
    manager.apply_default_limits(match lowering {
        Lowering::AtStart(grace) => Some(grace),
        Lowering::AtOnce | Lowering::AfterGrace(_) => None,
    });
}

fn exchange_cgroups(manager: &mut OomManager, config: &Config, done: &mut Reloaded) {
    let before = manager.cgroup_limits.limits();
    for ended in before.iter().filter(|it| !has_pattern_of(&config.cgroups, it)) {
        done.changes.push(format!("{}: no limit any more", ended.pattern));
    }
    for new in config.cgroups.iter().filter(|it| !before.contains(it)) {
        done.changes.push(format!("{}: limit {}", new.pattern, Bytes(new.limit.hard_bytes())));
    }
    // Includes unchanged limits, so that enforcement is retried where it had failed.
    let limits = config.cgroups.clone();
    match manager.cgroup_limits.set_limits(limits, &mut manager.state) {
        Some(problem) => done.problems.push(problem),
        None => manager.check_cgroups(),
    }
}

fn has_pattern_of(limits: &[CgroupLimit], one: &CgroupLimit) -> bool {
    limits.iter().any(|limit| limit.pattern == one.pattern)
}

fn exchange_levels(manager: &mut OomManager, config: &Config, done: &mut Reloaded) {
    let in_force = manager.system_monitor.thresholds().copied();
    match (config.machine, in_force) {
        (None, None) => {}
        (None, Some(_)) => {
            manager.system_monitor.stop();
            done.changes.push("the machine as a whole is not watched any more".to_owned());
        }
        (Some(levels), Some(in_force)) if levels == in_force => {}
        (Some(levels), Some(_)) => {
            manager.system_monitor.set_thresholds(levels);
            manager.executor.rate.set_limit(levels.kills);
            done.changes.push("the machine's levels".to_owned());
        }
        (Some(levels), None) => {
            match manager.monitor_system(Path::new("/proc"), Path::new("/sys"), levels) {
                Ok(lost) => {
                    done.changes.push("the machine as a whole is watched".to_owned());
                    done.problems.extend(lost);
                }
                Err(error) => done.problems.push(error.to_string()),
            }
        }
    }
}

/// The grace of the first limits after the start, of users that are over them already: what was in
/// force, and in use, before the daemon was there. The daemon was stopped with a limit that was
/// raised at run time, or it is new on this machine.
#[derive(Debug)]
pub struct FirstGrace {
    /// Limits that an earlier daemon has left.
    limits: BTreeMap<AccountId, Limit>,
    /// Sums of resident sets and swapped pages, bytes.
    used_bytes: BTreeMap<AccountId, u64>,
    /// End of the grace, nanoseconds, CLOCK_MONOTONIC.
    until_ns: u64,
}

impl FirstGrace {
    /// Looks at all processes. The groups of the configuration are known already.
    pub(super) fn new(manager: &mut OomManager, grace_s: u32) -> Self {
        let page_bytes = manager.accounts().page_bytes();
        let inherited = manager.inherited().into_iter().filter_map(|it| {
            Some((it.account, Limit::new(it.limit.hard_pages * page_bytes, None).ok()?))
        });
        let limits = inherited.collect();
        let (mut used_bytes, mut seen) = (BTreeMap::<AccountId, u64>::new(), BTreeSet::new());
        let groups = manager.accounts().ledger().groups().clone();
        for sample in manager.list_processes() {
            if sample.mm_id != 0 && !seen.insert(sample.mm_id) {
                continue;
            }
            let owner = Some(sample.namespace_owner).filter(|owner| *owner != Uid::ROOT);
            let size = size_by(Count::default(), sample, page_bytes);
            let used = used_bytes.entry(groups.account_of(owner.unwrap_or(sample.uid)));
            *used.or_default() += size.rss_bytes + size.swap_bytes;
        }
        Self { limits, used_bytes, until_ns: after_seconds(grace_s) }
    }

    /// Applies a limit. If its account is over it, and was within the one before, that one holds
    /// until the end of the grace, and the users are notified.
    pub(super) fn apply(
        &self,
        manager: &mut OomManager,
        change: Change,
    ) -> Result<(), NotifierError> {
        let account = change.account;
        let limit = self.limits.get(&account).copied().unwrap_or(Limit::NONE);
        let used_bytes = self.used_bytes.get(&account).copied().unwrap_or(0);
        let grace = Grace { limit, until_ns: self.until_ns };
        let change = manager.accounts().ledger().with_first_grace(change, grace, used_bytes);
        let has_grace = change.layers().grace().is_some();
        manager.apply_limit(change)?;
        if has_grace {
            manager.accounts_mut().read(account);
            manager.warn_of_grace(account);
        }
        Ok(())
    }
}
