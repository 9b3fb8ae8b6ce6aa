//! The messages of errors that a user can provoke, in one file to be read in sequence.
//!
//! `HEADROOM_UPDATE_MESSAGES=1 cargo test -p headroom --test messages` writes `messages.txt` anew.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use control::oomd::{Reply, Request};
use support::{FakeDaemon, headroom, run};
use test_support::privileged;

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
    &["up", "--mode", "999"],
    &["kill"],
    &["kill", "init"],
    &["kill", "4194305"],
    &["kill", "--family", "--group", "7"],
    &["reserve", "--library", "/nonexistent.so", "true"],
    &["config", "check", "--config", "/nonexistent/oomd.toml"],
    &["config", "import", "earlyoom", "-m", "200"],
    &["config", "import", "earlyoom", "--file", "/nonexistent/earlyoom"],
    &["doctor", "--for", "games"],
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
    &["binder", "upgrade"],
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
    "[metrics]\ntextfile = \"/a.prom\"",
    "[warnings]\ninterval-s = 0",
    "[hooks]\nafter = \"/bin/true\"",
    "[hooks]\nafter = [\"true\"]",
    "[hooks]\nafter = [\"/nonexistent/x\"]",
    "[hooks]\nafter = [\"/etc/passwd\"]",
    "[warnings]\nterminals = true",
];

/// Replies of a daemon that a command cannot use.
const REPLIES: &[&[&str]] = &[&["limit", "list"], &["limit", "clear", "root"]];

/// Daemons that cannot start. `DIR` is the test's folder, which contains a file.
const DAEMONS: &[&[&str]] = &[
    &["headroom-oomd", "now"],
    &["headroom-oomd", "--notifier", "x"],
    &["headroom-oomd", "--config", "/nonexistent/oomd.toml"],
    &["headroom-oomd", "--config", "DIR/oomd.toml"],
    &["headroom-oomd", "--config", "DIR/oomd.toml", "--check-config"],
    &["headroom-oomd", "--notifier", "proc", "--socket", LONG_NAME],
    &["headroom-oomd", "--notifier", "proc", "--socket", "/proc/x/oomd.sock"],
    &["headroom-oomd", "--notifier", "proc", "--socket", "DIR/oomd.sock"],
    &["headroom-binderd", "now"],
    &["headroom-binderd", "--mount", "/"],
    &["headroom-binderd", "--mount", "/proc/x"],
    &["headroom-binderd", "--mount", "DIR"],
    &["headroom-binderd", "--mount", "DIR/bus", "--devices", ""],
    &["headroom-binderd", "--mount", "DIR/bus", "--devices", "a/b"],
    &["headroom-binderd", "--mount", "DIR/bus", "--devices", "a,a"],
    &["headroom-binderd", "--mount", "DIR/bus", "--mode", "999"],
    &["headroom-binderd", "--mount", "DIR/bus", "--owner", "nobody-there"],
    &["headroom-binderd", "--mount", "DIR/bus", "--owner-memory", "0"],
    &["headroom-binderd", "--mount", "DIR/bus", "--low-memory", "200"],
    &["headroom-binderd", "--mount", "DIR/bus", "--mapping", "x"],
    &["headroom-binderd", "--mount", "DIR/bus", "--socket", "DIR/oomd.sock"],
    &["mount.binder"],
    &["mount.binder", "binder", "/nonexistent"],
    &["mount.binder", "binder", "DIR", "-x"],
    &["mount.binder", "binder", "DIR", "-r"],
    &["mount.binder", "binder", "DIR", "-N", "1"],
    &["mount.binder", "binder", "DIR", "-o"],
    &["mount.binder", "binder", "DIR", "-o", "bogus"],
    &["mount.binder", "binder", "DIR", "-o", "max=many"],
    &["mount.binder", "binder", "DIR", "-o", "mode=9"],
    &["mount.binder", "binder", "DIR", "-o", "uid=nobody-there"],
    &["mount.binder", "binder", "DIR", "-o", "gid=nobody-there"],
];

/// Longer than the address of a Unix socket.
const LONG_NAME: &str = concat!(
    "DIR/a-name-that-makes-the-path-longer-than-one-hundred-and-seven-bytes-",
    "wherever-the-folder-is/oomd.sock"
);

/// Requests of root that a running daemon refuses.
const REFUSED: &[&[&str]] = &[
    &["limit", "set", "root", "1G"],
    &["limit", "set", "daemon", "1K"],
    &["limit", "set", "@no-such-group", "1G"],
    &["limit", "set", "/no/cgroup", "1G"],
    &["limit", "clear", "daemon"],
    &["run-oom-killer", "daemon"],
    &["explain", "daemon"],
    &["why", "9999"],
    &["kill", "1"],
    &["reserve", "--library", "/bin/sh", "/nonexistent/program"],
];

