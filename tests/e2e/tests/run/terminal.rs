//! A session on a terminal.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;

use e2e::wait;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{headroom, program, run_script, skipped};

fn terminal() -> (OwnedFd, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (ours, theirs)
}

#[test]
fn the_command_owns_the_terminal_and_gets_one_interrupt() {
    if skipped() {
        return;
    }
    let (ours, theirs) = terminal();
    let script = "test -t 0 && test -t 1 && trap 'n=$((n+1))' INT; echo ready; \
                  while [ -z \"$n\" ]; do sleep 0.05; done; sleep 0.3; echo received $n; exit 6";
    let mut command = headroom();
    command.args(["run", "--", "sh", "-c", script]);
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
    command.stderr(theirs);
    // SAFETY: system calls alone; descriptor 0 is the terminal by then.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            if libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut writer = File::from(ours.try_clone().unwrap());
    let mut lines = BufReader::new(File::from(ours)).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    writer.write_all(b"\x03").unwrap();
    let received = lines.find(|line| line.contains("received"));
    // The terminal echoes its input.
    let received = received.as_deref().map(|line| line.trim_start_matches("^C"));
    assert_eq!(received, Some("received 1"), "by the terminal alone, not by us as well");
    let status = wait::until(wait::PATIENCE, || child.try_wait().unwrap());
    let code = status.map(|status| status.code());
    if code.is_none() {
        let _ = child.kill();
    }
    assert_eq!(code, Some(Some(6)));
}

#[test]
fn programs_open_pseudo_terminals_also_in_a_session_in_a_session() {
    if skipped() {
        return;
    }
    let headroom = program("headroom");
    let ended = run_script(&format!(
        "script -qec 'test -t 1 && echo first' /dev/null; \
         {headroom} run -- script -qec 'test -t 1 && tty && echo second' /dev/null"
    ));
    let lines: Vec<&str> = ended.out.lines().map(str::trim_end).collect();
    let [first, name, second] = lines[..] else { panic!("{ended:?}") };
    assert_eq!((first, second), ("first", "second"), "{ended:?}");
    assert!(name.contains("/pts/"), "{ended:?}");
}
