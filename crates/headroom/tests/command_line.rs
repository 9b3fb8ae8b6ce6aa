//! The shipped binary: its output and exit codes, with and without daemons.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use control::Uid;
use control::configuration::ConfiguredLimit;
use control::oomd::{
    self, AccountKind, AccountRef, Candidate, KilledBy, Outcome, Reloaded, Reply, Request, Trigger,
    UserLimit, Why,
};
use support::{FakeDaemon, headroom, run};

/// Uid and gid of `nobody`.
const NOBODY: u32 = 65534;

#[test]
fn bad_input_is_refused_with_the_invalid_word() {
    // arguments, expected error
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["fly"], "'fly'"),
        (&["limit"], "Usage"),
        (&["limit", "set", "root"], "<SIZE>"),
        (&["limit", "set", "root", "lots"], "\"lots\" is not an amount of memory"),
        (
            &["limit", "set", "root", "512M", "--soft", "half"],
            "\"half\" is not an amount of memory",
        ),
        (&["limit", "set", "no-such-user", "512M"], "there is no user 'no-such-user'"),
        (&["limit", "set", "4294967295", "512M"], "uid 4294967295 is too large"),
        (&["limit", "get", "no-such-user"], "no-such-user"),
        (&["limit", "clear", "-1"], "-1"),
        (&["run-oom-killer", "no-such-user"], "no-such-user"),
        (&["why", "-n", "many"], "'many'"),
        (&["why", "-n", "3", "7"], "cannot be used with"),
        (&["up", "--no-binder", "--no-oom"], "cannot be used with"),
        (&["status", "now"], "'now'"),
        (&["kill"], "<PID>"),
        (&["kill", "init"], "'init'"),
        (&["kill", "--family", "--group", "7"], "cannot be used with"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (arguments, expected) in cases {
        let (code, stdout, stderr) = run(headroom(dir.path()).args(*arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stdout.is_empty(), "{arguments:?}: {stdout}");
        assert!(stderr.contains(expected), "{arguments:?} should report {expected}: {stderr}");
    }
}

#[test]
fn invalid_limits_are_refused_before_a_request_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["limit", "set", "root", "0"], "limit set root none"),
        (&["limit", "set", "root", "1M", "--soft", "2M"], "above the hard limit"),
    ];
    for (arguments, expected) in cases {
        let (code, _, stderr) = run(headroom(dir.path()).args(*arguments));
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn without_a_daemon_every_question_fails_with_the_socket_in_the_message() {
    let dir = tempfile::tempdir().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["limit", "list"], "oomd.sock"),
        (&["limit", "get", "root"], "oomd.sock"),
        (&["limit", "set", "root", "1G"], "oomd.sock"),
        (&["limit", "clear", "root"], "oomd.sock"),
        (&["run-oom-killer"], "oomd.sock"),
        (&["why"], "oomd.sock"),
        (&["binder", "ls"], "binderd.sock"),
    ];
    for (arguments, socket) in cases {
        let (code, stdout, stderr) = run(headroom(dir.path()).args(*arguments));
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stdout.is_empty(), "{arguments:?}: {stdout}");
        assert!(stderr.contains(socket) && stderr.contains("is not running"), "{stderr}");
    }
}

#[test]
fn status_of_no_daemon_is_exit_code_1_and_still_prints() {
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(headroom(dir.path()).arg("status"));
    assert_eq!(code, Some(1));
    assert_eq!(stdout.matches("is not running (no socket at").count(), 2, "{stdout}");
    let (code, stdout, _) = run(headroom(dir.path()).args(["status", "--json"]));
    assert_eq!(code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&stdout).expect("not JSON");
    assert!(json["binderd"]["status"].is_null() && json["oomd"]["error"].is_string(), "{json}");
}

