//! `headroom limit`: users' limits.

use std::fmt::Write;
use std::path::Path;

use anyhow::ensure;
use control::oomd::{Reply, Request, UserLimit};
use machine_memory::Meminfo;
use serde_json::json;

use crate::arguments::{Globals, LimitCommand};
use crate::helpers::client::{call_oomd, unexpected};
use crate::helpers::output;
use crate::helpers::size::{Amount, Size};
use crate::helpers::user::{self, User};
use crate::helpers::visibility::Visibility;

/// Runs the command.
pub fn limit(globals: &Globals, command: &LimitCommand) -> anyhow::Result<()> {
    match command {
        LimitCommand::Set { user, size, soft } => set(globals, user, size, soft.as_ref()),
        LimitCommand::Get { user } => get(globals, user),
        LimitCommand::List => {
            let limits = limits(globals)?;
            output::print_as(globals.format(), &json!({ "limits": limits }), || {
                if limits.is_empty() {
                    return format!("{}\n", Visibility::ours().no_limit());
                }
                table(&limits)
            })
        }
        LimitCommand::Clear { user } => {
            let account = user.account(&globals.oomd_socket)?;
            done(globals, &Request::ClearLimit { account })?;
            let limit = limits(globals)?.into_iter().find(|limit| user.has(limit));
            let document = json!({ "limit": limit });
            output::print_as(globals.format(), &document, || cleared(user, limit.as_ref()))
        }
    }
}

fn set(globals: &Globals, user: &User, hard: &Amount, soft: Option<&Amount>) -> anyhow::Result<()> {
    let machine_bytes = Meminfo::read(Path::new("/proc"))?.total.unwrap_or(0);
    let hard = hard.of(machine_bytes)?;
    let soft = soft.map(|soft| soft.of(hard.0)).transpose()?;
    ensure!(
        hard.0 > 0,
        "a limit of 0 would kill every process; to remove the limit: headroom limit clear {user}"
    );
    if let Some(soft) = soft {
        ensure!(soft <= hard, "the soft limit ({soft}) is above the hard limit ({hard})");
    }
    let account = user.account(&globals.oomd_socket)?;
    let soft_bytes = soft.map(|soft| soft.0);
    let request = Request::SetLimit { account, hard_bytes: hard.0, soft_bytes };
    done(globals, &request)?;
    get(globals, user)
}

fn get(globals: &Globals, user: &User) -> anyhow::Result<()> {
    let limit = limits(globals)?.into_iter().find(|limit| user.has(limit));
    if limit.is_none() {
        // Accounts of users exist without a limit; groups and cgroups exist only with one.
        user.account(&globals.oomd_socket)?;
        let hidden = match (Visibility::ours(), user) {
            (Visibility::Own(us), User::Uid(uid)) => us != *uid,
            _ => false,
        };
        ensure!(!hidden, "the limit of {user} is visible to {user} and root only");
    }
    output::print_as(globals.format(), &json!({ "limit": limit }), || match &limit {
        Some(limit) => table(std::slice::from_ref(limit)),
        None => format!("{user} has no limit\n"),
    })
}

/// When a limit is cleared, other limits of the user take effect.
fn cleared(user: &User, limit: Option<&UserLimit>) -> String {
    match limit {
        Some(limit) => {
            let (hard, source) = (Size(limit.hard_bytes), &limit.source);
            format!("{user} has a limit of {hard} still, which another source has set: {source}\n")
        }
        None => format!("{user} has no limit\n"),
    }
}

fn limits(globals: &Globals) -> anyhow::Result<Vec<UserLimit>> {
    match call_oomd(&globals.oomd_socket, &Request::ListLimits)? {
        Reply::Limits { limits } => Ok(limits),
        reply => Err(unexpected(&reply)),
    }
}

fn done(globals: &Globals, request: &Request) -> anyhow::Result<()> {
    match call_oomd(&globals.oomd_socket, request)? {
        Reply::Done => Ok(()),
        reply => Err(unexpected(&reply)),
    }
}

fn table(limits: &[UserLimit]) -> String {
    let name = |it: &UserLimit| user::owner(it.account, it.group.as_deref(), it.cgroup.as_deref());
    let names: Vec<String> = limits.iter().map(name).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:<width$}  {:>11}  {:>11}  {:>11}  {:>6}  FROM\n",
        "USER", "LIMIT", "SOFT", "USED", ""
    );
    for (name, limit) in names.iter().zip(limits) {
        let _ = write!(
            text,
            "{name:<width$}  {:>11}  {:>11}  {:>11}  {:>6}  {}",
            Size(limit.hard_bytes),
            Size(limit.soft_bytes),
            Size(limit.used_bytes),
            percent(limit.used_bytes, limit.hard_bytes),
            limit.source,
        );
        if limit.dying_bytes > 0 {
            let _ = write!(text, "  ({} of it dying)", Size(limit.dying_bytes));
        }
        if limit.leased_bytes > 0 {
            let holders = output::count(limit.leaseholders, "process", "processes");
            let _ = write!(text, "  ({} leased to {holders})", Size(limit.leased_bytes));
        }
        if !limit.counts.is_empty() {
            let _ = write!(text, "  (of {})", limit.counts.join(", "));
        }
        if limit.group.is_some() {
            let users = output::count(limit.members.len() as u32, "user", "users");
            let _ = write!(text, "  ({users} together)");
        }
        text.push('\n');
    }
    text
}

// `40.0%`.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use control::Uid;
    use control::oomd::AccountRef;

    use super::*;

    #[test]
    fn the_table_shows_headroom_and_kills_in_flight() {
        let limit = UserLimit {
            account: AccountRef::user(Uid(4_000_000_000)),
            group: None,
            cgroup: None,
            members: Vec::new(),
            counts: Vec::new(),
            hard_bytes: 256 << 20,
            soft_bytes: 230 << 20,
            used_bytes: 128 << 20,
            dying_bytes: 64 << 20,
            peak_bytes: 130 << 20,
            usage_source: None,
            leased_bytes: 32 << 20,
            leaseholders: 3,
            source: "runtime".into(),
        };
        let text = table(std::slice::from_ref(&limit));
        for part in [
            "4000000000",
            "256.0 MiB",
            "230.0 MiB",
            "128.0 MiB",
            "50.0%",
            "runtime",
            "64.0 MiB of it",
            "32.0 MiB leased to 3 processes",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let group = Some("students".to_owned());
        let text = table(&[UserLimit {
            group,
            members: vec![Uid(7), Uid(8)],
            counts: vec!["file".into()],
            ..limit.clone()
        }]);
        assert!(
            text.contains("@students") && text.contains("(of file)  (2 users together)"),
            "{text}"
        );
        assert!(!text.contains("4000000000"), "{text}");
        let of_cgroup = UserLimit { cgroup: Some("/a/ci.service".into()), ..limit };
        let text = table(&[of_cgroup]);
        assert!(text.contains("/a/ci.service") && !text.contains("together"), "{text}");
    }

    #[test]
    fn percentages_survive_extreme_numbers() {
        assert_eq!(percent(u64::MAX, 1), "1844674407370955161500.0%");
        assert_eq!(percent(1, 0), "-");
    }
}
