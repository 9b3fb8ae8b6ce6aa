//! Counters of both daemons, in the text format of Prometheus (version 0.0.4).
//!
//! The counters are queried over the control sockets, as by any other client: by `headroom
//! metrics`, and by the thread of `headroom-oomd` that writes the file and serves the socket. So
//! the format is implemented once, and no daemon's event loop waits for a disk or a scraper.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::oomd::{Counters, Histogram, UserLimit};
use crate::{Client, ControlError, Uid, binderd, oomd};

/// Replies of each daemon, or the reason why there are none.
#[derive(Debug, Serialize)]
pub struct Sources {
    /// Of `headroom-oomd`.
    pub oomd: Result<Oomd, String>,
    /// Of `headroom-binderd`.
    pub binderd: Result<Binderd, String>,
}

/// Replies of `headroom-oomd`.
#[derive(Debug, Serialize)]
pub struct Oomd {
    /// To [`oomd::Request::Status`].
    pub status: oomd::Status,
    /// To [`oomd::Request::ListLimits`].
    pub limits: Vec<UserLimit>,
    /// To [`oomd::Request::Counters`].
    pub counters: Counters,
}

/// Replies of `headroom-binderd`.
#[derive(Debug, Serialize)]
pub struct Binderd {
    /// To [`binderd::Request::Status`].
    pub status: binderd::Status,
    /// Commands and returns by name; `None`: the daemon reports them to root only.
    pub counts: Option<Counts>,
}

/// Commands, and returns, by name.
pub type Counts = (Vec<(String, u32)>, Vec<(String, u32)>);

/// Queries both daemons.
pub fn collect(oomd_socket: &Path, binderd_socket: &Path) -> Sources {
    let reason = |error: ControlError| error.to_string();
    Sources {
        oomd: query_oomd(oomd_socket).map_err(reason),
        binderd: query_binderd(binderd_socket).map_err(reason),
    }
}

/// The error for a reply that does not match the request.
fn unexpected<R>(path: &Path) -> Result<R, ControlError> {
    let error = "it does not belong to the request".to_owned();
    Err(ControlError::Garbled { path: path.to_owned(), error })
}

fn query_oomd(path: &Path) -> Result<Oomd, ControlError> {
    let mut client = Client::connect(path)?;
    let oomd::Reply::Status(status) = client.call(&oomd::Request::Status)? else {
        return unexpected(path);
    };
    let oomd::Reply::Limits { limits } = client.call(&oomd::Request::ListLimits)? else {
        return unexpected(path);
    };
    let oomd::Reply::Counters(counters) = client.call(&oomd::Request::Counters)? else {
        return unexpected(path);
    };
    Ok(Oomd { status, limits, counters })
}

fn query_binderd(path: &Path) -> Result<Binderd, ControlError> {
    let mut client = Client::connect(path)?;
    match client.call(&binderd::Request::Stat)? {
        binderd::Reply::Stat(binderd::Stat { commands, returns, status }) => {
            Ok(Binderd { status, counts: Some((commands, returns)) })
        }
        _ => match client.call(&binderd::Request::Status)? {
            binderd::Reply::Status(status) => Ok(Binderd { status, counts: None }),
            _ => unexpected(path),
        },
    }
}

/// Name of a user; `None`: it has none.
pub type NameOf = fn(Uid) -> Option<String>;