#[test]
fn metrics_without_a_daemon_report_its_absence() {
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(headroom(dir.path()).arg("metrics"));
    assert_eq!(code, Some(1));
    assert!(stdout.contains("headroom_up{daemon=\"oomd\"} 0\n"), "{stdout}");
    assert!(stdout.contains("headroom_up{daemon=\"binderd\"} 0\n"), "{stdout}");
    assert_eq!(stdout.matches("no daemon listens on").count(), 2, "{stdout}");
}

#[test]
fn up_without_root_fails_with_the_reason_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = headroom(dir.path());
    if rustix::process::geteuid().is_root() {
        // Other users may not have access to the binary's folder, so it is executed through an open
        // file.
        let file = std::fs::File::open(env!("CARGO_BIN_EXE_headroom")).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        command = std::process::Command::new(path);
        command.uid(60_001).gid(60_001);
        let (code, _, stderr) = run(command.arg("up"));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("needs root"), "{stderr}");
        return;
    }
    let (code, _, stderr) = run(command.arg("up"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("needs root"), "{stderr}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    for arguments in [&["limit", "list"][..], &["why"], &["--help"], &["limit", "list", "--json"]] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let (code, _, stderr) =
            run(headroom(dir.path()).args(arguments).stdout(Stdio::from(writer)));
        assert!(code.is_some(), "{arguments:?} was killed: {stderr}");
        assert!(stderr.is_empty(), "{arguments:?}: {stderr}");
    }
}

/// A daemon with one limit and one decision, which refuses to clear limits.
fn fake_oomd(request: Request) -> Reply {
    let limit = |hard_bytes, soft_bytes| UserLimit {
        account: AccountRef::user(Uid::ROOT),
        group: None,
        cgroup: None,
        members: Vec::new(),
        counts: Vec::new(),
        hard_bytes,
        soft_bytes,
        used_bytes: 64 << 20,
        dying_bytes: 0,
        peak_bytes: 0,
        usage_source: None,
        leased_bytes: 0,
        leaseholders: 0,
        source: "runtime".into(),
        details: control::oomd::LimitDetails::default(),
    };
    match request {
        Request::Status => Reply::Status(oomd::Status {
            version: "0".into(),
            protocol: control::PROTOCOL_VERSION,
            pid: 1,
            notifier: "proc".into(),
            attached: true,
            limited_users: 1,
            usage_sources: BTreeMap::from([("memory controller".to_owned(), 1)]),
            kills: 1,
            given_back_bytes: 0x10_0000,
            leaseholders: 2,
            refused: 1,
            degraded: vec!["no BPF here, limits are checked on a timer".into()],
            ..Default::default()
        }),
        Request::SetLimit {
            account: AccountRef { kind: AccountKind::User, uid: 0 },
            hard_bytes: 0x1000_0000,
            soft_bytes: Some(0x800_0000),
            grace_s: None,
        } => Reply::Done,
        Request::ListLimits => Reply::Limits { limits: vec![limit(0x1000_0000, 0x800_0000)] },
        Request::RunOomKiller { .. } => Reply::OomKillerRan { kills: Vec::new() },
        Request::Why { .. } => Reply::Why { records: vec![record()] },
        Request::Reload => Reply::Reloaded(Reloaded {
            changes: vec!["uid 0: limit 1.0 MiB".into()],
            problems: Vec::new(),
        }),
        Request::DefaultLimits => {
            let of_each = ConfiguredLimit { user: "each of @nobody".into(), ..default_limit() };
            Reply::DefaultLimits { limits: vec![of_each] }
        }
        other => Reply::Error { message: format!("not for you: {other:?}") },
    }
}

fn default_limit() -> ConfiguredLimit {
    ConfiguredLimit {
        user: "*".into(),
        hard_bytes: 1 << 30,
        soft_bytes: 1 << 29,
        warn_bytes: None,
        soft_signal_ms: None,
        exempt: false,
        counts: Vec::new(),
        members: Vec::new(),
    }
}

