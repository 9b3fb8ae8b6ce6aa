//! Control requests that do not change limits, and accounts in the control protocol.

use std::collections::BTreeMap;

use control::oomd::{
    AccountKind, AccountRef, ActsOn, Explanation, Importance, LimitDetails, LimitLayer,
    MemberUsage, PendingLimit, RuleMatches, Status, Trigger, UserLimit,
};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::cgroup::{CgroupAccount, owner_of};
use memory_ledger::limit::Bytes;
use memory_ledger::{
    Account, AccountId, CgroupId, Limit, NoVictim, Phase, Process, Requester, Source, Uid,
};
use memory_watch::{Backend, account_of_key, key_of_account};

use super::accounts::seconds_until;
use super::cgroup_limits::{CgroupLimits, Listing};
use super::kill_plan::explanation;
use super::manager::OomManager;
use super::shared_state::SharedState;
use super::user_limits::{self, Alert};
use crate::config::Enforcement;

/// Shown in the status while kills are only observed.
const OBSERVES: &str = "observing: no process is killed, and limits are not enforced; `headroom \
                        why` lists what would have been killed";

/// The manager's part of the daemon's status.
pub fn status(manager: &OomManager, degraded: &[String]) -> Status {
    let accounts = manager.accounts();
    let notifier = match accounts.watch().backend() {
        Backend::Bpf => "bpf",
        Backend::ProcPolling => "proc",
    };
    let limited = accounts.ledger().accounts().iter().filter(|it| !it.limit().is_none());
    let limited_users = limited.map(|it| accounts.members(it.id).len()).sum::<usize>() as u32;
    let mut degraded = degraded.to_vec();
    degraded.extend(accounts.degraded());
    degraded.extend(manager.default_limits.degraded());
    degraded.extend(manager.cgroup_limits.degraded());
    degraded.extend(manager.backstop.degraded());
    let acts_on = if accounts.enforcement() == Enforcement::Observe {
        degraded.push(OBSERVES.to_owned());
        ActsOn::Nothing
    } else if manager.system_monitor.thresholds().is_some() {
        ActsOn::LimitsAndShortages
    } else {
        ActsOn::Limits
    };
    degraded.extend(manager.system_monitor.degraded());
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: control::PROTOCOL_VERSION,
        pid: std::process::id(),
        notifier: notifier.to_owned(),
        acts_on,
        attached: !accounts.ledger().accounts().is_empty(),
        limited_users,
        usage_sources: usage_sources(manager),
        limited_cgroups: manager.cgroup_limits.all().len() as u32,
        kills: manager.records().kills(),
        given_back_bytes: manager.relief.given_bytes(),
        leaseholders: 0,
        refused: 0,
        rules: rules(manager),
        degraded,
    }
}

fn rules(manager: &OomManager) -> Vec<RuleMatches> {
    let rules = manager.state.snapshot.rules().matches();
    rules.map(|(rule, processes)| RuleMatches { rule: rule.to_string(), processes }).collect()
}

fn usage_sources(manager: &OomManager) -> BTreeMap<String, u32> {
    let mut accounts = BTreeMap::new();
    for source in manager.state.usage.sources() {
        *accounts.entry(source.as_str().to_owned()).or_default() += 1;
    }
    accounts
}

/// The status as one line of text.
pub fn status_line(manager: &OomManager) -> String {
    let users = manager.accounts().ledger().accounts().len();
    let kills = manager.records().kills();
    let how = match manager.accounts().watch().backend() {
        Backend::Bpf => "BPF notifier",
        Backend::ProcPolling => "reading /proc",
    };
    format!("{how}, users with a limit: {users}, kills since start: {kills}")
}

/// Whether the account has a limit.
pub fn is_limited(manager: &OomManager, account: AccountId) -> bool {
    match account {
        AccountId::Cgroup(id) => manager.cgroup_limits.get(id).is_some(),
        AccountId::User(_) | AccountId::Group(_) => {
            manager.accounts().ledger().account(account).is_some()
        }
    }
}

/// Limits of users and groups, with fresh readings: of one account, or of all.
pub fn limits(manager: &mut OomManager, only: Option<AccountId>) -> Vec<UserLimit> {
    for account in manager.state.accounts.ids() {
        manager.state.accounts.read(account);
    }
    let members_usage = members_usage(&mut manager.state);
    let SharedState { accounts, usage, .. } = &manager.state;
    let wanted = |account: &&Account| only.is_none_or(|only| account.id == only);
    let describe = |account: &Account| UserLimit {
        group: accounts.group_name(account.id),
        members: match account.id {
            AccountId::Group(_) => accounts.members(account.id),
            AccountId::User(_) | AccountId::Cgroup(_) => Vec::new(),
        },
        used_bytes: used_bytes(account, &manager.state),
        dying_bytes: account.reading().dying_bytes,
        peak_bytes: accounts.peak_bytes(account),
        usage_source: Some(usage.source(account.id).as_str().to_owned()),
        details: details(account, &members_usage),
        ..unused(account.id, account.limit(), account.source())
    };
    accounts.ledger().accounts().iter().filter(wanted).map(describe).collect()
}