/// Renders the text. With `names`, samples of users have a label `user` beside `uid`.
pub fn text(sources: &Sources, names: Option<NameOf>) -> String {
    let mut page = Page::default();
    for (name, lost) in
        [("oomd", sources.oomd.as_ref().err()), ("binderd", sources.binderd.as_ref().err())]
    {
        if let Some(lost) = lost {
            let _ = writeln!(page.text, "# headroom-{name}: {}", lost.replace('\n', " "));
        }
    }
    page.family("headroom_up", "gauge", "Whether the daemon answers.");
    page.sample("headroom_up", &[("daemon", "oomd")], u64::from(sources.oomd.is_ok()));
    page.sample("headroom_up", &[("daemon", "binderd")], u64::from(sources.binderd.is_ok()));
    if let Ok(state) = &sources.oomd {
        write_oomd(&mut page, state, names);
    }
    if let Ok(state) = &sources.binderd {
        write_binderd(&mut page, state);
    }
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// Writes the header of a family, which precedes all of its samples.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"{}\"", escaped(value));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A family with one sample.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut sum = 0;
        for (bound_us, count) in histogram.bounds_us.iter().zip(&histogram.counts) {
            sum += count;
            self.sample(&bucket, &[("le", &seconds(*bound_us))], sum);
        }
        self.sample(&bucket, &[("le", "+Inf")], histogram.all());
        self.sample(&format!("{name}_sum"), &[], seconds(histogram.sum_us));
        self.sample(&format!("{name}_count"), &[], histogram.all());
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Microseconds as decimal seconds, without rounding.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn write_oomd(page: &mut Page, state: &Oomd, names: Option<NameOf>) {
    let Oomd { status, limits, counters } = state;
    let name = "headroom_oomd_info";
    page.family(name, "gauge", "The daemon's version, and how it watches memory.");
    page.sample(name, &[("version", &status.version), ("notifier", &status.notifier)], 1);
    page.one(
        "headroom_oomd_degradations",
        "gauge",
        "Missing capabilities; headroom status lists them.",
        status.degraded.len() as u64,
    );
    page.one("headroom_limited_users", "gauge", "Users with a limit.", status.limited_users.into());
    let cgroups = status.limited_cgroups.into();
    page.one("headroom_limited_cgroups", "gauge", "Cgroups and sessions with a limit.", cgroups);
    let (of_cgroups, of_users): (Vec<_>, Vec<_>) =
        limits.iter().partition(|limit| limit.cgroup.is_some());
    write_users(page, &of_users, names);
    write_cgroups(page, &of_cgroups);
    write_kills(page, counters);
    page.one(
        "headroom_idle_memory_returned_bytes_total",
        "counter",
        "Idle memory that other daemons returned on request.",
        status.given_back_bytes,
    );
    page.one(
        "headroom_leaseholders",
        "gauge",
        "Processes that lease memory.",
        status.leaseholders.into(),
    );
    page.one(
        "headroom_lease_refusals_total",
        "counter",
        "Requests for more memory that were refused.",
        status.refused,
    );
}

/// A gauge of each limit: name, help, value.
type Gauge = (&'static str, &'static str, fn(&UserLimit) -> u64);

fn write_users(page: &mut Page, limits: &[&UserLimit], names: Option<NameOf>) {
    let gauges: [Gauge; 6] = [
        ("headroom_user_memory_bytes", "Memory charged to the user.", |it| it.used_bytes),
        ("headroom_user_memory_limit_bytes", "The user's hard limit.", |it| it.hard_bytes),
        ("headroom_user_memory_soft_limit_bytes", "The user's soft limit.", |it| it.soft_bytes),
        ("headroom_user_memory_peak_bytes", "The most that was charged.", |it| it.peak_bytes),
        ("headroom_user_memory_dying_bytes", "Of victims not gone yet.", |it| it.dying_bytes),
        ("headroom_user_memory_reserved_bytes", "Leased, not yet touched.", |it| it.leased_bytes),
    ];
    write_gauges(page, &gauges, limits, |limit| match &limit.group {
        Some(group) => vec![("group", group.clone())],
        None => {
            let name = names.and_then(|name_of| name_of(Uid(limit.account.uid)));
            let uid = ("uid", limit.account.uid.to_string());
            [uid].into_iter().chain(name.map(|name| ("user", name))).collect()
        }
    });
}

fn write_cgroups(page: &mut Page, limits: &[&UserLimit]) {
    let gauges: [Gauge; 5] = [
        ("headroom_cgroup_memory_bytes", "Memory of the cgroup.", |it| it.used_bytes),
        ("headroom_cgroup_memory_limit_bytes", "The cgroup's hard limit.", |it| it.hard_bytes),
        ("headroom_cgroup_memory_soft_limit_bytes", "The cgroup's soft limit.", |it| it.soft_bytes),
        ("headroom_cgroup_memory_peak_bytes", "The most that was read.", |it| it.peak_bytes),
        ("headroom_cgroup_memory_dying_bytes", "Of victims not gone yet.", |it| it.dying_bytes),
    ];
    write_gauges(page, &gauges, limits, |limit| {
        vec![("cgroup", limit.cgroup.clone().unwrap_or_default())]
    });
}

/// `labels`: kind and name of a limit's owner.
fn write_gauges(
    page: &mut Page,
    gauges: &[Gauge],
    limits: &[&UserLimit],
    labels: impl Fn(&UserLimit) -> Vec<(&'static str, String)>,
) {
    for (name, help, value) in gauges {
        page.family(name, "gauge", help);
        for limit in limits {
            // An exempt account has no limit that could be compared with its usage.
            if limit.details.exempt && name.ends_with("_limit_bytes") {
                continue;
            }
            let labels = labels(limit);
            let labels: Vec<_> = labels.iter().map(|(kind, whose)| (*kind, &**whose)).collect();
            page.sample(name, &labels, value(limit));
        }
    }
}

fn write_kills(page: &mut Page, counters: &Counters) {
    let name = "headroom_kills_total";
    page.family(
        name,
        "counter",
        "Decisions to kill, by what made the daemon look and who sent the signal.",
    );
    for kills in &counters.kills {
        let labels = [("reason", kills.trigger.word()), ("killer", kills.killer.word())];
        page.sample(name, &labels, kills.count);
    }
    page.one(
        "headroom_processes_killed_total",
        "counter",
        "Processes killed; of a herd, all.",
        counters.processes,
    );
    page.one(
        "headroom_kills_without_victim_total",
        "counter",
        "Limits exceeded while no process could be killed.",
        counters.without_victim,
    );
    page.one(
        "headroom_stuck_victims_total",
        "counter",
        "Victims still there when their grace was over.",
        counters.stuck,
    );
    page.one(
        "headroom_refuted_crossings_total",
        "counter",
        "Crossings of a limit that a measurement of actual usage refuted.",
        counters.refuted_crossings,
    );
    page.one(
        "headroom_reclaimed_bytes_total",
        "counter",
        "Memory that victims gave back.",
        counters.bytes_back,
    );
    page.histogram(
        "headroom_kill_delay_seconds",
        "From the break of a limit to the signal, where the break was timed.",
        &counters.decide,
    );
    page.histogram(
        "headroom_reclaim_seconds",
        "From the signal until the memory was back.",
        &counters.reclaim,
    );
}

fn write_binderd(page: &mut Page, state: &Binderd) {
    let status = &state.status;
    let name = "headroom_binderd_info";
    page.family(name, "gauge", "The daemon's version, and how buffers reach clients.");
    page.sample(name, &[("version", &status.version), ("mapping", &status.mapping)], 1);
    let degraded = status.degraded.len() as u64;
    page.one("headroom_binderd_degradations", "gauge", "What does not work here.", degraded);
    page.one("headroom_binder_devices", "gauge", "Devices served.", status.devices.into());
    page.one("headroom_binder_opens", "gauge", "Opens of all devices.", status.processes.into());
    let bytes = |pages: u64| pages.saturating_mul(binderd::PAGE_BYTES);
    let gauges = [
        (
            "headroom_binder_buffer_bytes",
            "gauge",
            "Memory in receive buffers.",
            bytes(status.touched_pages),
        ),
        (
            "headroom_binder_idle_buffer_bytes",
            "gauge",
            "Of it, where no buffer lies.",
            bytes(status.idle_pages),
        ),
        (
            "headroom_binder_owner_quota_bytes",
            "gauge",
            "Memory that messages of one owner may have.",
            status.owner_quota_bytes,
        ),
        (
            "headroom_binder_largest_owner_bytes",
            "gauge",
            "Memory of messages of the owner that has most.",
            status.largest_owner_bytes,
        ),
        (
            "headroom_binder_rings",
            "gauge",
            "Threads whose calls go over rings.",
            status.rings.into(),
        ),
        (
            "headroom_binder_returned_bytes_total",
            "counter",
            "Memory given back.",
            bytes(status.reclaimed_pages),
        ),
        (
            "headroom_binder_transactions_total",
            "counter",
            "Transactions delivered.",
            status.transactions,
        ),
    ];
    for (name, kind, help, value) in gauges {
        page.one(name, kind, help, value);
    }
    let Some((commands, returns)) = &state.counts else { return };
    for (name, label, help, counts) in [
        ("headroom_binder_commands_total", "command", "Commands of clients.", commands),
        ("headroom_binder_returns_total", "return", "Returns to clients.", returns),
    ] {
        page.family(name, "counter", help);
        for (which, count) in counts {
            page.sample(name, &[(label, which)], *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_reported() {
        let nowhere = Path::new("/nonexistent/x.sock");
        let text = text(&collect(nowhere, nowhere), None);
        assert!(
            text.contains("# headroom-binderd: no daemon listens on /nonexistent/x.sock"),
            "{text}"
        );
        assert!(text.contains("headroom_up{daemon=\"oomd\"} 0\n"), "{text}");
        assert!(text.contains("headroom_up{daemon=\"binderd\"} 0\n"), "{text}");
    }

    #[test]
    fn labels_are_escaped_and_seconds_exact() {
        let mut page = Page::default();
        page.sample("x", &[("a", "q\"\\\n"), ("b", "")], 5);
        page.sample("y", &[], 7);
        assert_eq!(page.text, "x{a=\"q\\\"\\\\\\n\",b=\"\"} 5\ny 7\n");
        let cases = [(0, "0"), (100, "0.0001"), (1_000_000, "1"), (12_340_000, "12.34")];
        for (micros, text) in cases {
            assert_eq!(seconds(micros), text);
        }
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative() {
        let mut histogram = Histogram::default();
        for micros in [50, 100, 101, u64::MAX / 4] {
            histogram.add(micros);
        }
        let mut page = Page::default();
        page.histogram("t", "T.", &histogram);
        let lines: Vec<&str> = page.text.lines().collect();
        let at = |le: &str| lines.iter().find(|line| line.contains(&format!("\"{le}\""))).unwrap();
        assert_eq!(at("0.00005"), &"t_bucket{le=\"0.00005\"} 1");
        assert_eq!(at("0.0001"), &"t_bucket{le=\"0.0001\"} 2");
        assert_eq!(at("0.00025"), &"t_bucket{le=\"0.00025\"} 3");
        assert_eq!(lines[2 + histogram.bounds_us.len()], "t_bucket{le=\"+Inf\"} 4");
        assert_eq!(lines.last(), Some(&"t_count 4"));
    }

    #[test]
    fn buckets_of_another_version_keep_their_bounds() {
        let json = r#"{"bounds_us":[1000,2000],"counts":[5,1,2],"sum_us":9000}"#;
        let mut page = Page::default();
        page.histogram("t", "T.", &serde_json::from_str(json).unwrap());
        let lines: Vec<&str> = page.text.lines().skip(2).collect();
        let expected = [
            "t_bucket{le=\"0.001\"} 5",
            "t_bucket{le=\"0.002\"} 6",
            "t_bucket{le=\"+Inf\"} 8",
            "t_sum 0.009",
            "t_count 8",
        ];
        assert_eq!(lines, expected);
    }
}
