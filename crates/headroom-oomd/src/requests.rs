//! What the control socket is asked, and who may ask it.

use control::Peer;
use control::oomd::{AccountRef, Reply, Request};
use memory_ledger::{AccountId, Asker, Limit, Source, Uid};

use crate::account_ref::{of_ref, to_ref};
use crate::oom::{OomManager, Reconfigured, control as oom_control};
use crate::reload::Reload;

/// How long the answer to "run the killer" waits for the victims' memory, nanoseconds. The socket
/// serves nobody else meanwhile; limits are enforced all the same.
const RUN_PATIENCE_NS: u64 = 500_000_000;

/// Answers a request, or the complaint about one that cannot be understood.
pub fn answer(
    oom: &mut OomManager,
    reload: &mut Reload,
    peer: Peer,
    request: Result<Request, String>,
) -> Reply {
    let done = match request {
        Ok(request) => obey(oom, reload, peer, request),
        Err(complaint) => Err(format!("cannot understand the request: {complaint}")),
    };
    done.unwrap_or_else(|message| Reply::Error { message })
}

fn obey(
    oom: &mut OomManager,
    reload: &mut Reload,
    peer: Peer,
    request: Request,
) -> Result<Reply, String> {
    let user = Uid(peer.uid);
    let asker = if peer.is_root() { Asker::Root } else { Asker::User(user) };
    // Who shares a limit sees, and asks, as one of its group.
    let only =
        if peer.is_root() { None } else { Some(oom.accounts().ledger().groups().account_of(user)) };
    match request {
        Request::Status => Ok(Reply::Status(oom_control::status(oom, &reload.degraded()))),
        Request::Subscribe => {
            oom.records_mut().collect_news(true);
            Ok(Reply::Subscribed)
        }
        Request::SetImportance { pid, importance } => {
            let pid = pid.unwrap_or(peer.pid.unsigned_abs());
            oom_control::set_importance(oom, asker, pid, importance).map(|()| Reply::Done)
        }
        Request::Counters => Ok(Reply::Counters(oom.records().counters().clone())),
        Request::SetLimit { account, hard_bytes, soft_bytes } => {
            let account = known(account)?;
            let soft_bytes = soft_bytes.or_else(|| oom.accounts().soft_bytes(hard_bytes));
            let limit = Limit::new(hard_bytes, soft_bytes).map_err(|e| e.to_string())?;
            oom.set_limit(account, limit, Source::Runtime, asker)
                .map(|()| Reply::Done)
                .map_err(|e| e.to_string())
        }
        Request::ClearLimit { account } => {
            let cleared = oom.clear_limit(known(account)?, asker);
            cleared.map(|()| Reply::Done).map_err(|e| e.to_string())
        }
        Request::ListLimits => {
            let mut limits = oom_control::limits(oom.accounts_mut(), only);
            limits.extend(oom_control::cgroup_limits(oom, only.map(|_| user)));
            Ok(Reply::Limits { limits })
        }
        Request::RunOomKiller { account } => {
            let wanted = account.map(|account| payer(oom, account)).transpose()?;
            if let (Some(wanted), Asker::User(own)) = (wanted, asker)
                && Some(wanted) != only
            {
                return Err(format!(
                    "uid {own} may not run the killer for {wanted}; only root may"
                ));
            }
            let wanted = wanted.or(only);
            if let Some(account) = wanted.filter(|account| !oom_control::is_limited(oom, *account))
            {
                return Err(no_limit(account));
            }
            let decisions = oom_control::run(oom, wanted);
            oom.wait_for(&decisions, RUN_PATIENCE_NS);
            let kept = |id: &u64| oom.records().get(*id).cloned();
            Ok(Reply::Ran { kills: decisions.iter().filter_map(kept).collect() })
        }
        Request::Explain { account } => {
            let wanted = account.map(|account| payer(oom, account)).transpose()?;
            let Some(account) = wanted.or(only) else {
                return Ok(Reply::Explained(oom_control::explain_system(oom)));
            };
            if let Asker::User(own) = asker
                && Some(account) != only
            {
                let whose = match account {
                    AccountId::Cgroup(_) => "a cgroup".to_owned(),
                    account => account.to_string(),
                };
                return Err(format!("uid {own} may not look into the processes of {whose}"));
            }
            let explained = oom_control::explain(oom, account);
            explained.map(Reply::Explained).ok_or_else(|| no_limit(account))
        }
        Request::Reload if !peer.is_root() => {
            Err("only root may have the configuration read anew".to_owned())
        }
        Request::Reload => {
            let Reconfigured { changes, problems } = reload.reload(oom)?;
            Ok(Reply::Reloaded { changes, problems })
        }
        Request::Why { last } => {
            // What was decided for the machine's sake is about the user itself.
            let of = only.map(|account| [AccountRef::user(peer.uid), to_ref(account)]);
            let records = oom.records().latest(last, of.as_ref().map(|of| &of[..]));
            Ok(Reply::Why { records })
        }
    }
}

fn known(account: AccountRef) -> Result<AccountId, String> {
    of_ref(account).ok_or_else(|| format!("{} is no {:?}'s number", account.uid, account.kind))
}

/// The account that a request is about: of a user who shares a limit, the group's.
fn payer(oom: &OomManager, account: AccountRef) -> Result<AccountId, String> {
    Ok(match known(account)? {
        AccountId::User(user) => oom.accounts().ledger().groups().account_of(user),
        shared => shared,
    })
}

fn no_limit(account: AccountId) -> String {
    format!("{account} has no limit, so there is nothing it could break")
}
