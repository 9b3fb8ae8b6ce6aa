//! Unmodified programs run with the library preloaded.

use std::path::Path;
use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str], socket: &str) -> Option<Output> {
    let found = ["/bin", "/usr/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(program));
    let Some(program) = found.into_iter().find(|program| program.exists()) else {
        test_support::skip(format_args!("{program} is not installed"));
        return None;
    };
    let mut command = Command::new(program);
    let library = test_support::programs::library("libtmalloc_preload.so");
    command.args(arguments).env("LD_PRELOAD", library).env("HEADROOM_LEASE_SOCKET", socket);
    Some(command.output().unwrap())
}

/// The program runs as usual, and prints once that no memory is reserved.
fn runs(program: &str, arguments: &[&str], expected: &str) {
    let Some(output) = run(program, arguments, "/nonexistent/lease.sock") else { return };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {}: {stderr}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{program}");
    assert_eq!(stderr.matches("memory is not reserved").count(), 1, "{program}: {stderr}");
}

#[test]
fn a_shell_with_children_runs() {
    let script = "x=$(printf a; printf b | cat); echo $x";
    let Some(output) = run("sh", &["-c", script], "/nonexistent/lease.sock") else { return };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ab");
}

#[test]
fn python_with_threads_runs() {
    let script = "import threading\nr=[]\n\
        ts=[threading.Thread(target=lambda: r.append(len(bytearray(1<<20)))) for _ in range(8)]\n\
        [t.start() for t in ts]; [t.join() for t in ts]; print(sum(r) >> 20)";
    runs("python3.11", &["-c", script], "8");
}

#[test]
fn node_runs() {
    runs(
        "node",
        &["-e", "console.log(Array.from({length: 1e5}, (_, i) => ({i})).length)"],
        "100000",
    );
}
