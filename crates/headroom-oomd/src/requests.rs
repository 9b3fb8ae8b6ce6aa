//! What the control socket is asked, and who may ask it.

use control::Peer;
use control::oomd::{Reply, Request};
use memory_ledger::{Asker, Limit, Source, is_cgroup};

use crate::killer::Killer;
use crate::reload::Reload;

/// How long the answer to "run the killer" waits for the victims' memory, nanoseconds. The socket
/// serves nobody else meanwhile; limits are enforced all the same.
const RUN_PATIENCE_NS: u64 = 500_000_000;

/// Answers a request, or the complaint about one that cannot be understood.
pub fn answer(
    killer: &mut Killer,
    reload: &mut Reload,
    peer: Peer,
    request: Result<Request, String>,
) -> Reply {
    let done = match request {
        Ok(request) => obey(killer, reload, peer, request),
        Err(complaint) => Err(format!("cannot understand the request: {complaint}")),
    };
    done.unwrap_or_else(|message| Reply::Error { message })
}

fn obey(
    killer: &mut Killer,
    reload: &mut Reload,
    peer: Peer,
    request: Request,
) -> Result<Reply, String> {
    let asker = if peer.is_root() { Asker::Root } else { Asker::User(peer.uid) };
    // Who shares a limit sees, and asks, as one of its group.
    let only = if peer.is_root() { None } else { Some(killer.account_of(peer.uid)) };
    match request {
        Request::Status => Ok(Reply::Status(killer.status(&reload.degraded()))),
        Request::Subscribe => {
            killer.records_mut().collect_news(true);
            Ok(Reply::Subscribed)
        }
        Request::SetImportance { pid, importance } => {
            let pid = pid.unwrap_or(peer.pid.unsigned_abs());
            killer.set_importance(asker, pid, importance).map(|()| Reply::Done)
        }
        Request::Counters => Ok(Reply::Counters(killer.records().counters().clone())),
        Request::SetLimit { uid, hard_bytes, soft_bytes } => {
            let soft_bytes = soft_bytes.or_else(|| killer.soft_bytes(hard_bytes));
            let limit = Limit::new(hard_bytes, soft_bytes).map_err(|e| e.to_string())?;
            killer
                .set_limit(uid, limit, Source::Runtime, asker)
                .map(|()| Reply::Done)
                .map_err(|e| e.to_string())
        }
        Request::ClearLimit { uid } => {
            killer.clear_limit(uid, asker).map(|()| Reply::Done).map_err(|e| e.to_string())
        }
        Request::ListLimits => {
            let mut limits = killer.limits(only);
            limits.extend(killer.cgroup_limits(only.map(|_| peer.uid)));
            Ok(Reply::Limits { limits })
        }
        Request::RunOomKiller { uid } => {
            let uid = uid.map(|uid| killer.account_of(uid));
            if let (Some(uid), Asker::User(own)) = (uid, asker)
                && Some(uid) != only
            {
                return Err(format!(
                    "uid {own} may not run the killer for uid {uid}; only root may"
                ));
            }
            let uid = uid.or(only);
            if let Some(uid) = uid.filter(|uid| !killer.is_limited(*uid)) {
                return Err(format!("uid {uid} has no limit, so there is nothing it could break"));
            }
            let decisions = killer.run(uid);
            killer.settle(&decisions, RUN_PATIENCE_NS);
            let kept = |id: &u64| killer.records().get(*id).cloned();
            Ok(Reply::Ran { kills: decisions.iter().filter_map(kept).collect() })
        }
        Request::Explain { uid } => {
            let Some(uid) = uid.map(|uid| killer.account_of(uid)).or(only) else {
                return killer.explain_next(None).map(Reply::Explained).ok_or_else(String::new);
            };
            if let Asker::User(own) = asker
                && Some(uid) != only
            {
                let whose = match is_cgroup(uid) {
                    true => "a cgroup".to_owned(),
                    false => format!("uid {uid}"),
                };
                return Err(format!("uid {own} may not look into the processes of {whose}"));
            }
            let explained = killer.explain_next(Some(uid));
            let missing = || format!("uid {uid} has no limit, so there is nothing it could break");
            explained.map(Reply::Explained).ok_or_else(missing)
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
    }
}
