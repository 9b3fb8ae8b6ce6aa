//! Programs of a session under other programs: the table of docs/binder.md, a test for each row.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::raw_client::{build, folder};
use crate::support::{Outcome, headroom, outcome, program, skipped};

/// What the client prints when its calls were answered, one with a file.
const ANSWERED: &str = "64-bit service\nits reply\n";

/// Programs of packages that not every machine has.
const TOOLS: [&str; 5] = ["bwrap", "gdb", "strace", "tmux", "valgrind"];

/// A service and a client in C, in a folder that every user may write to.
struct Client {
    folder: TempDir,
    service: PathBuf,
    client: PathBuf,
}

impl Client {
    /// `None`: there are no sessions here.
    fn build(options: &[&str]) -> Option<Self> {
        if skipped() {
            return None;
        }
        let folder = folder(0o777);
        let service = build(folder.path(), "cc", &[])?;
        let client = build(folder.path(), "cc", options)?;
        Some(Self { folder, service, client })
    }

    /// Runs a command line of the shell in a session with the service; `CALL` in it is the client's
    /// command line.
    fn run(&self, options: &[&str], line: &str) -> Outcome {
        let service = format!("{} /dev/binder serve", self.service.display());
        let call = format!("{} /dev/binder call", self.client.display());
        let mut command = headroom();
        command.args(["run", "--service-manager", &service]).args(options);
        command.args(["--", "sh", "-c", &line.replace("CALL", &call)]);
        outcome(command.env("TERM", "dumb").current_dir(self.folder.path()))
    }
}

/// Whether the program of a line is installed; reported if it is not.
fn is_there(line: &str) -> bool {
    let name = line.split(' ').next().unwrap_or_default();
    let is_there = !TOOLS.contains(&name) || Path::new("/usr/bin").join(name).exists();
    if !is_there {
        test_support::skip(format_args!("{name} is not installed"));
    }
    is_there
}

/// Each of the lines runs the client, whose calls are answered.
fn all_are_answered(options: &[&str], compiler: &[&str], lines: &[&str]) {
    let Some(client) = Client::build(compiler) else { return };
    for line in lines.iter().filter(|line| is_there(line)) {
        let ended = client.run(options, line);
        assert!(ended.out.replace('\r', "").contains(ANSWERED), "{line}: {ended:?}");
    }
}

#[test]
fn clients_run_in_terminals_of_other_programs() {
    let tmux = "tmux -f /dev/null -S $PWD/socket new-session -d 'CALL >$PWD/out; mv out done'; \
                until [ -e done ]; do sleep 0.05; done; cat done; rm done";
    all_are_answered(&[], &[], &["script -qec 'CALL' /dev/null", tmux]);
}

#[test]
fn clients_run_in_namespaces_and_sandboxes_of_their_own() {
    let lines = [
        "unshare -Ur CALL",
        "unshare -Urmpf --mount-proc CALL",
        "bwrap --dev-bind / / --unshare-pid CALL",
        "bwrap --ro-bind / / --dev-bind /dev /dev --unshare-all CALL",
    ];
    all_are_answered(&[], &[], &lines);
}

#[test]
fn clients_run_under_tools_that_change_their_code() {
    all_are_answered(&[], &[], &["valgrind -q --error-exitcode=0 CALL"]);
    all_are_answered(&[], &["-fsanitize=address"], &["CALL"]);
    all_are_answered(&[], &["-fsanitize=undefined"], &["CALL"]);
}

#[test]
fn clients_under_debuggers_get_files_by_seccomp() {
    let lines = ["gdb -nx -q -batch -ex run --args CALL", "strace -f -o /dev/null CALL"];
    all_are_answered(&["--fd-passing", "seccomp"], &[], &lines);
    let Some(client) = Client::build(&[]) else { return };
    for line in lines.into_iter().filter(|line| is_there(line)) {
        // A traced thread cannot be traced by the daemon.
        let ended = client.run(&["--fd-passing", "ptrace"], line);
        assert!(ended.err.contains("cannot receive file descriptors"), "{line}: {ended:?}");
    }
}

#[test]
fn programs_that_give_privileges_give_none() {
    let Some(client) = Client::build(&[]) else { return };
    let id = client.folder.path().join("id");
    fs::copy("/usr/bin/id", &id).expect("a copy");
    fs::set_permissions(&id, PermissionsExt::from_mode(0o4755)).expect("its mode");
    let own = client.run(&[], "id -u");
    let ended = client.run(&[], "./id -u");
    assert_eq!((ended.code, &ended.out), (Some(0), &own.out), "{ended:?}");
    assert_ne!(ended.out, "0\n");
}

#[test]
fn sessions_run_in_sessions() {
    let nested = format!(
        "{} run --service-manager './raw_client-cc /dev/binder serve' -- CALL",
        program("headroom")
    );
    all_are_answered(&[], &[], &[&nested]);
}
