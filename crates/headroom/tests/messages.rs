//! The messages of errors that a user can provoke, in one file to be read in sequence.
//!
//! `HEADROOM_UPDATE_MESSAGES=1 cargo test -p headroom --test messages` writes `messages.txt` anew.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use control::oomd::{Reply, Request};
use support::{FakeDaemon, headroom, run};

/// Command lines that are refused before a daemon is contacted, or that need none.
const COMMANDS: &[&[&str]] = &[
    &["fly"],
    &["status", "now"],
    &["limit", "set", "root"],
    &["limit", "set", "root", "lots"],
    &["limit", "set", "root", "512M", "--soft", "half"],
    &["limit", "set", "root", "0"],
    &["limit", "set", "root", "1M", "--soft", "2M"],
    &["limit", "set", "no-such-user", "512M"],
    &["limit", "set", "4294967295", "512M"],
    &["limit", "set", "/a/cgroup", "512M"],
    &["limit", "clear", "-1"],
    &["why", "-n", "many"],
    &["why", "-n", "3", "7"],
    &["top", "-d", "0"],
    &["up", "--no-binder", "--no-oom"],
    &["kill"],
    &["kill", "init"],
    &["kill", "4194305"],
    &["kill", "--family", "--group", "7"],
    &["oom", "margin", "--size", "much"],
    &["oom", "detach", "--pins", "/nonexistent", "--bpf-pin-dir", "/nonexistent"],
    &["reserve", "--library", "/nonexistent.so", "true"],
    &["config", "check", "--config", "/nonexistent/oomd.toml"],
    &["config", "import", "earlyoom", "-m", "200"],
    &["config", "import", "earlyoom", "--file", "/nonexistent/earlyoom"],
    &["completions", "tcsh"],
];

/// Requests without a daemon.
const REQUESTS: &[&[&str]] = &[
    &["limit", "list"],
    &["limit", "set", "root", "1G"],
    &["run-oom-killer"],
    &["why"],
    &["explain"],
    &["config", "reload"],
    &["status"],
    &["binder", "ls"],
    &["binder", "trace"],
    &["binder", "reclaim"],
];

/// Invalid configurations, each the text of a file.
const CONFIGURATIONS: &[&str] = &[
    "limit = 1",
    "[[limit]\nuser = 5",
    "[[limits]]\nuser = 5",
    "[[limit]]\nhard = \"1G\"",
    "[[limit]]\nuser = 5",
    "[[limit]]\nuser = \"nobody-there\"\nhard = \"1G\"",
    "[[limit]]\nuser = \"root\"\nhard = \"1G\"",
    "[[limit]]\nuser = 5\ngroup = \"adm\"\nhard = \"1G\"",
    "[[limit]]\nuser = 5\nhard = \"much\"",
    "[[limit]]\nuser = 5\nhard = \"101%\"",
    "[[limit]]\nuser = 5\nhard = \"1G\"\nsoft = \"2G\"",
    "[[limit]]\nuser = 5\nhard = \"1G\"\naccount = [\"cache\"]",
    "[[limit]]\nuser = 5\nhard = \"1G\"\n[[limit]]\nuser = 5\nhard = \"2G\"",
    "[[limit]]\nusers = []\nname = \"none\"\nhard = \"1G\"",
    "[[limit]]\ncgroup = \"a\"\nhard = \"1G\"",
    "[[rule]]\nkill = \"sometimes\"\nname = \"a\"",
    "[[rule]]\nkill = \"never\"\nname = \"a\"",
    "[[rule]]\nkill = \"avoid\"\nname-regex = \"(\"",
    "[machine]\nsoft = \"1%\"",
    "[machine]\nstall-percent = 101",
    "[machine]\nhards = 1",
    "[metrics]\ntextfile = \"a\"",
    "[metrics]\ninterval-s = 0",
    "[hooks]\nafter = \"/bin/true\"",
    "[hooks]\nafter = [\"true\"]",
    "[hooks]\nafter = [\"/nonexistent/x\"]",
    "[hooks]\nafter = [\"/etc/passwd\"]",
    "[warnings]\nterminals = true",
    "[machine]\nmost-kills = 5",
];

/// Replies of a daemon that a command cannot use.
const REPLIES: &[&[&str]] = &[&["limit", "list"], &["limit", "clear", "root"]];

/// Appends a command with its messages and exit code.
fn record(text: &mut String, dir: &Path, arguments: &[&str]) {
    let (code, stdout, stderr) = run(headroom(dir).args(arguments));
    let output = stderr + if code == Some(0) { "" } else { &stdout };
    // The test's folder is not part of a message.
    let output = output.replace(dir.to_str().unwrap(), "DIR");
    let shown = arguments.join(" ").replace(dir.to_str().unwrap(), "DIR");
    let _ = writeln!(text, "$ headroom {shown}");
    for line in output.lines().filter(|line| !line.is_empty()) {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "exit code {}\n", code.unwrap());
}

#[test]
fn all_messages_are_as_reviewed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = Path::new(env!("CARGO_BIN_EXE_headroom")).with_file_name("headroom-oomd");
    if !daemon.exists() {
        test_support::skip("headroom-oomd is not built: cargo build --workspace --bins");
        return;
    }
    let mut text = String::new();
    for arguments in COMMANDS.iter().chain(REQUESTS) {
        record(&mut text, dir, arguments);
    }
    let file = dir.join("oomd.toml");
    for configuration in CONFIGURATIONS {
        fs::write(&file, configuration).unwrap();
        let _ = writeln!(text, "# {}", configuration.replace('\n', "\n# "));
        record(&mut text, dir, &["config", "check", "--config", file.to_str().unwrap()]);
    }
    let fake = FakeDaemon::start(dir.join("oomd.sock"), |request: Request| match request {
        Request::ListLimits => Reply::Done,
        _ => Reply::Error { message: "the message of the daemon".to_owned() },
    });
    for arguments in REPLIES {
        record(&mut text, dir, arguments);
    }
    drop(fake);
    assert!(!text.contains("os error"), "a message shows the number of an error:\n{text}");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages.txt");
    if std::env::var_os("HEADROOM_UPDATE_MESSAGES").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    let reviewed = fs::read_to_string(&golden).unwrap();
    for (line, (now, before)) in text.lines().zip(reviewed.lines()).enumerate() {
        assert_eq!(now, before, "line {} of {}", line + 1, golden.display());
    }
    assert_eq!(text.len(), reviewed.len(), "{} has another length", golden.display());
}
