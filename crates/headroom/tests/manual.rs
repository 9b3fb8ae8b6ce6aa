//! The manual covers all of `--help`, and the installation puts it into the right folder.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::help::{all_commands, commands, stdout_of};

const MANUAL: &str = include_str!("../../../dist/man/headroom.1");

fn options(help: &str) -> BTreeSet<String> {
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn the_manual_has_every_command_and_every_option() {
    let manual = MANUAL.replace("\\-", "-");
    let found = all_commands();
    assert!(found.len() > 15, "{found:?}");
    for (path, help) in found {
        let is_group = !commands(&help).is_empty();
        let heading = format!(".SS \"{}", path.join(" "));
        assert!(is_group || manual.contains(&heading), "no section on {path:?}");
        for option in options(&help) {
            assert!(manual.contains(&option), "{path:?}: nothing about {option}");
        }
    }
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout_of(&["completions", shell]);
        assert!(script.contains("run-oom-killer") && script.contains("binderd-socket"), "{shell}");
    }
}

#[test]
fn users_are_completed() {
    // A word that is not complete, after the words of the command.
    for words in ["limit set roo", "limit get roo", "explain roo", "run-oom-killer roo"] {
        let complete = format!(
            "source <('{}' completions bash); COMP_WORDS=(headroom {words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _headroom headroom roo; \
             echo \"${{COMPREPLY[@]}}\"",
            env!("CARGO_BIN_EXE_headroom")
        );
        let output = Command::new("bash").args(["-c", &complete]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "root\n", "{words}: {output:?}");
    }
    assert!(stdout_of(&["completions", "zsh"]).contains(":_users'"));
    let fish = stdout_of(&["completions", "fish"]);
    for condition in [
        "limit; and __fish_seen_subcommand_from set",
        "limit; and __fish_seen_subcommand_from clear",
        "explain",
        "run-oom-killer",
    ] {
        let line = format!(
            "-n \"__fish_headroom_using_subcommand {condition}\" -f -a \"(__fish_complete_users)\""
        );
        assert_eq!(fish.matches(&line).count(), 1, "{condition}");
    }
}

#[test]
fn an_installation_is_complete_and_names_the_places_it_is_in() {
    let built = tempfile::tempdir().unwrap();
    let into = tempfile::tempdir().unwrap();
    let binaries = ["headroom-oomd", "headroom-binderd"];
    let preloaded = ["libtmalloc_preload.so", "libbinder_ring_preload.so"];
    let libraries = ["libtmalloc.so", "libtmalloc.a"];
    for name in binaries.iter().chain(&libraries).chain(&preloaded) {
        std::fs::write(built.path().join(name), name).unwrap();
    }
    // Copied by another process: a child that another test forks at the same time would have the
    // copy open for writing.
    let (headroom, copy) = (env!("CARGO_BIN_EXE_headroom"), built.path().join("headroom"));
    assert!(Command::new("cp").arg(headroom).arg(&copy).status().unwrap().success());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let done = Command::new(&script)
        .arg(built.path())
        .env("DESTDIR", into.path())
        .env("PREFIX", "/opt/headroom")
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let read = |path: &str| {
        let path = into.path().join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    for name in binaries {
        assert_eq!(read(&format!("opt/headroom/bin/{name}")), name);
    }
    let libraries = ["libtmalloc.so", "libtmalloc.so.0", "libtmalloc.a"];
    let preloaded = preloaded.map(|name| format!("headroom/{name}"));
    for path in libraries.map(str::to_owned).iter().chain(&preloaded) {
        assert!(into.path().join("opt/headroom/lib").join(path).exists(), "{path}");
    }
    assert!(read("opt/headroom/include/tmalloc.h").contains("tmalloc"));
    let described = read("opt/headroom/lib/pkgconfig/tmalloc.pc");
    assert!(described.starts_with("prefix=/opt/headroom\n") && !described.contains('@'));
    assert!(described.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"))), "{described}");
    for daemon in ["headroom-oomd", "headroom-binderd"] {
        let unit = read(&format!("opt/headroom/lib/systemd/system/{daemon}.service"));
        assert!(unit.contains(&format!("ExecStart=/opt/headroom/bin/{daemon}\n")), "{unit}");
    }
    let template = read("opt/headroom/lib/systemd/system/headroom-binderd@.service");
    assert!(template.contains("/opt/headroom/bin/headroom-binderd --mount /run/headroom/bus/%i"));
    for page in
        ["man1/headroom.1", "man8/headroom-oomd.8", "man5/oomd.toml.5", "man8/headroom-binderd.8"]
    {
        assert!(read(&format!("opt/headroom/share/man/{page}")).contains(".TH"));
    }
    let bash = read("opt/headroom/share/bash-completion/completions/headroom");
    assert!(bash.contains("run-oom-killer"));
    for path in ["zsh/site-functions/_headroom", "fish/vendor_completions.d/headroom.fish"] {
        assert!(!read(&format!("opt/headroom/share/{path}")).is_empty());
    }
    let removed = Command::new(script)
        .arg("--remove")
        .env("DESTDIR", into.path())
        .env("PREFIX", "/opt/headroom")
        .output()
        .unwrap();
    assert!(removed.status.success(), "{removed:?}");
    let left = files_below(into.path());
    assert!(left.is_empty(), "{left:?}");
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| {
        if path.is_dir() && !path.is_symlink() { files_below(&path) } else { vec![path] }
    };
    entries.flat_map(below).collect()
}