fn record() -> Why {
    Why {
        id: 3,
        at_micros: 1_700_000_000_000_000,
        account: AccountRef::user(Uid::ROOT),
        group: None,
        cgroup: None,
        trigger: Trigger::Notifier,
        state: String::new(),
        others: Vec::new(),
        killer: Some(KilledBy::Kernel),
        hard_bytes: 256 << 20,
        used_bytes: 257 << 20,
        victim: Some(Candidate {
            uid: None,
            pid: 9,
            comm: "hog".into(),
            rss_bytes: 200 << 20,
            swap_bytes: 0,
            unmapped_bytes: 0,
            grown_bytes: 0,
            details: None,
        }),
        runner_up: None,
        considered: 1,
        rule: "largest".into(),
        kept: String::new(),
        decide_micros: None,
        outcome: Outcome::Dying,
    }
}

#[test]
fn replies_of_the_daemon_are_shown_as_text_and_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    let cases: &[(&[&str], &str)] = &[
        (&["limit", "list"], "256.0 MiB"),
        (&["limit", "get", "0"], "25.0%"),
        (&["limit", "set", "root", "256M", "--soft", "128MiB"], "128.0 MiB"),
        (&["limit", "get", "60002"], "60002 has no limit"),
        (&["run-oom-killer"], "no limit is exceeded"),
        (&["run-oom-killer", "root"], "root does not exceed its limit"),
        (&["why"], "killed hog (pid 9) of user root"),
        (&["why", "3"], "1.0 MiB over it"),
        (&["config", "reload"], "user root: limit 1.0 MiB"),
        (&["why", "--user", "root"], "killed hog (pid 9) of user root"),
        (&["why", "-u", "60002"], "no decision about 60002"),
        (&["status"], "degraded: no BPF here"),
        (&["status"], "usage of 1 user by memory controller"),
    ];
    for (arguments, expected) in cases {
        let (code, stdout, stderr) = run(headroom(dir.path()).args(*arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        assert!(stdout.contains(expected), "{arguments:?} should print {expected}: {stdout}");
        let (code, stdout, stderr) = run(headroom(dir.path()).args(*arguments).arg("--json"));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        serde_json::from_str::<serde_json::Value>(&stdout)
            .unwrap_or_else(|e| panic!("{arguments:?} --json printed no JSON ({e}): {stdout}"));
    }
}

#[test]
fn an_ordinary_user_learns_that_only_root_sees_the_other_users() {
    if !test_support::privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("oomd.sock");
    let _daemon = FakeDaemon::start(socket.clone(), |request: Request| match request {
        Request::ListLimits => Reply::Limits { limits: Vec::new() },
        Request::DefaultLimits => Reply::DefaultLimits { limits: Vec::new() },
        Request::Why { .. } => Reply::Why { records: Vec::new() },
        request => fake_oomd(request),
    });
    // Another user connects to the socket.
    for (path, mode) in [(dir.path(), 0o755), (&*socket, 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let cases: &[(&[&str], i32, &str, &str)] = &[
        (&["limit", "list"], 0, "no user has a limit", "you have no limit; only root sees"),
        (&["top", "--once"], 0, "no user has a limit", "you have no limit; only root sees"),
        (&["why"], 0, "no process was killed", "no decision about you"),
        (&["limit", "get", "65534"], 0, "nobody has no limit", "nobody has no limit"),
        (&["limit", "get", "daemon"], 1, "daemon has no limit", "visible to daemon and root only"),
    ];
    for (arguments, code, to_root, to_user) in cases {
        let (_, stdout, _) = run(headroom(dir.path()).args(*arguments));
        assert!(stdout.contains(to_root), "{arguments:?}: {stdout}");
        let as_user = run(headroom(dir.path()).args(*arguments).uid(NOBODY).gid(NOBODY));
        assert_eq!(as_user.0, Some(*code), "{arguments:?}: {as_user:?}");
        assert!((as_user.1.clone() + &as_user.2).contains(to_user), "{arguments:?}: {as_user:?}");
    }
}

#[test]
fn a_refusal_and_an_unknown_decision_are_errors_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    let cases: &[(&[&str], &str)] = &[
        (&["limit", "clear", "root"], "headroom-oomd: not for you"),
        (&["why", "4"], "no decision 4 that you may see; 3 to 3 are known"),
    ];
    for (arguments, expected) in cases {
        let (code, stdout, stderr) = run(headroom(dir.path()).args(*arguments));
        assert_eq!(code, Some(1), "{arguments:?}: {stdout}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_daemon_of_another_kind_is_an_error_and_not_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(
        dir.path().join("oomd.sock"),
        |_: serde_json::Value| serde_json::json!({ "answer": 42 }),
    );
    let (code, _, stderr) = run(headroom(dir.path()).args(["limit", "list"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("has another version"), "{stderr}");
}

#[test]
fn doctor_reports_every_capability_with_what_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(headroom(dir.path()).args(["doctor", "--json"]));
    let report: serde_json::Value =
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {stdout}{stderr}"));
    let mut disabled = false;
    for part in ["binder", "oom"] {
        for check in report[part].as_array().expect("checks") {
            let present = check["present"].as_bool().expect("present");
            assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
            assert_eq!(check["lost"].as_str().unwrap().is_empty(), present, "{check}");
            assert_eq!(check["remedy"].as_str().unwrap().is_empty(), present, "{check}");
            disabled |= !check["disables"].is_null();
        }
    }
    assert_eq!(code, Some(i32::from(disabled)), "{stdout}");
    let (_, text, _) = run(headroom(dir.path()).arg("doctor"));
    for word in
        ["fuse", "process-mrelease", "kernel-btf", "bpf-notifier", "psi", "cgroup", "headroom-oomd"]
    {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    assert!(!text.contains("libbpf:"), "{text}");
}

#[test]
fn doctor_has_a_verdict_for_each_use() {
    const NEED_NO_DAEMON: &str = "private-bus";
    let dir = tempfile::tempdir().unwrap();
    let verdicts = || {
        let (code, stdout, _) = run(headroom(dir.path()).args(["doctor", "--json"]));
        let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        (code, report["verdicts"].as_array().expect("verdicts").clone())
    };
    let (_, stopped) = verdicts();
    assert_eq!(stopped.len(), 5);
    let daemon = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    for (before, now) in stopped.iter().zip(verdicts().1) {
        let name = before["use"].as_str().unwrap();
        let expected = match name {
            NEED_NO_DAEMON => before["works"].as_bool().unwrap(),
            "user-limits" | "machine-shortage" => true,
            _ => false,
        };
        assert_eq!(now["works"], expected, "{now}");
        assert!(name == NEED_NO_DAEMON || before["works"] == false, "{before}");
        assert_eq!(now["remedy"].as_str().unwrap().is_empty(), expected, "{now}");
        let (code, text, _) = run(headroom(dir.path()).args(["doctor", "--for", name]));
        assert_eq!(code, Some(i32::from(!expected)), "{text}");
        let state = if expected { "works" } else { "fails" };
        let first = text.lines().next().unwrap();
        assert!(first.starts_with(state) && first.contains(name), "{text}");
        assert_eq!(
            text.matches("-limits").count(),
            usize::from(name.ends_with("-limits")),
            "{text}"
        );
        for check in now["decided_by"].as_array().unwrap() {
            assert!(text.contains(&format!(" {} ", check.as_str().unwrap())), "{check}: {text}");
        }
    }
    drop(daemon);
}

#[test]
fn doctor_of_an_ordinary_user_counts_only_what_a_user_can_test() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Where the user can execute it.
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = dir.path().join("headroom");
    std::fs::copy(env!("CARGO_BIN_EXE_headroom"), &program).unwrap();
    let mut doctor = std::process::Command::new(&program);
    doctor.arg("--json").arg("--oomd-socket").arg(dir.path().join("oomd.sock"));
    doctor.arg("--binderd-socket").arg(dir.path().join("binderd.sock"));
    let (code, stdout, stderr) = run(doctor.arg("doctor").uid(NOBODY).gid(NOBODY));
    let report: serde_json::Value =
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {stdout}{stderr}"));
    let all = report["binder"].as_array().unwrap().iter().chain(report["oom"].as_array().unwrap());
    let (mut unknown, mut disabled) = (Vec::new(), false);
    for check in all {
        disabled |= !check["disables"].is_null();
        if check["tested"] == false {
            assert!(check["present"] == false && check["disables"].is_null(), "{check}");
            unknown.push(check["capability"].as_str().unwrap());
        }
    }
    assert!(unknown.contains(&"cap-sys-admin") && !unknown.contains(&"fuse"), "{unknown:?}");
    assert!(!stdout.contains("libbpf:") && stderr.is_empty(), "{stdout}{stderr}");
    assert_eq!(code, Some(i32::from(disabled)), "{stdout}");
}

/// Processes that hold memory: shells that read an endless zero into one variable.
fn hog() -> std::process::Child {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "x=$(head -c 33554432 /dev/zero | tr '\\0' x); sleep 60 & echo ready; wait"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    child
}

#[test]
fn kill_reports_the_freed_size_and_the_rate() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let [mut first, mut second] = [hog(), hog()];
    // With the shells, the `sleep` processes that they wait for are killed.
    let pids = [first.id().to_string(), second.id().to_string()];
    let mut command = headroom(dir.path());
    let (code, stdout, stderr) = run(command.args(["kill", "--family", "--report"]).args(&pids));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let last = stdout.lines().last().unwrap();
    let (size, rest) = last.split_once(" MiB of 4 processes back in ").expect("no last line");
    assert!(size.parse::<f64>().unwrap() >= 64.0 && rest.ends_with('s'), "{stdout}");
    assert!(pids.iter().all(|pid| stdout.contains(&format!("sh (pid {pid}): "))), "{stdout}");
    for child in [&mut first, &mut second] {
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
    let (code, stdout, stderr) = run(headroom(dir.path()).args(["kill", "1", &pids[0]]));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "no process was killed: {stderr}");
    for part in ["pid 1 cannot be killed", &format!("pid {} does not exist", pids[0])] {
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn kill_prints_json_of_every_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = hog();
    let pid = child.id().to_string();
    let (code, stdout, stderr) =
        run(headroom(dir.path()).args(["kill", "--family", "--json", &pid]));
    assert_eq!(code, Some(0), "{stderr}");
    let json: serde_json::Value = serde_json::from_str(&stdout).expect("not JSON");
    assert_eq!((&json["victims"], &json["gone"]), (&2.into(), &2.into()), "{json}");
    let process = &json["processes"][0];
    assert!(process["bytes_back"].as_u64().unwrap() >= 32 << 20, "{json}");
    assert_eq!((&process["gone"], &process["error"]), (&true.into(), &serde_json::Value::Null));
    child.wait().unwrap();
}

#[test]
fn reserve_has_the_exit_codes_of_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("library.so");
    std::fs::write(&library, "").unwrap();
    // The socket file must exist; it is not used before the command runs.
    std::fs::write(dir.path().join(control::lease::LEASE_SOCKET_NAME), "").unwrap();
    for (program, expected) in [("/nonexistent/nosuchprog", 127), ("/etc/passwd", 126)] {
        let (code, _, stderr) = run(headroom(dir.path())
            .args(["reserve", "--library"])
            .arg(&library)
            .args(["--", program]));
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(stderr.contains(&format!("cannot run {program}")), "{stderr}");
    }
}

#[test]
fn reserve_refuses_a_program_for_another_machine_than_its_library() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(control::lease::LEASE_SOCKET_NAME), "").unwrap();
    let elf_file = |name: &str, class: u8, machine: u8| {
        let mut header = [0; 64];
        header[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        header[18] = machine;
        let path = dir.path().join(name);
        std::fs::write(&path, header).unwrap();
        path
    };
    let (library, program) = (elf_file("library.so", 2, 62), elf_file("program", 1, 3));
    let mut command = headroom(dir.path());
    let (code, _, stderr) = run(command.args(["reserve", "--library"]).arg(library).arg(program));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("is a 32-bit program for another machine"), "{stderr}");
}

#[test]
fn reserve_refuses_programs_that_cannot_load_its_library() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(control::lease::LEASE_SOCKET_NAME), "").unwrap();
    let source = dir.path().join("program.c");
    std::fs::write(&source, "int main(void) { return 7; }\n").unwrap();
    let build = |compiler: &str, options: &[&str]| {
        let built = dir.path().join(format!("{compiler}{}", options.concat()));
        let mut command = std::process::Command::new(compiler);
        let output = command.args(options).arg(&source).arg("-o").arg(&built).output();
        let Ok(output) = output else {
            test_support::skip(format_args!("{compiler} is missing (package musl-tools)"));
            return None;
        };
        assert!(output.status.success(), "{output:?}");
        Some(built)
    };
    let library = build("cc", &["-shared", "-fPIC"]).unwrap();
    let is_static = "is a static program, which loads no library: memory cannot be reserved for it";
    let musl = format!(
        "uses another C library (its loader is /lib/ld-musl-{}.so.1)",
        std::env::consts::ARCH
    );
    let cases: [(&str, &[&str], i32, &str); 5] = [
        ("cc", &[], 7, ""),
        ("cc", &["-static"], 1, is_static),
        ("cc", &["-static-pie"], 1, is_static),
        ("musl-gcc", &["-static"], 1, is_static),
        ("musl-gcc", &[], 1, &musl),
    ];
    for (compiler, options, expected, error) in cases {
        let Some(program) = build(compiler, options) else { continue };
        let mut command = headroom(dir.path());
        command.args(["reserve", "--library"]).arg(&library).arg(program);
        let (code, _, stderr) = run(&mut command);
        assert_eq!(code, Some(expected), "{compiler} {options:?}: {stderr}");
        assert!(stderr.contains(error), "{compiler} {options:?}: {stderr}");
    }
}

