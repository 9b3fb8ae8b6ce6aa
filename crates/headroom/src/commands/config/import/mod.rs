//! `headroom config import earlyoom`: earlyoom's options as Headroom's configuration.
//!
//! Each option becomes lines of TOML below a comment that names it, or a comment with the reason
//! why there is no equivalent.

mod levels;
mod options;

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use headroom_linux::machine_memory::Meminfo;
use memory_ledger::rules::Pattern;
use serde::Serialize;

use crate::arguments::{EarlyoomOptions, Globals};
use crate::helpers::output;
use levels::{LevelLines, Machine};
use options::{Flag, Given, ImportError};

/// The exit code for options that earlyoom would refuse, as for our own command line.
const BAD_OPTIONS: u8 = 2;
/// Columns of a comment.
const WIDTH: usize = 100;

/// Runs the command.
pub fn earlyoom(globals: &Globals, arguments: &EarlyoomOptions) -> anyhow::Result<ExitCode> {
    let words = match &arguments.file {
        Some(path) => {
            let content = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            options::words_of_environment_file(&content)
        }
        None => options::words_of_command_line(&arguments.options),
    };
    match import(words, machine()?) {
        Ok(imported) => {
            output::print_as(globals.format(), &imported, || imported.toml.clone())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            output::warn(format_args!("{error}"));
            Ok(ExitCode::from(BAD_OPTIONS))
        }
    }
}

fn import(
    words: Result<Vec<String>, ImportError>,
    machine: Machine,
) -> Result<Imported, ImportError> {
    translate(&options::parse(&words?)?, machine)
}

fn machine() -> anyhow::Result<Machine> {
    let info = Meminfo::read(Path::new("/proc"))?;
    let kib = |bytes: Option<u64>| bytes.unwrap_or(0) >> 10;
    Ok(Machine { memory_kib: kib(info.total), swap_kib: kib(info.swap_total) })
}

/// The result.
#[derive(Debug, Serialize)]
struct Imported {
    /// The content of the file.
    toml: String,
    /// Each option, in the order of the command line.
    options: Vec<Translation>,
}

/// Translation of an option.
#[derive(Debug, Serialize)]
struct Translation {
    #[serde(flatten)]
    given: Given,
    /// Its lines of TOML; empty: there is no equivalent.
    lines: Vec<String>,
    /// Explanation of the lines, or the reason why there are none.
    comment: String,
}

impl Translation {
    fn new(given: &Given, lines: impl Into<Vec<String>>, comment: impl Into<String>) -> Self {
        Self { given: given.clone(), lines: lines.into(), comment: comment.into() }
    }

    fn none(given: &Given, comment: impl Into<String>) -> Self {
        Self::new(given, [], comment)
    }
}

/// Translates all options.
fn translate(given: &[Given], machine: Machine) -> Result<Imported, ImportError> {
    let mut options = Vec::new();
    for (at, one) in given.iter().enumerate() {
        // The value is checked even if a later option replaces it: earlyoom would not start.
        let translation = translate_one(one, given, machine)?;
        let later = given[at + 1..].iter().find(|other| other.flag == one.flag);
        options.push(match later {
            Some(later) => {
                Translation::none(one, format!("the later {} replaces it.", later.written()))
            }
            None => translation,
        });
    }
    Ok(Imported { toml: render(&options), options })
}