/// The latest usage of an account, in which pages that were found shared count once.
fn used_bytes(account: &Account, state: &SharedState) -> u64 {
    let shared_bytes = state.usage.shared_bytes(account.id, &state.accounts);
    account.reading().used_bytes.saturating_sub(shared_bytes)
}

/// The default limit of an ordinary user without a process. `None`: no limit will apply to it.
pub fn default_limit_of(manager: &OomManager, uid: Uid) -> Option<UserLimit> {
    let limit = manager.default_limits.limit_of(uid)?;
    let details = LimitDetails { exempt: limit.is_none(), ..LimitDetails::default() };
    Some(UserLimit { details, ..unused(AccountId::User(uid), limit, Source::Default) })
}

/// A limit of an account without processes.
fn unused(account: AccountId, limit: Limit, source: Source) -> UserLimit {
    UserLimit {
        account: to_ref(account),
        counts: limit.count().unusual_names(),
        hard_bytes: limit.hard_bytes(),
        soft_bytes: limit.soft_bytes(),
        source: source.as_str().to_owned(),
        ..UserLimit::default()
    }
}

/// The memory of each user of a group, by account. Empty without groups.
fn members_usage(state: &mut SharedState) -> BTreeMap<AccountId, BTreeMap<Uid, u64>> {
    let mut usage: BTreeMap<AccountId, BTreeMap<Uid, u64>> = BTreeMap::new();
    if state.accounts.ledger().groups().is_empty() {
        return usage;
    }
    state.refresh_processes();
    for process in state.snapshot.processes() {
        if matches!(process.account, AccountId::Group(_)) {
            let of_group = usage.entry(process.account).or_default();
            let used_bytes = of_group.entry(process.uid).or_default();
            *used_bytes += process.rss_bytes + process.swap_bytes;
        }
    }
    usage
}

fn details(
    account: &Account,
    members_usage: &BTreeMap<AccountId, BTreeMap<Uid, u64>>,
) -> LimitDetails {
    let layers = account.layers();
    let of = |source: Source| (source.as_str(), layers.layer(source));
    let sources = [Source::Runtime, Source::Config, Source::Default].map(of);
    let all = [("own", layers.own())].into_iter().chain(sources);
    let layer = |(source, limit): (&str, Option<Limit>)| {
        let hard_bytes = limit?.hard_bytes();
        Some(LimitLayer { source: source.to_owned(), hard_bytes })
    };
    let grace = layers.grace().zip(layers.after_grace()).map(|(grace, (limit, _))| PendingLimit {
        hard_bytes: limit.hard_bytes(),
        seconds: seconds_until(grace.until_ns),
    });
    let members = members_usage.get(&account.id).into_iter().flatten();
    LimitDetails {
        layers: all.filter_map(layer).collect(),
        grace,
        exempt: account.limit().is_none(),
        member_usage: members
            .map(|(uid, used_bytes)| MemberUsage { uid: *uid, used_bytes: *used_bytes })
            .collect(),
    }
}

/// Limits of cgroups, with fresh readings: of all, or of this user's sessions.
pub fn cgroup_limits(manager: &mut OomManager, owner: Option<Uid>) -> Vec<UserLimit> {
    let OomManager { cgroup_limits, state, .. } = manager;
    let mut listing = Listing::Needed;
    for id in cgroup_limits.ids() {
        cgroup_limits.read(id, &mut listing, state);
    }
    let wanted = |it: &&CgroupAccount| owner.is_none_or(|owner| owner_of(it.path()) == Some(owner));
    let describe = |it: &CgroupAccount| UserLimit {
        cgroup: Some(it.path().to_owned()),
        used_bytes: it.account().reading().used_bytes,
        dying_bytes: it.account().reading().dying_bytes,
        peak_bytes: it.peak_bytes(),
        ..unused(it.account().id, it.account().limit(), Source::Config)
    };
    cgroup_limits.all().iter().filter(wanted).map(describe).collect()
}

/// The process that would be killed if the system were short of memory now.
pub fn explain_system(manager: &mut OomManager) -> Explanation {
    let (state, choice) = manager.system_monitor.explain(&mut manager.state);
    explanation(state, choice)
}

/// The process that would be killed if this account exceeded its limit now. `None`: the account has
/// no limit.
pub fn explain(manager: &mut OomManager, account: AccountId) -> Option<Explanation> {
    match account {
        AccountId::Cgroup(id) => explain_cgroup(&mut manager.cgroup_limits, id, &mut manager.state),
        AccountId::User(_) | AccountId::Group(_) => explain_account(account, &mut manager.state),
    }
}

fn explain_account(account: AccountId, state: &mut SharedState) -> Option<Explanation> {
    state.accounts.read(account)?;
    let choice = user_limits::choose(account, state);
    let account = state.accounts.ledger().account(account)?;
    let used = Bytes(used_bytes(account, state));
    let source = state.usage.source(account.id).as_str();
    let text = match account.limit() {
        limit if limit.is_none() => format!("{used}, no limit, by {source}"),
        limit => format!("{used} of {limit}, by {source}"),
    };
    Some(explanation(text, choice))
}