/// Requests of the user `nobody`, for whom the configuration sets 256 MiB.
const REFUSED_TO_A_USER: &[&[&str]] = &[
    &["limit", "set", "nobody", "1G"],
    &["limit", "set", "daemon", "1G"],
    &["limit", "set", "nobody", "1K"],
    &["limit", "clear", "nobody"],
    &["limit", "clear", "daemon"],
    &["run-oom-killer", "daemon"],
    &["explain", "daemon"],
    &["config", "reload"],
];

/// uid and gid of `nobody`.
const NOBODY: u32 = 65534;

/// Path of a program that is built beside `headroom`.
fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_headroom")).with_file_name(name)
}

/// Appends the messages of daemons that cannot start.
fn record_daemons(text: &mut String, dir: &Path) {
    let helper = dir.join("mount.binder");
    symlink(beside("headroom-binderd"), &helper).unwrap();
    fs::write(dir.join("oomd.toml"), "limit = 1").unwrap();
    // Another daemon has the socket.
    let fake = FakeDaemon::start(dir.join("oomd.sock"), |_: Request| Reply::Done);
    for words in DAEMONS {
        let program = if words[0] == "mount.binder" { helper.clone() } else { beside(words[0]) };
        let arguments = words[1..].iter().map(|word| word.replace("DIR", dir.to_str().unwrap()));
        let results = run(Command::new(program).args(arguments).env("HEADROOM_LOG", "error"));
        append(text, dir, &words.join(" "), results);
    }
    drop(fake);
}

/// A running `headroom-oomd`, ended on drop.
struct RunningDaemon(Child);

impl RunningDaemon {
    /// Starts it and waits until it is ready. Returns also the warnings about its options.
    fn start(dir: &Path) -> (Self, String) {
        fs::write(dir.join("oomd.toml"), "[[limit]]\nuser = 65534\nhard = \"256M\"\n").unwrap();
        let mut child = Command::new(beside("headroom-oomd"))
            .args(["--notifier", "proc", "--state-dir", "/proc/x", "--config"])
            .arg(dir.join("oomd.toml"))
            .arg("--socket")
            .arg(dir.join("oomd.sock"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("cannot start headroom-oomd");
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut warnings = String::new();
        for line in log.by_ref().map(|line| line.expect("its log")) {
            if let Some((_, warning)) = line.split_once("degraded: ")
                && ["--notifier", "--state-dir"].iter().any(|option| warning.contains(option))
            {
                let _ = writeln!(warnings, "degraded: {warning}");
            }
            if line.contains(" ready ") {
                break;
            }
        }
        // The pipe stays open, so that later lines do not end the daemon.
        std::thread::spawn(move || log.for_each(drop));
        (Self(child), warnings)
    }
}

impl Drop for RunningDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Appends the replies of a running daemon.
fn record_running_daemon(text: &mut String, dir: &Path) {
    let (daemon, warnings) = RunningDaemon::start(dir);
    let _ = writeln!(text, "$ headroom-oomd --notifier proc --state-dir /proc/x\n{warnings}");
    for arguments in REFUSED {
        record(text, dir, arguments);
    }
    let _ = writeln!(text, "# As the user nobody, whose limit the configuration sets to 256M.\n");
    for arguments in REFUSED_TO_A_USER {
        let results = run(headroom(dir).args(*arguments).uid(NOBODY).gid(NOBODY));
        append(text, dir, &format!("headroom {}", arguments.join(" ")), results);
    }
    drop(daemon);
}

/// Appends a command with its messages and exit code.
fn record(text: &mut String, dir: &Path, arguments: &[&str]) {
    let results = run(headroom(dir).args(arguments));
    append(text, dir, &format!("headroom {}", arguments.join(" ")), results);
}

fn append(text: &mut String, dir: &Path, command: &str, results: (Option<i32>, String, String)) {
    let (code, stdout, stderr) = results;
    let output = stderr + if code == Some(0) { "" } else { &stdout };
    // The test's folder is not part of a message.
    let output = output.replace(dir.to_str().unwrap(), "DIR");
    let shown = command.replace(dir.to_str().unwrap(), "DIR");
    let _ = writeln!(text, "$ {shown}");
    for line in output.lines().filter(|line| !line.is_empty()) {
        // The command depends on the machine.
        let line = line
            .split_once("Start it: ")
            .map_or(line.to_owned(), |(message, _)| format!("{message}Start it: COMMAND"));
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "exit code {}\n", code.unwrap());
}

#[test]
fn all_messages_are_as_reviewed() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Another user connects to the socket in it.
    fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    if !["headroom-oomd", "headroom-binderd"].iter().all(|daemon| beside(daemon).exists()) {
        test_support::skip("the daemons are not built: cargo build --workspace --bins");
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
    record_daemons(&mut text, dir);
    record_running_daemon(&mut text, dir);
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
