//! What the control socket is asked, and who may ask it.

use std::collections::BTreeMap;

use control::oomd::{Explanation, Outcome, Reply, Request};
use control::{Answer, Peer, RequestId};
use memory_ledger::{Asker, Limit, Source, is_cgroup};
use owners::{Exhausted, Owner, Quota, QuotaSize, Uid};

use crate::clock::{NS_PER_MS, monotonic_ns};
use crate::killer::Killer;
use crate::reload::Reload;

/// How long the answer to "run the killer" waits for the victims' memory, milliseconds.
const RUN_PATIENCE_MS: u64 = 500;
/// How often it is looked whether that memory is back, milliseconds.
const RUN_LOOK_MS: u64 = 5;
/// Requests of that kind whose answers may wait at a time: one a connection is as many as there can be.
const MAX_RUNS: usize = 64;
/// For so long an explanation is given again to others who ask the same, milliseconds.
const EXPLANATION_MS: u64 = 50;
/// Limits that users set for themselves, for which nobody else has set one. Each takes one of the slots in the notifier's
/// map (1,024); what is left is for root and the configuration.
const SELF_SET_LIMITS: QuotaSize = QuotaSize { slots: 256, reserved: 0, of_an_owner: 16 };

/// What is remembered between requests.
pub struct Requests {
    /// Whose slots the limits are that users have set for themselves.
    self_set: Quota,
    holders: BTreeMap<u32, Owner>,
    runs: Vec<Run>,
    /// By account; `None`: the machine.
    explanations: BTreeMap<Option<u32>, (u64, Option<Explanation>)>,
}

/// A request to run the killer, which is answered when the victims' memory is back.
struct Run {
    request: RequestId,
    decisions: Vec<u64>,
    until_ns: u64,
}

impl Requests {
    /// Counts the limits that users had set for themselves before this daemon was started. Whose uids these are is
    /// not known any more: each counts as an owner.
    pub fn inherit(killer: &Killer) -> Self {
        let mut requests = Self {
            self_set: Quota::new(SELF_SET_LIMITS),
            holders: BTreeMap::new(),
            runs: Vec::new(),
            explanations: BTreeMap::new(),
        };
        for account in killer.ledger().accounts() {
            let layers = account.layers();
            let set_by_others = [Source::Config, Source::Everyone, Source::Runtime];
            let set_by_others = set_by_others.iter().any(|by| layers.layer(*by).is_some());
            if layers.own().is_some() && !set_by_others {
                let owner = Owner::User(Uid(account.uid));
                requests.self_set.insert(owner, Uid(account.uid));
                requests.holders.insert(account.uid, owner);
            }
        }
        requests
    }

    /// Answers a request, or the complaint about one that cannot be understood.
    pub fn answer(
        &mut self,
        killer: &mut Killer,
        reload: &mut Reload,
        request: control::Request<Request>,
    ) -> Answer<Reply> {
        let answer = self.obey(killer, reload, request);
        answer.unwrap_or_else(|message| Answer::Now(Reply::Error { message }))
    }

    /// Answers of requests that had to wait, to be sent now.
    pub fn ended(&mut self, killer: &Killer) -> Vec<(RequestId, Reply)> {
        let now_ns = monotonic_ns();
        let dying =
            |id: &u64| killer.records().get(*id).is_some_and(|why| why.outcome == Outcome::Dying);
        let over = |run: &mut Run| now_ns >= run.until_ns || !run.decisions.iter().any(dying);
        let kept = |id: &u64| killer.records().get(*id).cloned();
        let reply = |run: Run| {
            let kills = run.decisions.iter().filter_map(kept).collect();
            (run.request, Reply::Ran { kills })
        };
        self.runs.extract_if(.., over).map(reply).collect()
    }