#[test]
fn the_variable_names_the_socket_and_the_option_takes_precedence() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    let list = |variable: &str, option: Option<&str>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headroom"));
        command.args(["limit", "list"]).env("HEADROOM_OOMD_SOCKET", dir.path().join(variable));
        if let Some(option) = option {
            command.arg("--oomd-socket").arg(dir.path().join(option));
        }
        run(&mut command)
    };
    assert_eq!(list("oomd.sock", None).0, Some(0));
    assert_eq!(list("other.sock", Some("oomd.sock")).0, Some(0));
    let (code, _, stderr) = list("other.sock", None);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("other.sock"), "{stderr}");
}

#[test]
fn an_unknown_group_is_an_error_and_a_user_without_a_limit_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(dir.path().join("oomd.sock"), fake_oomd);
    let (code, stdout, stderr) = run(headroom(dir.path()).args(["limit", "set", "@nobody", "1G"]));
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("each of @nobody has a limit of its own"), "{stderr}");
    for name in ["@nogroup", "/no/such.service"] {
        let (code, stdout, stderr) = run(headroom(dir.path()).args(["limit", "get", name]));
        assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
        assert!(
            stderr.contains(name) && stderr.contains("has no limit in oomd.toml that you may see"),
            "{stderr}"
        );
    }
    let (code, stdout, _) = run(headroom(dir.path()).args(["limit", "get", "4000000000"]));
    assert_eq!((code, &*stdout), (Some(0), "4000000000 has no limit\n"));
}

#[test]
fn clearing_a_limit_names_the_one_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = FakeDaemon::start(dir.path().join("oomd.sock"), |request| match request {
        Request::ClearLimit { account, grace_s: _ } if account == AccountRef::user(Uid::ROOT) => {
            Reply::Done
        }
        request => fake_oomd(request),
    });
    let (code, stdout, stderr) = run(headroom(dir.path()).args(["limit", "clear", "root"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        stdout,
        "root has a limit of 256.0 MiB still, which another source has set: runtime\n"
    );
}