fn explain_cgroup(
    cgroups: &mut CgroupLimits,
    id: CgroupId,
    state: &mut SharedState,
) -> Option<Explanation> {
    cgroups.read(id, &mut Listing::Needed, state)?;
    let it = cgroups.get(id)?;
    let (reading, limit) = (it.account().reading(), it.account().limit());
    let (used, hard) = (Bytes(reading.used_bytes), Bytes(limit.hard_bytes()));
    let text = format!("{used} of {hard} in {}", it.path());
    match cgroups.choose(id, state) {
        Some(choice) => Some(explanation(text, choice)),
        None => Some(explanation(
            format!("{text}; one of its processes is exiting"),
            Err(NoVictim::NoProcess),
        )),
    }
}

/// Sets a user's preference for one of its processes. Root may set it for any process, on behalf of
/// its owner.
pub fn set_importance(
    manager: &mut OomManager,
    requester: Requester,
    pid: u32,
    importance: Importance,
) -> Result<(), String> {
    manager.state.refresh_processes();
    let snapshot = &mut manager.state.snapshot;
    let found = snapshot.processes().iter().find(|process| process.id.pid == pid).copied();
    let own = |process: &Process| match requester {
        Requester::Root => true,
        Requester::User(uid) => process.uid == uid,
    };
    // Does not disclose whether another user's process with this pid exists.
    let process = found.filter(own).ok_or_else(|| format!("you have no process {pid}"))?;
    snapshot.user_preferences.set(&process, importance)?;
    manager.rearm(process.account);
    Ok(())
}

/// Checks one account or all at once, and kills where a limit is exceeded. Returns the new
/// decisions, and those whose victims are exiting already.
pub fn run(manager: &mut OomManager, only: Option<AccountId>) -> Vec<u64> {
    manager.state.accounts.reconcile();
    manager.take_events();
    let mut decisions = match only {
        None | Some(AccountId::Cgroup(_)) => run_in_cgroups(manager, only),
        Some(AccountId::User(_) | AccountId::Group(_)) => Vec::new(),
    };
    let wanted = |account: &AccountId| only.is_none_or(|only| only == *account);
    for account in manager.state.accounts.ids().into_iter().filter(wanted) {
        if manager.state.accounts.read(account) == Some(Phase::Broken) {
            // Requested explicitly, so a lack of victims is recorded again.
            manager.user_limits.forget_no_victim(account);
            let new = manager.enforce_limit(account, Alert::by(Trigger::Request));
            decisions.extend(new.or_else(|| manager.state.kills.record_for(account)));
        }
    }
    decisions
}

fn run_in_cgroups(manager: &mut OomManager, only: Option<AccountId>) -> Vec<u64> {
    manager.cgroup_limits.search(monotonic_ns(), &manager.state);
    let mut decisions = Vec::new();
    let mut listing = Listing::Needed;
    for id in manager.cgroup_limits.ids() {
        let account = AccountId::Cgroup(id);
        let look = manager.cgroup_limits.read(id, &mut listing, &mut manager.state);
        let broken = look.is_some_and(|look| look.phase == Phase::Broken);
        if broken && only.is_none_or(|only| only == account) {
            manager.cgroup_limits.forget_no_victim(id);
            let new = manager.enforce_limit(account, Alert::by(Trigger::Request));
            decisions.extend(new.or_else(|| manager.state.kills.record_for(account)));
        }
    }
    decisions
}

/// For a group or cgroup, the number is its key in the BPF maps, which no uid can equal.
pub fn to_ref(account: AccountId) -> AccountRef {
    let kind = match account {
        AccountId::User(_) => AccountKind::User,
        AccountId::Group(_) => AccountKind::Group,
        AccountId::Cgroup(_) => AccountKind::Cgroup,
    };
    AccountRef { kind, uid: key_of_account(account) }
}

/// `None`: no group or cgroup can have this number.
pub fn of_ref(account: AccountRef) -> Option<AccountId> {
    let found = account_of_key(account.uid);
    match (account.kind, found) {
        (AccountKind::User, _) => Some(AccountId::User(Uid(account.uid))),
        (AccountKind::Group, AccountId::Group(_)) => Some(found),
        (AccountKind::Cgroup, AccountId::Cgroup(_)) => Some(found),
        (AccountKind::Group | AccountKind::Cgroup, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::{CgroupId, GroupId};

    use super::*;

    #[test]
    fn an_account_is_found_by_its_kind_and_number() {
        let group = AccountId::Group(GroupId::new(7).unwrap());
        for account in [AccountId::User(Uid(7)), group, AccountId::Cgroup(CgroupId(7))] {
            assert_eq!(of_ref(to_ref(account)), Some(account));
        }
        let number = to_ref(group).uid;
        assert_eq!(of_ref(AccountRef { kind: AccountKind::Cgroup, uid: number }), None);
        assert_eq!(of_ref(AccountRef { kind: AccountKind::Group, uid: 1000 }), None);
        // A uid in the range of group keys still denotes a user. The ledger refuses it.
        assert_eq!(of_ref(AccountRef::user(Uid(number))), Some(AccountId::User(Uid(number))));
    }
}
