//! Requests on the control socket, and their authorization.

use std::collections::BTreeMap;

use control::oomd::{AccountRef, Explanation, Outcome, Reply, Request, UserLimit, Why};
use control::{Answer, Peer, RequestId};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{AccountId, Limit, NS_PER_MS, Requester, Source, Uid};
use owners::{Exhausted, Owner, Quota, QuotaSize};

use crate::config::MAX_GRACE_S;
use crate::oom::control::{of_ref, to_ref};
use crate::oom::{OomManager, control as oom_control};
use crate::reload::Reload;

/// How long the reply to a request to run the OOM killer waits for the victims' memory,
/// milliseconds.
const RUN_PATIENCE_MS: u64 = 500;
/// Interval of checking whether that memory is back, milliseconds.
const RUN_LOOK_MS: u64 = 5;
/// Maximum number of deferred replies to such requests: one per connection, so it equals the
/// maximum number of connections.
const MAX_RUNS: usize = 64;
/// How long an explanation is cached for further requests, milliseconds.
const EXPLANATION_MS: u64 = 50;
const SELF_SET_LIMITS: QuotaSize = owners::bounds::SELF_SET_LIMITS.slots();

/// State between requests.
pub struct Requests {
    /// The slots of limits that users have set for themselves.
    self_set: Quota,
    /// The owner to which the slot of a user is charged.
    slot_owners: BTreeMap<Uid, Owner>,
    runs: Vec<Run>,
    /// Cached explanations by account, with the time in nanoseconds; `None`: the system.
    explanations: BTreeMap<Option<AccountId>, (u64, Option<Explanation>)>,
}

/// A request to run the OOM killer; the reply is sent when the victims' memory is back.
struct Run {
    request: RequestId,
    decisions: Vec<u64>,
    until_ns: u64,
}

/// A limit, and how long one above it holds if the usage is above it, seconds.
struct NewLimit {
    limit: Limit,
    grace_s: u32,
}

impl Requests {
    /// Counts the limits that users set for themselves under an earlier daemon. The owners of these
    /// uids are not known any more: each uid counts as an owner.
    pub fn inherit(oom: &OomManager) -> Self {
        let mut requests = Self {
            self_set: Quota::new(SELF_SET_LIMITS),
            slot_owners: BTreeMap::new(),
            runs: Vec::new(),
            explanations: BTreeMap::new(),
        };
        for account in oom.accounts().ledger().accounts() {
            let AccountId::User(uid) = account.id else { continue };
            let layers = account.layers();
            let set_by_others = [Source::Config, Source::Default, Source::Runtime];
            let set_by_others = set_by_others.iter().any(|by| layers.layer(*by).is_some());
            if layers.own().is_some() && !set_by_others {
                let owner = Owner::User(uid);
                requests.self_set.insert(owner, uid);
                requests.slot_owners.insert(uid, owner);
            }
        }
        requests
    }

    /// Handles a request. The reply to a malformed one is an error.
    pub fn answer(
        &mut self,
        oom: &mut OomManager,
        reload: &mut Reload,
        request: control::Request<Request>,
    ) -> Answer<Reply> {
        let answer = self.handle(oom, reload, request);
        answer.unwrap_or_else(|message| Answer::Now(Reply::Error { message }))
    }

    /// Replies to deferred requests that are complete.
    pub fn take_finished(&mut self, oom: &OomManager) -> Vec<(RequestId, Reply)> {
        let now_ns = monotonic_ns();
        let dying =
            |id: &u64| oom.records().get(*id).is_some_and(|why| why.outcome == Outcome::Dying);
        let over = |run: &mut Run| now_ns >= run.until_ns || !run.decisions.iter().any(dying);
        let kept = |id: &u64| oom.records().get(*id).cloned();
        let reply = |run: Run| {
            let kills = run.decisions.iter().filter_map(kept).collect();
            (run.request, Reply::OomKillerRan { kills })
        };
        self.runs.extract_if(.., over).map(reply).collect()
    }