fn translate_one(one: &Given, all: &[Given], machine: Machine) -> Result<Translation, ImportError> {
    let none = |comment: &str| Ok(Translation::none(one, comment));
    match one.flag {
        Flag::MemoryPercent | Flag::MemorySize | Flag::SwapPercent | Flag::SwapSize => {
            let LevelLines { lines, comment } = levels::translate(one, all, machine)?;
            Ok(Translation::new(one, lines, comment))
        }
        Flag::RunAfter => Ok(Translation::new(
            one,
            [format!("after = [{}]", script(one)?)],
            "runs when the end of a kill is known. HEADROOM_PID, HEADROOM_NAME and HEADROOM_UID \
             replace EARLYOOM_PID, EARLYOOM_NAME and EARLYOOM_UID; nothing replaces \
             EARLYOOM_CMDLINE. Only root may be able to change the script or its folders.",
        )),
        Flag::RunBefore => Ok(Translation::new(
            one,
            [format!("before = [{}]", script(one)?), "budget-ms = 200".into()],
            "runs before a kill, which waits 200 ms at most, as earlyoom's does. HEADROOM_PID and \
             HEADROOM_UID replace EARLYOOM_PID and EARLYOOM_UID; nothing replaces EARLYOOM_NAME \
             and EARLYOOM_CMDLINE. Only root may be able to change the script or its folders.",
        )),
        Flag::IgnoreRoot => Ok(Translation::new(
            one,
            ["kill = \"never\"".into(), "user = \"root\"".into()],
            "processes of root are never killed.",
        )),
        Flag::Ignore => Ok(Translation::new(
            one,
            rule("avoid", one)?,
            "killed only when no other process is left. \"never\" needs a \"unit\", \"exe\", \
             \"cgroup\" or \"user\" in place of the name, which each process chooses for itself.",
        )),
        Flag::Avoid => Ok(Translation::new(
            one,
            rule("avoid", one)?,
            "killed only when no other process is left; earlyoom takes 300 off its oom_score.",
        )),
        Flag::Prefer => Ok(Translation::new(
            one,
            rule("prefer", one)?,
            "killed before all others; earlyoom adds 300 to its oom_score.",
        )),
        Flag::DryRun => Ok(Translation::new(
            one,
            ["enabled = false".into()],
            "the machine's memory is not watched, so no process is killed for it. Remove this \
             line to go live; `headroom explain` names the process that would be killed.",
        )),
        Flag::SortByRss => none(
            "Headroom always compares memory (resident, swapped, and recent growth), never \
             oom_score.",
        ),
        Flag::ProcessGroup => none(
            "Headroom kills one process, or a whole family of processes if their growth is the \
             cause. `headroom kill --group` kills a process group by hand.",
        ),
        Flag::Notify => none("run `headroom notify` in each desktop session."),
        Flag::Priority => none(
            "the unit of headroom-oomd sets OOMScoreAdjust=-1000, and the daemon runs with \
             real-time priority while it kills.",
        ),
        Flag::ReportInterval => {
            number(one, "3600")?;
            none("there are no periodic reports; `headroom top` and `headroom metrics` show them.")
        }
        Flag::Wait => {
            number(one, "10")?;
            none("how long a victim may take follows from its size.")
        }
        Flag::Syslog => none("headroom-oomd logs to the journal."),
        Flag::Debug => none(
            "set HEADROOM_LOG=debug: `systemctl edit headroom-oomd`, [Service], \
             Environment=HEADROOM_LOG=debug.",
        ),
        Flag::KernelKiller => none("earlyoom ignores it since version 1.2."),
        Flag::IgnoreScoreAdj => none("earlyoom ignores it since version 1.7."),
        Flag::Version => none("earlyoom prints its version and ends."),
        Flag::Help => none("earlyoom prints its help and ends."),
    }
}

fn script(one: &Given) -> Result<String, ImportError> {
    if !one.value.starts_with('/') {
        let fact = format!("\"{}\" is not an absolute path", one.value);
        return Err(one.error(fact, "/PATH/TO/SCRIPT"));
    }
    Ok(quoted(&one.value))
}

fn number(one: &Given, example: &str) -> Result<f64, ImportError> {
    match one.value.trim().parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err(one.error(format!("\"{}\" is not a number of seconds", one.value), example)),
    }
}

fn rule(kill: &str, one: &Given) -> Result<[String; 2], ImportError> {
    if let Err(error) = Pattern::regex(&one.value) {
        // The last line of the library's message is the reason.
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default();
        let fact = format!("\"{}\": {}", one.value, reason.trim_start_matches("error: "));
        return Err(one.error(fact, "'^(first|second)$', an extended regular expression"));
    }
    Ok([format!("kill = \"{kill}\""), format!("name-regex = {}", quoted(&one.value))])
}

