//! `headroom earlyoom` beside earlyoom itself, and on its own in a pid namespace where nobody else can be hit.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A child that is killed and waited for on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program that Debian ships, where `scripts/setup test` has put it.
fn real_earlyoom() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_headroom")).parent()?.parent()?;
    let path = target.join("clients/earlyoom/root/usr/bin/earlyoom");
    path.is_file().then_some(path)
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The highest level is 99 %: so that less than that is available on any machine, we hold some of it.
fn take_some_memory() {
    static BALLAST: OnceLock<Vec<u8>> = OnceLock::new();
    BALLAST.get_or_init(|| {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kib: usize = total.trim().trim_end_matches(" kB").parse().unwrap();
        vec![1; (kib << 10) / 100 * 3 / 2]
    });
}

/// Both outputs of a running program, line by line.
fn lines(command: &mut Command) -> (Killed, Receiver<String>) {
    take_some_memory();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Killed(command.spawn().expect("cannot start it"));
    let (send, receive) = channel();
    let outputs: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(child.0.stdout.take().unwrap()), Box::new(child.0.stderr.take().unwrap())];
    for output in outputs {
        let send = send.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| send.send(line)).take_while(Result::is_ok).count()
        });
    }
    (child, receive)
}

/// Waits for a line that says this, and returns it.
fn said(lines: &Receiver<String>, what: &str) -> String {
    let (mut all, end) = (String::new(), std::time::Instant::now() + PATIENCE);
    let left = || end.saturating_duration_since(std::time::Instant::now());
    while let Ok(line) = lines.recv_timeout(left()) {
        if line.contains(what) {
            return line;
        }
        all += &format!("{line}\n");
    }
    panic!("it did not say {what:?} but\n{all}")
}

/// The signal and the pid of the first victim: both programs say `SIGTERM to process 4711 uid ...`.
fn verdict(command: &mut Command, arguments: &[&str]) -> (String, u32) {
    let (_child, lines) = lines(command.args(["--dryrun", "-r", "0"]).args(arguments));
    let line = said(&lines, " to process ");
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "to").unwrap();
    (words[at - 1].to_owned(), words[at + 2].parse().unwrap())
}