    /// When [`take_finished`](Self::take_finished) is due.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        (!self.runs.is_empty()).then(|| monotonic_ns() + RUN_LOOK_MS * NS_PER_MS)
    }

    /// Takes a slot for a user whose only limit will be its own.
    fn take_slot(&mut self, oom: &OomManager, peer: Peer) -> Result<(), String> {
        let user = peer.uid;
        if self.slot_owners.contains_key(&user) {
            return Ok(());
        }
        let mut taken = self.self_set.take(peer.owner, user);
        if taken.is_err() {
            // A limit can also end without a request, as by a reload: its slot is returned here.
            self.drop_slots(|uid| !oom_control::is_limited(oom, AccountId::User(uid)));
            taken = self.self_set.take(peer.owner, user);
        }
        taken.map_err(|exhausted| match exhausted {
            Exhausted::Owner => format!(
                "{} has set as many limits for itself as it may: clear one (headroom limit \
                 clear USER)",
                peer.owner
            ),
            Exhausted::All => {
                "no more users can limit themselves here: ask root to set the limit".to_owned()
            }
        })?;
        self.slot_owners.insert(user, peer.owner);
        Ok(())
    }

    fn drop_slots(&mut self, gone: impl Fn(Uid) -> bool) {
        let self_set = &mut self.self_set;
        self.slot_owners.retain(|uid, owner| {
            let gone = gone(*uid);
            if gone {
                self_set.give_back(*owner, *uid);
            }
            !gone
        });
    }

    /// Cached, since many users may request the same, and each explanation scans all processes.
    fn explanation(
        &mut self,
        oom: &mut OomManager,
        account: Option<AccountId>,
    ) -> Option<Explanation> {
        let now_ns = monotonic_ns();
        let oldest_ns = now_ns.saturating_sub(EXPLANATION_MS * NS_PER_MS);
        self.explanations.retain(|_, (at_ns, _)| *at_ns >= oldest_ns);
        let mut explain = || match account {
            Some(account) => oom_control::explain(oom, account),
            None => Some(oom_control::explain_system(oom)),
        };
        self.explanations.entry(account).or_insert_with(|| (now_ns, explain())).1.clone()
    }

    /// Kills a process for each exceeded limit now. Returns the decisions.
    fn run(
        &self,
        oom: &mut OomManager,
        requester: Requester,
        account: Option<AccountRef>,
    ) -> Result<Vec<u64>, String> {
        let requested = account.map(|account| charged_account(oom, account)).transpose()?;
        let confined_to = own_account(oom, requester);
        if let (Some(requested), Requester::User(own)) = (requested, requester)
            && Some(requested) != confined_to
        {
            return Err(format!("uid {own} may not check the limit of {requested}; only root may"));
        }
        let requested = requested.or(confined_to);
        if let Some(account) = requested.filter(|account| !oom_control::is_limited(oom, *account)) {
            return Err(no_limit(account));
        }
        if self.runs.len() >= MAX_RUNS {
            return Err("too many requests of this kind are waiting: try again".to_owned());
        }
        Ok(oom_control::run(oom, requested))
    }

    fn handle(
        &mut self,
        oom: &mut OomManager,
        reload: &mut Reload,
        request: control::Request<Request>,
    ) -> Result<Answer<Reply>, String> {
        let control::Request { id, peer, body } = request;
        let request = body.map_err(|why| format!("cannot understand the request: {why}"))?;
        let requester = requester(peer);
        if matches!(
            request,
            Request::SetLimit { .. }
                | Request::ClearLimit { .. }
                | Request::SetImportance { .. }
                | Request::Reload
        ) {
            self.explanations.clear();
        }
        Ok(Answer::Now(match request {
            Request::Status => {
                let mut status = oom_control::status(oom, &reload.degraded());
                // Patterns can contain parts of command lines.
                if !peer.is_root() {
                    status.rules.clear();
                }
                Reply::Status(status)
            }
            Request::Counters => Reply::Counters(oom.records().counters().clone()),
            Request::Subscribe => {
                oom.records_mut().collect_news();
                return Ok(Answer::Subscribed(Reply::Subscribed));
            }
            Request::RunOomKiller { account } => {
                let decisions = self.run(oom, requester, account)?;
                let until_ns = monotonic_ns() + RUN_PATIENCE_MS * NS_PER_MS;
                self.runs.push(Run { request: id, decisions, until_ns });
                return Ok(Answer::Later);
            }
            Request::SetImportance { pid, importance } => {
                let pid = pid.unwrap_or(peer.pid.unsigned_abs());
                oom_control::set_importance(oom, requester, pid, importance)?;
                Reply::Done
            }
            Request::SetLimit { account, hard_bytes, soft_bytes, grace_s } => {
                let grace_s = grace(grace_s, reload);
                let limit = Limit::new(hard_bytes, soft_bytes).map_err(|e| e.to_string())?;
                self.set_limit(oom, peer, account_id(account)?, NewLimit { limit, grace_s })?;
                Reply::Done
            }
            Request::ClearLimit { account, grace_s } => {
                let grace_s = grace(grace_s, reload);
                self.clear_limit(oom, requester, account_id(account)?, grace_s)?;
                Reply::Done
            }
            Request::ReportHeldMemory { held } => {
                if requester != Requester::Root {
                    return Err("only root may report memory that it holds for others".to_owned());
                }
                oom.set_held_memory(id, held);
                Reply::Done
            }
            Request::GetLimit { account } => get_limit(oom, reload, requester, account)?,
            Request::DefaultLimits => {
                let mut limits = reload.default_limits().to_vec();
                if requester != Requester::Root {
                    limits.iter_mut().for_each(|limit| limit.members.clear());
                }
                Reply::DefaultLimits { limits }
            }
            Request::ListLimits => Reply::Limits { limits: list_limits(oom, requester) },
            Request::Explain { account } => self.explain(oom, requester, account)?,
            Request::Reload => reload_config(oom, reload, requester)?,
            Request::Why { last } => Reply::Why { records: latest(oom, requester, last) },
        }))
    }

    fn set_limit(
        &mut self,
        oom: &mut OomManager,
        peer: Peer,
        account: AccountId,
        NewLimit { limit, grace_s }: NewLimit,
    ) -> Result<(), String> {
        let slot = account == AccountId::User(peer.uid)
            && !peer.is_root()
            && !oom_control::is_limited(oom, account);
        if slot {
            self.take_slot(oom, peer)?;
        }
        let requester = requester(peer);
        let plan = oom.accounts().ledger().plan_set(account, limit, Source::Runtime, requester);
        let set = plan.map_err(|refusal| refusal.to_string()).and_then(|change| {
            let applied = oom.apply_with_grace(change, grace_s, requester);
            applied.map_err(|error| error.to_string())
        });
        if set.is_err() && slot {
            self.drop_slots(|holder| holder == peer.uid);
        }
        set
    }

    fn clear_limit(
        &mut self,
        oom: &mut OomManager,
        requester: Requester,
        account: AccountId,
        grace_s: u32,
    ) -> Result<(), String> {
        let plan = oom.accounts().ledger().plan_clear(account, requester);
        let change = plan.map_err(|refusal| refusal.to_string())?;
        let cleared = oom.apply_with_grace(change, grace_s, requester);
        if !oom_control::is_limited(oom, account) {
            self.drop_slots(|holder| account == AccountId::User(holder));
        }
        cleared.map_err(|e| e.to_string())
    }

    /// Explains which process would be killed next.
    fn explain(
        &mut self,
        oom: &mut OomManager,
        requester: Requester,
        account: Option<AccountRef>,
    ) -> Result<Reply, String> {
        let confined_to = own_account(oom, requester);
        let requested =
            account.map(|account| charged_account(oom, account)).transpose()?.or(confined_to);
        if let (Some(account), Requester::User(own)) = (requested, requester)
            && Some(account) != confined_to
        {
            let owner = match account {
                AccountId::Cgroup(_) => "a cgroup".to_owned(),
                account => account.to_string(),
            };
            return Err(format!("uid {own} may not see the processes of {owner}; only root may"));
        }
        let missing = || requested.map(no_limit).unwrap_or_default();
        self.explanation(oom, requested).map(Reply::Explained).ok_or_else(missing)
    }
}