    /// When [`ended`](Self::ended) is due.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        (!self.runs.is_empty()).then(|| monotonic_ns() + RUN_LOOK_MS * NS_PER_MS)
    }

    /// A user is about to have a limit that only itself has set.
    fn take_slot(&mut self, killer: &Killer, peer: Peer) -> Result<(), String> {
        if self.holders.contains_key(&peer.uid) {
            return Ok(());
        }
        let mut taken = self.self_set.take(peer.owner, Uid(peer.uid));
        if taken.is_err() {
            // Limits end in other ways than by a request of their user.
            self.drop_slots(|uid| !killer.is_limited(uid));
            taken = self.self_set.take(peer.owner, Uid(peer.uid));
        }
        taken.map_err(|exhausted| match exhausted {
            Exhausted::Owner => format!(
                "{} has set as many limits for itself as it may: clear one (headroom limit clear)",
                peer.owner
            ),
            Exhausted::All => {
                "no more users can limit themselves here: ask root to set the limit".to_owned()
            }
        })?;
        self.holders.insert(peer.uid, peer.owner);
        Ok(())
    }

    fn drop_slots(&mut self, gone: impl Fn(u32) -> bool) {
        let self_set = &mut self.self_set;
        self.holders.retain(|uid, owner| {
            let gone = gone(*uid);
            if gone {
                self_set.give_back(*owner, Uid(*uid));
            }
            !gone
        });
    }

    /// Who would be killed next. Many ask for the same, and each answer takes a look at all processes.
    fn explain(&mut self, killer: &mut Killer, account: Option<u32>) -> Option<Explanation> {
        let now_ns = monotonic_ns();
        let oldest_ns = now_ns.saturating_sub(EXPLANATION_MS * NS_PER_MS);
        self.explanations.retain(|_, (at_ns, _)| *at_ns >= oldest_ns);
        let explained = self.explanations.entry(account);
        explained.or_insert_with(|| (now_ns, killer.explain_next(account))).1.clone()
    }

    /// Looks now, and kills where a limit is broken. Returns the decisions.
    fn run(&self, killer: &mut Killer, peer: Peer, uid: Option<u32>) -> Result<Vec<u64>, String> {
        let only = (!peer.is_root()).then(|| killer.account_of(peer.uid));
        let uid = uid.map(|uid| killer.account_of(uid)).or(only);
        if only.is_some() && uid != only {
            let (own, other) = (peer.uid, uid.unwrap_or_default());
            return Err(format!("uid {own} may not run the killer for uid {other}; only root may"));
        }
        if let Some(uid) = uid.filter(|uid| !killer.is_limited(*uid)) {
            return Err(format!("uid {uid} has no limit, so there is nothing it could break"));
        }
        if self.runs.len() >= MAX_RUNS {
            return Err("too many requests of this kind are waiting: try again".to_owned());
        }
        Ok(killer.run(uid))
    }

    fn obey(
        &mut self,
        killer: &mut Killer,
        reload: &mut Reload,
        request: control::Request<Request>,
    ) -> Result<Answer<Reply>, String> {
        let control::Request { id, peer, body } = request;
        let request = body.map_err(|why| format!("cannot understand the request: {why}"))?;
        let asker = if peer.is_root() { Asker::Root } else { Asker::User(peer.uid) };
        // Who shares a limit sees, and asks, as one of its group.
        let only = if peer.is_root() { None } else { Some(killer.account_of(peer.uid)) };
        if matches!(
            request,
            Request::SetLimit { .. }
                | Request::ClearLimit { .. }
                | Request::SetImportance { .. }
                | Request::Reload
        ) {
            self.explanations.clear();
        }
        let reply = match request {
            Request::Status => Ok(Reply::Status(killer.status(&reload.degraded()))),
            Request::Subscribe => {
                killer.records_mut().collect_news(true);
                return Ok(Answer::Subscribed(Reply::Subscribed));
            }
            Request::SetImportance { pid, importance } => {
                let pid = pid.unwrap_or(peer.pid.unsigned_abs());
                killer.set_importance(asker, pid, importance).map(|()| Reply::Done)
            }
            Request::Counters => Ok(Reply::Counters(killer.records().counters().clone())),
            Request::SetLimit { uid, hard_bytes, soft_bytes } => {
                let soft_bytes = soft_bytes.or_else(|| killer.soft_bytes(hard_bytes));
                let limit = Limit::new(hard_bytes, soft_bytes).map_err(|e| e.to_string())?;
                let slot = uid == peer.uid && !peer.is_root() && !killer.is_limited(uid);
                if slot {
                    self.take_slot(killer, peer)?;
                }
                let set = killer.set_limit(uid, limit, Source::Runtime, asker);
                if set.is_err() && slot {
                    self.drop_slots(|holder| holder == uid);
                }
                set.map(|()| Reply::Done).map_err(|e| e.to_string())
            }
            Request::ClearLimit { uid } => {
                let cleared = killer.clear_limit(uid, asker);
                if !killer.is_limited(uid) {
                    self.drop_slots(|holder| holder == uid);
                }
                cleared.map(|()| Reply::Done).map_err(|e| e.to_string())
            }
            Request::ListLimits => {
                let mut limits = killer.limits(only);
                limits.extend(killer.cgroup_limits(only.map(|_| peer.uid)));
                Ok(Reply::Limits { limits })
            }
            Request::RunOomKiller { uid } => {
                let decisions = self.run(killer, peer, uid)?;
                let until_ns = monotonic_ns() + RUN_PATIENCE_MS * NS_PER_MS;
                self.runs.push(Run { request: id, decisions, until_ns });
                return Ok(Answer::Later);
            }
            Request::Explain { uid } => {
                let account = uid.map(|uid| killer.account_of(uid)).or(only);
                if only.is_some() && account != only {
                    let whose = match account {
                        Some(account) if !is_cgroup(account) => format!("uid {account}"),
                        _ => "a cgroup".to_owned(),
                    };
                    let own = peer.uid;
                    return Err(format!("uid {own} may not look into the processes of {whose}"));
                }
                let missing = || match account {
                    Some(uid) => {
                        format!("uid {uid} has no limit, so there is nothing it could break")
                    }
                    None => String::new(),
                };
                self.explain(killer, account).map(Reply::Explained).ok_or_else(missing)
            }
            Request::Reload if !peer.is_root() => {
                Err("only root may have the configuration read anew".to_owned())
            }
            Request::Reload => {
                let (changes, problems) = reload.reload(killer)?;
                Ok(Reply::Reloaded { changes, problems })
            }
            Request::Why { last } => {
                // What was decided for the machine's sake is about the user itself.
                let of = only.map(|account| [peer.uid, account]);
                let records = killer.records().latest(last, of.as_ref().map(|of| &of[..]));
                Ok(Reply::Why { records })
            }
        };
        reply.map(Answer::Now)
    }
}
