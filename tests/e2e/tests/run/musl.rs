//! Clients in C, built with musl and with the C library of this machine, dynamic and static.

use crate::raw_client::{build, folder};
use crate::support::{headroom, outcome, skipped};

/// Compilers and their options.
const BUILDS: [(&str, &[&str]); 4] =
    [("cc", &[]), ("cc", &["-static"]), ("musl-gcc", &[]), ("musl-gcc", &["-static"])];

#[test]
fn clients_of_each_c_library_call_each_other_and_pass_files() {
    if skipped() {
        return;
    }
    let folder = folder(0o755);
    let built = BUILDS.map(|(compiler, options)| build(folder.path(), compiler, options));
    let clients: Vec<_> =
        built.iter().flatten().map(|path| path.to_str().expect("a path that is text")).collect();
    for how in ["ptrace", "seccomp"] {
        for (service, caller) in clients.iter().zip(clients.iter().cycle().skip(1)) {
            let service = format!("{service} /dev/binder serve");
            let args = ["run", "--fd-passing", how, "--service-manager", &service, "--", caller];
            let ended = outcome(headroom().args(args).args(["/dev/binder", "call"]));
            assert_eq!(ended.code, Some(0), "{how}, {service}, {caller}: {ended:?}");
            let expected = "64-bit service\nits reply\n";
            assert_eq!(ended.out, expected, "{how}, {service}, {caller}: {ended:?}");
        }
    }
}

#[test]
fn a_context_manager_may_pass_null_where_the_library_is_preloaded() {
    if skipped() {
        return;
    }
    let folder = folder(0o755);
    for (options, code, error) in [
        (&[][..], 0, ""),
        (&["-static"][..], 1, "raw_client: BINDER_SET_CONTEXT_MGR: Bad address\n"),
    ] {
        let Some(program) = build(folder.path(), "cc", options) else { return };
        let args = ["run", "--", program.to_str().expect("text"), "/dev/binder", "manage"];
        let ended = outcome(headroom().args(args));
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), error), "{options:?}");
    }
}

#[test]
fn a_client_that_may_only_call_ioctl_goes_on_calling() {
    if skipped() {
        return;
    }
    let folder = folder(0o755);
    let Some(program) = build(folder.path(), "cc", &[]) else { return };
    let program = program.to_str().expect("text");
    let service = format!("{program} /dev/binder serve");
    for by in ["prctl", "syscall"] {
        let args = ["run", "--service-manager", &service, "--", program, "/dev/binder", by];
        let ended = outcome(headroom().args(args));
        assert_eq!(ended.out, "all calls were answered\n", "{by}: {ended:?}");
    }
}