fn requester(peer: Peer) -> Requester {
    if peer.is_root() { Requester::Root } else { Requester::User(peer.uid) }
}

/// The grace of a request, seconds.
fn grace(requested_s: Option<u32>, reload: &Reload) -> u32 {
    requested_s.unwrap_or(reload.grace_s()).min(MAX_GRACE_S)
}

/// The limit that applies to a user, with or without a process.
fn get_limit(
    oom: &mut OomManager,
    reload: &mut Reload,
    requester: Requester,
    account: AccountRef,
) -> Result<Reply, String> {
    let AccountId::User(uid) = account_id(account)? else {
        return Err("only the limit of a user can be requested by itself".to_owned());
    };
    if let Requester::User(own) = requester
        && own != uid
    {
        return Err(format!("uid {own} may not see the limit of uid {uid}; only root may"));
    }
    // A group may have a limit for it.
    reload.look_up_groups_of(uid);
    let charged = oom.accounts().ledger().groups().account_of(uid);
    let mut limits = oom_control::limits(oom, Some(charged));
    if limits.is_empty() {
        limits.extend(oom_control::default_limit_of(oom, uid));
    }
    Ok(Reply::Limits { limits })
}

fn list_limits(oom: &mut OomManager, requester: Requester) -> Vec<UserLimit> {
    let confined_to = own_account(oom, requester);
    let mut limits = oom_control::limits(oom, confined_to);
    let owner = match requester {
        Requester::Root => None,
        Requester::User(user) => Some(user),
    };
    limits.extend(oom_control::cgroup_limits(oom, owner));
    limits
}

