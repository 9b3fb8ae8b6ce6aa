//! `headroom config import earlyoom`: the daemon accepts its output, and errors name the option.

mod support;

use std::path::Path;

use control::configuration::Configuration;
use support::{headroom, run};

/// Imports options; returns the exit code, the TOML and the error.
fn import(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    run(headroom(dir).args(["config", "import", "earlyoom"]).args(arguments))
}

/// The configuration that the daemon reads from a file; `None` if the daemon is not built.
fn checked(dir: &Path, toml: &str) -> Option<Configuration> {
    let daemon = Path::new(env!("CARGO_BIN_EXE_headroom")).with_file_name("headroom-oomd");
    if !daemon.exists() {
        test_support::skip("headroom-oomd is not built: cargo build --workspace --bins");
        return None;
    }
    let file = dir.join("oomd.toml");
    std::fs::write(&file, toml).unwrap();
    let (code, json, stderr) =
        run(headroom(dir).args(["--json", "config", "check", "--config"]).arg(&file));
    assert_eq!(code, Some(0), "{stderr}\n{toml}");
    Some(serde_json::from_str(&json).unwrap())
}

#[test]
fn the_daemon_takes_the_result_with_the_levels_and_rules_of_earlyoom() {
    let dir = tempfile::tempdir().unwrap();
    let options = "-m 15,10 -s 100 -M 1 -r 3600 -p -g --prefer '^(a|b)$' --avoid \"it's\" \
                   --ignore '\\.x$' --ignore-root-user -N /bin/true -P /bin/true -n -k -i -d";
    let (code, toml, stderr) = import(dir.path(), &[options]);
    assert_eq!(code, Some(0), "{stderr}");
    let Some(configuration) = checked(dir.path(), &toml) else { return };
    let levels = configuration.machine.expect("the machine is watched");
    assert_eq!((&*levels.soft, &*levels.hard), ("1024 bytes", "0 bytes"));
    assert_eq!((&*levels.swap_soft, &*levels.swap_hard), ("100%", "50%"));
    let expected =
        ["never: uid 0", "avoid: name ~ \\.x$", "avoid: name ~ it's", "prefer: name ~ ^(a|b)$"];
    assert_eq!(configuration.rules, expected);
    let notifications = configuration.notifications.join("\n");
    assert!(
        notifications.contains("before a kill") && notifications.contains("for 200 ms"),
        "{notifications}"
    );
    assert!(notifications.contains("after a kill"), "{notifications}");
}

#[test]
fn words_are_taken_as_a_shell_has_split_them() {
    let dir = tempfile::tempdir().unwrap();
    let (code, toml, stderr) = import(dir.path(), &["-m", "15,10", "--prefer", "a b"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(toml.contains("name-regex = 'a b'"), "{toml}");
    let Some(configuration) = checked(dir.path(), &toml) else { return };
    let levels = configuration.machine.expect("the machine is watched");
    assert_eq!((&*levels.soft, &*levels.hard), ("15%", "10%"));
    assert_eq!((&*levels.swap_soft, &*levels.swap_hard), ("10%", "5%"), "the default of both");
}

#[test]
fn a_dry_run_stays_a_dry_run() {
    let dir = tempfile::tempdir().unwrap();
    let (_, toml, _) = import(dir.path(), &["--dryrun -m 20"]);
    let Some(configuration) = checked(dir.path(), &toml) else { return };
    assert!(configuration.machine.is_none(), "{toml}");
}

#[test]
fn the_file_of_the_distribution_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("earlyoom");
    std::fs::write(
        &file,
        "# It's sourced by /bin/sh.\nEARLYOOM_ARGS=\"-r 3600 --avoid '(^|/)(init|X|sshd)$'\"\n",
    )
    .unwrap();
    let (code, toml, stderr) = import(dir.path(), &["--file", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(toml.contains("name-regex = '(^|/)(init|X|sshd)$'"), "{toml}");
    assert!(toml.contains("# -r 3600: there are no periodic reports"), "{toml}");
    checked(dir.path(), &toml);
    let (code, _, stderr) = import(dir.path(), &["--file", "/nonexistent/earlyoom"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("cannot read /nonexistent/earlyoom"), "{stderr}");
}

#[test]
fn mistakes_are_exit_code_2_and_name_the_option_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    for (options, fact, remedy) in [
        (
            "--no-such",
            "--no-such: earlyoom 1.7 and 1.8 have no such option",
            "remove or correct it",
        ),
        ("-m lots", "-m: \"lots\" is not a number from 0 to 99", "write -m 10,5"),
        ("--prefer '(", "quotes: a quote is not closed", "close it"),
    ] {
        let (code, stdout, stderr) = import(dir.path(), &[options]);
        assert_eq!((code, &*stdout), (Some(2), ""), "{stderr}");
        assert!(stderr.contains(fact) && stderr.contains(remedy), "{stderr}");
    }
    let (code, _, stderr) = import(dir.path(), &[]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("OPTIONS"), "{stderr}");
}

#[test]
fn as_json_each_option_has_its_lines_and_its_comment() {
    let dir = tempfile::tempdir().unwrap();
    let (code, json, _) =
        run(headroom(dir.path()).args(["--json", "config", "import", "earlyoom", "-m 15,10 -k"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(json["options"][0]["name"], "-m");
    assert_eq!(json["options"][0]["lines"][0], "soft = \"15%\"");
    assert_eq!(json["options"][1]["lines"], serde_json::json!([]));
    assert!(json["toml"].as_str().unwrap().contains("[machine]"));
}
