//! Status of each daemon in one line.

use control::{binderd, oomd};

use super::client::BUFFER_PAGE;
use super::output::{count, printable};
use super::size::Size;

/// `headroom-binderd` in a line.
pub fn binderd_line(s: &binderd::Status) -> String {
    let mut line = format!(
        "serves {} on {} (mapping: {}, pid {}): {}, {}; {} in buffers, {} of it idle; \
         largest owner: {} of {}",
        count(s.devices, "device", "devices"),
        printable(&s.mount),
        s.mapping,
        s.pid,
        count(s.processes, "process", "processes"),
        count(s.transactions, "transaction", "transactions"),
        Size(s.touched_pages * BUFFER_PAGE),
        Size(s.idle_pages * BUFFER_PAGE),
        Size(s.largest_owner_bytes),
        Size(s.owner_quota_bytes),
    );
    if s.rings > 0 {
        line += &format!("; {} over rings", count(s.rings, "thread calls", "threads call"));
    }
    line
}

/// `headroom-oomd` in a line.
pub fn oomd_line(s: &oomd::Status) -> String {
    let attached = if s.attached { "attached" } else { "detached: no user has a limit" };
    let mut line = format!(
        "watches memory (notifier: {}, {attached}, pid {}): {}, {}, {} given back by others",
        s.notifier,
        s.pid,
        count(s.limited_users, "limited user", "limited users"),
        count(s.kills, "kill", "kills"),
        Size(s.given_back_bytes),
    );
    if s.limited_cgroups > 0 {
        line += &format!("; {}", count(s.limited_cgroups, "limited cgroup", "limited cgroups"));
    }
    for (source, users) in &s.usage_sources {
        let measured = count(*users, "user", "users");
        line += &format!("; usage of {measured} by {}", printable(source));
    }
    if s.leaseholders > 0 || s.refused > 0 {
        let holders = count(s.leaseholders, "process leases", "processes lease");
        let refusals = count(s.refused, "request", "requests");
        line += &format!("; {holders} memory, {refusals} refused");
    }
    line
}