/// A program of this name that does nothing and that everybody would kill first.
fn volunteer(dir: &Path, name: &str, oom_score_adj: i32) -> Killed {
    let path = dir.join(name);
    // By another process: a child that some other test forks just now would have the copy open for writing.
    assert!(Command::new("cp").arg("/bin/sleep").arg(&path).status().unwrap().success());
    let child = Killed(Command::new(&path).arg("1000").spawn().unwrap());
    let pid = child.0.id();
    // Its name is that of this test until it has begun.
    let begun = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == name;
    let start = std::time::Instant::now();
    while !begun() {
        assert!(start.elapsed() < PATIENCE, "{name} does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), oom_score_adj.to_string()).unwrap();
    child
}

#[test]
fn the_same_verdict_as_earlyooms_own_on_the_same_machine() {
    let Some(real) = real_earlyoom() else {
        return println!("skipped: no earlyoom here; `scripts/setup test` unpacks it");
    };
    let dir = tempfile::tempdir().unwrap();
    let first = volunteer(dir.path(), "eo-first", 980);
    let second = volunteer(dir.path(), "eo-second", 900);
    let (first, second) = (first.0.id(), second.0.id());
    let all = ["-m", "99", "-s", "100"];
    let kill = ["-m", "99,99", "-s", "100,100"];
    let cases: [(&[&str], &str, u32); 5] = [
        (&all, "SIGTERM", first),
        (&kill, "SIGKILL", first),
        (&["-m", "99", "-s", "100", "--avoid", "^eo-first$"], "SIGTERM", second),
        (&["-m", "99", "-s", "100", "--prefer=^(eo-sec.*|other)$"], "SIGTERM", second),
        (&["-m99,99", "-s100,100", "-g", "--avoid", "eo-", "--prefer", "d$"], "SIGKILL", second),
    ];
    for (arguments, signal, pid) in cases {
        let expected = (signal.to_owned(), pid);
        let ours = verdict(Command::new(env!("CARGO_BIN_EXE_headroom")).arg("earlyoom"), arguments);
        assert_eq!(ours, expected, "ours: {arguments:?}");
        let theirs = verdict(&mut Command::new(&real), arguments);
        assert_eq!(theirs, expected, "earlyoom's: {arguments:?}");
    }
}

#[test]
fn the_same_exit_codes_as_earlyooms_own() {
    let Some(real) = real_earlyoom() else {
        return println!("skipped: no earlyoom here; `scripts/setup test` unpacks it");
    };
    for line in
        ["-m 0", "-m 100", "-s 101", "-s x", "--nope", "extra", "-m", "--prefer (", "-v", "-h"]
    {
        let code = |command: &mut Command| {
            command.arg("--dryrun").args(line.split(' ')).output().unwrap().status.code()
        };
        let ours = code(Command::new(env!("CARGO_BIN_EXE_headroom")).arg("earlyoom"));
        assert_eq!(ours, code(Command::new("timeout").arg("5").arg(&real)), "{line}");
    }
}

/// Runs it as pid 1 of a pid namespace, beside what `script` starts (from pid 3 on): it sees nobody else.
fn alone(dir: &Path, script: &str, arguments: &str) -> (Killed, Receiver<String>) {
    let us = env!("CARGO_BIN_EXE_headroom");
    // Pid 2 is the kernel's elsewhere, and left alone.
    let script = format!("true & wait; {script}\nexec {us} earlyoom -r 0 {arguments}");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
    lines(command.current_dir(dir))
}

#[test]
fn the_victim_dies_and_the_hooks_are_told() {
    if !root() {
        return println!("skipped: needs root for a pid namespace");
    }
    let dir = tempfile::tempdir().unwrap();
    let hook = |name: &str| {
        let path = dir.path().join(name);
        let text = format!(
            "#!/bin/sh\necho $EARLYOOM_PID $EARLYOOM_UID $EARLYOOM_NAME: $EARLYOOM_CMDLINE > {name}.told.new\n\
                            mv {name}.told.new {name}.told\n"
        );
        std::fs::write(&path, text).unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, all).unwrap();
        path.display().to_string()
    };
    let arguments = format!(
        "-m 99,99 -s 100,100 --ignore '^(after|before|mv|sh)$' -N {} -P {}",
        hook("after"),
        hook("before")
    );
    let (_child, lines) = alone(dir.path(), "sleep 1000 &", &arguments);
    said(&lines, "SIGKILL to process 3 uid 0 \"sleep\"");
    said(&lines, "1 of 1 processes are gone");
    said(&lines, "process 3 is gone after");
    said(&lines, "nobody can be killed");
    for name in ["before.told", "after.told"] {
        let start = std::time::Instant::now();
        let told = loop {
            match std::fs::read_to_string(dir.path().join(name)) {
                Ok(told) => break told,
                Err(_) => assert!(start.elapsed() < PATIENCE, "{name} is missing"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert_eq!(told, "3 0 sleep: sleep 1000\n");
    }
}

#[test]
fn who_is_asked_may_end_by_itself_and_who_ignores_it_stays_while_memory_is_above_the_second_level()
{
    if !root() {
        return println!("skipped: needs root for a pid namespace");
    }
    let dir = tempfile::tempdir().unwrap();
    let levels = "-m 99,0.0001 -s 100,100";
    let (_child, lines) = alone(dir.path(), "sleep 1000 &", levels);
    said(&lines, "SIGTERM to process 3");
    said(&lines, "process 3 is gone after");
    drop(_child);
    let deaf = "sh -c 'trap \"\" TERM; : > ready; while :; do sleep 0.1; done' & while ! [ -e ready ]; do sleep 0.01; done";
    let (_child, lines) = alone(dir.path(), deaf, &format!("{levels} -w 0.3 --ignore '^sleep$'"));
    said(&lines, "SIGTERM to process 3");
    said(&lines, "process 3 is still there: it was asked, and has not ended");
}

#[test]
fn by_resident_set_and_whole_groups_and_under_the_name_of_earlyoom() {
    if !root() {
        return println!("skipped: needs root for a pid namespace");
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_headroom"), dir.path().join("earlyoom"))
        .unwrap();
    // The first of a group has the most memory; its child goes with it.
    let fat = "setsid sh -c 'sleep 1000 & x=$(head -c 20000000 /dev/zero | tr \"\\\\0\" x); : > ready; wait' & \
               while ! [ -e ready ]; do sleep 0.01; done";
    let script = format!(
        "true & wait; {fat}\nexec ./earlyoom -r 0 -m 99,99 -s 100,100 --sort-by-rss -g --ignore-root-user"
    );
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
    let (_child, lines_of) = lines(command.current_dir(dir.path()));
    said(&lines_of, "nobody can be killed");
    drop(_child);
    std::fs::remove_file(dir.path().join("ready")).unwrap();
    let mut command = Command::new("unshare");
    let script = script.replace(" --ignore-root-user", "");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
    let (_child, lines_of) = lines(command.current_dir(dir.path()));
    said(&lines_of, "SIGKILL to process 3");
    said(&lines_of, "2 of 2 processes are gone");
}