fn reload_config(
    oom: &mut OomManager,
    reload: &mut Reload,
    requester: Requester,
) -> Result<Reply, String> {
    if requester != Requester::Root {
        return Err("only root may reload the configuration".to_owned());
    }
    reload.reload(oom).map(Reply::Reloaded)
}

/// The latest decisions that the requester may see.
fn latest(oom: &OomManager, requester: Requester, last: u32) -> Vec<Why> {
    let of = match requester {
        Requester::Root => None,
        // Kills for the system or a cgroup are recorded for the victim's user, not for its group.
        Requester::User(user) => {
            let account = oom.accounts().ledger().groups().account_of(user);
            Some([AccountId::User(user), account].map(to_ref))
        }
    };
    let mut records = oom.records().latest(last, of.as_ref().map(|of| &of[..]));
    if let Requester::User(user) = requester {
        records.iter_mut().for_each(|why| why.hide_details_from(user));
    }
    records
}

/// The account that a requester is confined to: the group's for a user that shares a limit.
fn own_account(oom: &OomManager, requester: Requester) -> Option<AccountId> {
    match requester {
        Requester::Root => None,
        Requester::User(user) => Some(oom.accounts().ledger().groups().account_of(user)),
    }
}

fn account_id(account: AccountRef) -> Result<AccountId, String> {
    of_ref(account).ok_or_else(|| format!("{} is no {:?}'s number", account.uid, account.kind))
}

/// The account that a request refers to: the group's for a user that shares a limit.
fn charged_account(oom: &OomManager, account: AccountRef) -> Result<AccountId, String> {
    Ok(match account_id(account)? {
        AccountId::User(user) => oom.accounts().ledger().groups().account_of(user),
        shared => shared,
    })
}

fn no_limit(account: AccountId) -> String {
    format!("{account} has no limit, so there is nothing to check")
}