/// A TOML string: a literal one where that is possible, so that backslashes stay as they are.
fn quoted(text: &str) -> String {
    if !text.contains('\'') && !text.contains(char::is_control) {
        return format!("'{text}'");
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The section that the lines of an option belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Machine,
    Hooks,
    /// Each option is a section of its own.
    Rule,
}

/// In the order of the file: the first rule that matches decides, and a process that earlyoom
/// ignores is spared even if it is preferred.
const ORDER: [(Section, &[Flag]); 6] = [
    (
        Section::Machine,
        &[Flag::DryRun, Flag::MemoryPercent, Flag::MemorySize, Flag::SwapPercent, Flag::SwapSize],
    ),
    (Section::Hooks, &[Flag::RunBefore, Flag::RunAfter]),
    (Section::Rule, &[Flag::IgnoreRoot]),
    (Section::Rule, &[Flag::Ignore]),
    (Section::Rule, &[Flag::Avoid]),
    (Section::Rule, &[Flag::Prefer]),
];

fn render(options: &[Translation]) -> String {
    let mut text = String::new();
    let line: Vec<String> = options.iter().map(|one| one.given.written()).collect();
    comment(&mut text, &format!("From earlyoom {}", line.join(" ")).trim_end().replace('\n', " "));
    comment(
        &mut text,
        "Keep this as /etc/headroom/oomd.d/earlyoom.toml: `headroom config check` shows the \
         result, `headroom config reload` puts it into force. Disable earlyoom then.",
    );
    let has = |flags: [Flag; 2]| options.iter().any(|one| flags.contains(&one.given.flag));
    for (what, flags) in [
        ("memory", [Flag::MemoryPercent, Flag::MemorySize]),
        ("swap", [Flag::SwapPercent, Flag::SwapSize]),
    ] {
        if !has(flags) {
            let default = format!(
                "Levels of {what}: earlyoom's default, SIGTERM at 10 % and SIGKILL at 5 %, is \
                 Headroom's as well."
            );
            comment(&mut text, &default);
        }
    }
    comment(
        &mut text,
        "Unlike earlyoom, Headroom also kills when memory runs out within 100 ms and when all \
         tasks stall; forecast-ms = 0 and stall-ms = 0 in [machine] turn that off.",
    );
    for (section, flags) in ORDER {
        let mut head = Some(match section {
            Section::Machine => "[machine]",
            Section::Hooks => "[hooks]",
            Section::Rule => "[[rule]]",
        });
        for flag in flags {
            let with_lines = |one: &&Translation| one.given.flag == *flag && !one.lines.is_empty();
            for one in options.iter().filter(with_lines) {
                if let Some(head) = head.take() {
                    let _ = writeln!(text, "\n{head}");
                }
                comment(&mut text, &described(one));
                for line in &one.lines {
                    let _ = writeln!(text, "{line}");
                }
            }
        }
    }
    let mut without = options.iter().filter(|one| one.lines.is_empty()).peekable();
    if without.peek().is_some() {
        text.push_str("\n# Options without lines of their own:\n");
    }
    for one in without {
        comment(&mut text, &described(one));
    }
    text
}

fn described(one: &Translation) -> String {
    format!("{}: {}", one.given.written().replace(char::is_control, " "), one.comment)
}

/// Appends a comment, wrapped at [`WIDTH`] columns as far as its words allow that.
fn comment(text: &mut String, content: &str) {
    let mut columns = 0;
    for word in content.split(' ').filter(|word| !word.is_empty()) {
        let width = word.chars().count() + 1;
        if columns + width > WIDTH {
            text.push('\n');
            columns = 0;
        }
        if columns == 0 {
            text.push('#');
            columns = 1;
        }
        text.push(' ');
        text.push_str(word);
        columns += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::options::{KNOWN, parse};
    use super::*;

    /// 8 GiB of memory and 4 GiB of swap.
    const MACHINE: Machine = Machine { memory_kib: 8 << 20, swap_kib: 4 << 20 };

    fn imported(line: &str) -> Result<Imported, ImportError> {
        translate(&parse(&shlex::split(line).unwrap())?, MACHINE)
    }

    fn table(line: &str) -> toml::Table {
        let toml = imported(line).unwrap().toml;
        toml.parse().unwrap_or_else(|error| panic!("{line}: {error}\n{toml}"))
    }

    /// The value at `section.key`, or `rule.0.key`.
    fn value(table: &toml::Table, path: &str) -> Option<Value> {
        let mut parts = path.split('.');
        let mut value = table.get(parts.next()?)?;
        for part in parts {
            value = match part.parse::<usize>() {
                Ok(index) => value.get(index)?,
                Err(_) => value.get(part)?,
            };
        }
        Some(value.clone())
    }

    #[test]
    fn every_option_becomes_lines_or_a_reason() {
        // Options; values in the TOML; a part of the comment.
        type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        let cases: [Case; 23] = [
            (
                "-m 15",
                &[("machine.soft", "15%"), ("machine.hard", "7.5%")],
                "SIGTERM at 15% of available memory, SIGKILL at 7.5%",
            ),
            (
                "-s 10,2",
                &[("machine.swap-soft", "10%"), ("machine.swap-hard", "2%")],
                "SIGTERM at 10% of free swap, SIGKILL at 2%",
            ),
            (
                "-M 1048576",
                &[("machine.soft", "1G"), ("machine.hard", "512M")],
                "SIGTERM at 1G of available memory",
            ),
            (
                "-S 2097152,1000",
                &[("machine.swap-soft", "2G"), ("machine.swap-hard", "1000K")],
                "SIGKILL at 1000K",
            ),
            ("-k", &[], "ignores it since version 1.2"),
            ("-i", &[], "ignores it since version 1.7"),
            ("-n", &[], "headroom notify"),
            ("-N /bin/after", &[("hooks.after.0", "/bin/after")], "HEADROOM_PID"),
            ("-P /bin/before", &[("hooks.before.0", "/bin/before")], "200 ms"),
            ("-g", &[], "headroom kill --group"),
            ("-p", &[], "OOMScoreAdjust=-1000"),
            ("-r 3600", &[], "headroom metrics"),
            ("-w 20", &[], "follows from its size"),
            (
                "--prefer '^(a|b)$'",
                &[("rule.0.kill", "prefer"), ("rule.0.name-regex", "^(a|b)$")],
                "before all others",
            ),
            (
                r"--avoid '\.sh$'",
                &[("rule.0.kill", "avoid"), ("rule.0.name-regex", r"\.sh$")],
                "only when no other process is left",
            ),
            (
                "--ignore \"it's\"",
                &[("rule.0.kill", "avoid"), ("rule.0.name-regex", "it's")],
                "only when no other process is left",
            ),
            (
                "--ignore-root-user",
                &[("rule.0.kill", "never"), ("rule.0.user", "root")],
                "never killed",
            ),
            ("--sort-by-rss", &[], "always compares memory"),
            ("--dryrun", &[], "headroom explain"),
            ("--syslog", &[], "journal"),
            ("-d", &[], "HEADROOM_LOG=debug"),
            ("-v", &[], "prints its version"),
            ("--help", &[], "prints its help"),
        ];
        let mut seen = Vec::new();
        for (line, values, part) in cases {
            let result = imported(line).unwrap();
            let [option] = &result.options[..] else { panic!("{line}: {result:?}") };
            seen.push(option.given.flag);
            let table = table(line);
            for (path, text) in values {
                let found = value(&table, path);
                assert_eq!(found.as_ref().and_then(Value::as_str), Some(*text), "{line}: {path}");
            }
            let unwrapped = result.toml.replace("\n# ", " ");
            assert!(option.comment.contains(part), "{line}: {}", option.comment);
            assert!(unwrapped.contains(&option.comment), "{line}: {}", result.toml);
            assert!(
                unwrapped.contains(&format!("{}: ", option.given.written())),
                "{}",
                result.toml
            );
            assert!(result.toml.lines().all(|line| line.chars().count() <= WIDTH), "{unwrapped}");
        }
        let missing: Vec<Flag> =
            KNOWN.iter().map(|known| known.flag).filter(|flag| !seen.contains(flag)).collect();
        assert_eq!(missing, [], "options without a case");
    }

    #[test]
    fn numbers_and_truths_are_of_their_type() {
        let dry = table("--dryrun -m 20");
        assert_eq!(value(&dry, "machine.enabled"), Some(Value::Boolean(false)));
        let before = table("-P /x");
        assert_eq!(value(&before, "hooks.budget-ms"), Some(Value::Integer(200)));
        assert!(table("").is_empty() && table("-k -r 60").is_empty());
    }

    #[test]
    fn rules_are_in_the_order_in_which_earlyoom_applies_them() {
        let all = table("--prefer a --avoid b --ignore c --ignore-root-user");
        let kills: Vec<_> = (0..4)
            .map(|at| value(&all, &format!("rule.{at}.name-regex")).map(|it| it.to_string()))
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(kills, [None, some("\"c\""), some("\"b\""), some("\"a\"")]);
    }

    #[test]
    fn the_last_of_several_counts_and_the_earlier_is_checked() {
        let result = imported("-m 5 -n -m 20").unwrap();
        assert!(result.options[0].lines.is_empty());
        assert_eq!(result.options[0].comment, "the later -m 20 replaces it.");
        assert_eq!(value(&table("-m 5 -m 20"), "machine.soft"), Some("20%".into()));
        assert!(imported("-m x -m 20").is_err());
    }

    #[test]
    fn a_bad_value_names_the_option_and_the_remedy() {
        for (line, fact, remedy) in [
            ("-r soon", "-r: \"soon\" is not a number", "write -r 3600"),
            ("-w -1", "-w: \"-1\" is not a number", "write -w 10"),
            ("-N after.sh", "-N: \"after.sh\" is not an absolute", "write -N /PATH/TO/SCRIPT"),
            ("--prefer '('", "--prefer: \"(\": unclosed group", "write --prefer '^"),
        ] {
            let error = imported(line).expect_err(line).to_string();
            assert!(error.contains(fact) && error.contains(remedy), "{line}: {error}");
        }
    }
}
