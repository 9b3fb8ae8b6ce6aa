//! earlyoom's options, out of a command line or of `/etc/default/earlyoom`: short ones that can be
//! combined, long ones that can be abbreviated.

use std::fmt;

use serde::Serialize;

/// The variable that earlyoom's unit and init script take the options from.
const VARIABLE: &str = "EARLYOOM_ARGS";

/// An option that cannot be translated, the fact, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct ImportError {
    /// As it is written, with its dashes.
    pub option: String,
    pub fact: String,
    pub remedy: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.option, self.fact, self.remedy)
    }
}

impl std::error::Error for ImportError {}

/// The arguments of the command line: either split already by a shell or a unit, or one string with
/// all options, which is split in the same way.
pub fn words_of_command_line(arguments: &[String]) -> Result<Vec<String>, ImportError> {
    match arguments {
        [options] => split(options),
        words => Ok(words.to_owned()),
    }
}

/// The arguments of the last assignment in the content of an environment file. An unquoted value
/// ends at the end of its line, as in systemd.
pub fn words_of_environment_file(content: &str) -> Result<Vec<String>, ImportError> {
    let mut value = None;
    let mut start = 0;
    for line in content.split_inclusive('\n') {
        if let Some(after) = assigned(line) {
            // A quoted value can continue on the next lines.
            let at = start + line.len() - after.len();
            value = Some(&content[at..]);
        }
        start += line.len();
    }
    let value = value.ok_or_else(|| ImportError {
        option: VARIABLE.into(),
        fact: "the file does not assign it".into(),
        remedy: format!("write {VARIABLE}=\"OPTIONS\", or give the options themselves"),
    })?;
    if value.starts_with(['"', '\'']) {
        split(&shlex::Shlex::new(value).next().ok_or_else(unbalanced)?)
    } else {
        split(value.lines().next().unwrap_or_default())
    }
}

/// What follows `EARLYOOM_ARGS=`, if the line assigns it.
fn assigned(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    line.strip_prefix(VARIABLE)?.strip_prefix('=')
}

fn split(text: &str) -> Result<Vec<String>, ImportError> {
    shlex::split(text).ok_or_else(unbalanced)
}

fn unbalanced() -> ImportError {
    ImportError {
        option: "quotes".into(),
        fact: "a quote is not closed, or a backslash is the last character".into(),
        remedy: "close it: --avoid '^sshd$'".into(),
    }
}

/// An option of earlyoom 1.7 or 1.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    MemoryPercent,
    SwapPercent,
    MemorySize,
    SwapSize,
    KernelKiller,
    IgnoreScoreAdj,
    Notify,
    RunAfter,
    RunBefore,
    ProcessGroup,
    Priority,
    ReportInterval,
    Wait,
    Prefer,
    Avoid,
    Ignore,
    IgnoreRoot,
    SortByRss,
    DryRun,
    Syslog,
    Debug,
    Version,
    Help,
}

/// Syntax of an option.
pub struct Known {
    pub flag: Flag,
    short: Option<char>,
    long: Option<&'static str>,
    /// Description of its value; `None`: it takes none.
    value: Option<&'static str>,
}

const fn short(flag: Flag, name: char, value: Option<&'static str>) -> Known {
    Known { flag, short: Some(name), long: None, value }
}

const fn long(flag: Flag, name: &'static str, value: Option<&'static str>) -> Known {
    Known { flag, short: None, long: Some(name), value }
}

const fn either(flag: Flag, short: char, long: &'static str) -> Known {
    Known { flag, short: Some(short), long: Some(long), value: None }
}

/// All options.
pub const KNOWN: [Known; 23] = [
    short(Flag::MemoryPercent, 'm', Some("PERCENT[,KILL_PERCENT]")),
    short(Flag::SwapPercent, 's', Some("PERCENT[,KILL_PERCENT]")),
    short(Flag::MemorySize, 'M', Some("KIB[,KILL_KIB]")),
    short(Flag::SwapSize, 'S', Some("KIB[,KILL_KIB]")),
    short(Flag::KernelKiller, 'k', None),
    short(Flag::IgnoreScoreAdj, 'i', None),
    short(Flag::Notify, 'n', None),
    short(Flag::RunAfter, 'N', Some("/PATH/TO/SCRIPT")),
    short(Flag::RunBefore, 'P', Some("/PATH/TO/SCRIPT")),
    short(Flag::ProcessGroup, 'g', None),
    short(Flag::Priority, 'p', None),
    short(Flag::ReportInterval, 'r', Some("SECONDS")),
    short(Flag::Wait, 'w', Some("SECONDS")),
    long(Flag::Prefer, "prefer", Some("REGEX")),
    long(Flag::Avoid, "avoid", Some("REGEX")),
    long(Flag::Ignore, "ignore", Some("REGEX")),
    long(Flag::IgnoreRoot, "ignore-root-user", None),
    long(Flag::SortByRss, "sort-by-rss", None),
    long(Flag::DryRun, "dryrun", None),
    long(Flag::Syslog, "syslog", None),
    either(Flag::Debug, 'd', "debug"),
    short(Flag::Version, 'v', None),
    either(Flag::Help, 'h', "help"),
];

/// An option of a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Given {
    #[serde(skip)]
    pub flag: Flag,
    /// As it is written, with its dashes.
    pub name: String,
    /// Empty for an option that takes none.
    pub value: String,
}

impl Given {
    /// The option and its value, quoted for a shell.
    pub fn written(&self) -> String {
        if self.value.is_empty() {
            return self.name.clone();
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ",./-_:=".contains(c);
        if self.value.chars().all(is_plain) {
            return format!("{} {}", self.name, self.value);
        }
        let quoted = shlex::try_quote(&self.value).unwrap_or(self.value.as_str().into());
        format!("{} {quoted}", self.name)
    }

    /// An error about this option; the remedy is the form of its value.
    pub fn error(&self, fact: impl Into<String>, example: &str) -> ImportError {
        ImportError {
            option: self.name.clone(),
            fact: fact.into(),
            remedy: format!("write {} {example}", self.name),
        }
    }
}

/// Parses a command line without the program's name, in its order.
pub fn parse(words: &[String]) -> Result<Vec<Given>, ImportError> {
    let mut given = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            continue;
        }
        if let Some(text) = word.strip_prefix("--") {
            given.push(long_option(text, &mut rest)?);
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            short_options(letters, &mut rest, &mut given)?;
        } else {
            return Err(ImportError {
                option: word.clone(),
                fact: "it is not an option".into(),
                remedy: "remove it: earlyoom takes options only, and a value with blanks is quoted"
                    .into(),
            });
        }
    }
    Ok(given)
}

fn unknown(option: String) -> ImportError {
    ImportError {
        option,
        fact: "earlyoom 1.7 and 1.8 have no such option".into(),
        remedy: "remove or correct it; `man earlyoom` lists the options".into(),
    }
}

fn value_missing(option: String, value: &str) -> ImportError {
    let remedy = format!("write {option} {value}");
    ImportError { option, fact: "its value is missing".into(), remedy }
}

/// `name`, `name=value`, or an unambiguous prefix of a name.
fn long_option<'a>(
    text: &str,
    rest: &mut impl Iterator<Item = &'a String>,
) -> Result<Given, ImportError> {
    let (written, joined) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let exact = KNOWN.iter().find(|known| known.long == Some(written));
    let begins = |known: &&Known| known.long.is_some_and(|long| long.starts_with(written));
    let found: Vec<&Known> = match exact {
        Some(exact) => vec![exact],
        None => KNOWN.iter().filter(begins).collect(),
    };
    let [known] = found[..] else {
        let names: Vec<_> = found.iter().filter_map(|known| known.long).collect();
        if names.is_empty() {
            return Err(unknown(format!("--{written}")));
        }
        return Err(ImportError {
            option: format!("--{written}"),
            fact: "it can be several options".into(),
            remedy: format!("write one of --{} in full", names.join(", --")),
        });
    };
    let name = format!("--{}", known.long.unwrap_or(written));
    let value = match (known.value, joined) {
        (None, None) => String::new(),
        (None, Some(_)) => {
            let remedy = format!("write {name}");
            return Err(ImportError { option: name, fact: "it takes no value".into(), remedy });
        }
        (Some(_), Some(joined)) => joined,
        (Some(form), None) => {
            rest.next().cloned().ok_or_else(|| value_missing(name.clone(), form))?
        }
    };
    Ok(Given { flag: known.flag, name, value })
}

/// `gn`, `m10`, or `m` with the next argument.
fn short_options<'a>(
    letters: &str,
    rest: &mut impl Iterator<Item = &'a String>,
    given: &mut Vec<Given>,
) -> Result<(), ImportError> {
    for (at, letter) in letters.char_indices() {
        let name = format!("-{letter}");
        let known = KNOWN.iter().find(|known| known.short == Some(letter));
        let known = known.ok_or_else(|| unknown(name.clone()))?;
        let Some(form) = known.value else {
            given.push(Given { flag: known.flag, name, value: String::new() });
            continue;
        };
        let value = match &letters[at + letter.len_utf8()..] {
            "" => rest.next().cloned().ok_or_else(|| value_missing(name.clone(), form))?,
            joined => joined.to_owned(),
        };
        given.push(Given { flag: known.flag, name, value });
        break;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(line: &str) -> Result<Vec<String>, String> {
        let words = shlex::split(line).unwrap();
        let given = parse(&words).map_err(|error| error.to_string())?;
        Ok(given.iter().map(Given::written).collect())
    }

    #[test]
    fn options_can_be_joined_and_cut_short() {
        assert_eq!(
            written("-gnm10 -s 5,2"),
            Ok(vec!["-g".into(), "-n".into(), "-m 10".into(), "-s 5,2".into()])
        );
        assert_eq!(
            written("--pref '^a b$' --dry"),
            Ok(vec!["--prefer '^a b$'".into(), "--dryrun".into()])
        );
        assert_eq!(written("--avoid=x --"), Ok(vec!["--avoid x".into()]));
        assert_eq!(written("--ignore y"), Ok(vec!["--ignore y".into()]), "not ambiguous");
    }

    #[test]
    fn a_mistake_names_the_option_and_the_remedy() {
        for (line, option, remedy) in [
            ("-x", "-x: ", "man earlyoom"),
            ("-gq", "-q: ", "man earlyoom"),
            ("--no-such", "--no-such: ", "man earlyoom"),
            ("-m", "-m: its value is missing", "write -m PERCENT[,KILL_PERCENT]"),
            ("--prefer", "--prefer: its value is missing", "write --prefer REGEX"),
            ("--dryrun=yes", "--dryrun: it takes no value", "write --dryrun"),
            ("--ign x", "--ign: it can be several options", "--ignore, --ignore-root-user in full"),
            ("-m 10 20", "20: it is not an option", "remove it"),
            ("-", "-: it is not an option", "remove it"),
        ] {
            let error = written(line).expect_err(line);
            assert!(error.starts_with(option) && error.contains(remedy), "{line}: {error}");
        }
    }

    fn words(content: &str) -> Vec<String> {
        words_of_environment_file(content).unwrap()
    }

    #[test]
    fn one_string_is_split_and_several_words_are_taken_as_they_are() {
        let one = ["-m 10 --avoid '^(a b|c)$' -r 3600".to_owned()];
        let expected = ["-m", "10", "--avoid", "^(a b|c)$", "-r", "3600"];
        assert_eq!(words_of_command_line(&one).unwrap(), expected);
        let several = ["--avoid".to_owned(), "^a b$".to_owned()];
        assert_eq!(words_of_command_line(&several).unwrap(), several);
        assert_eq!(words_of_command_line(&[]).unwrap(), [] as [String; 0]);
        let open = words_of_command_line(&["--avoid 'x".to_owned()]).unwrap_err();
        assert!(open.to_string().contains("a quote is not closed"), "{open}");
    }

    #[test]
    fn the_last_assignment_of_a_file_counts_and_comments_do_not() {
        let debian = "# It's sourced by /bin/sh.\nEARLYOOM_ARGS=\"-r 3600\"\n\
                      # EARLYOOM_ARGS=\"-m 5\"\n";
        assert_eq!(words(debian), ["-r", "3600"]);
        let quoted = "EARLYOOM_ARGS=-m 5\nEARLYOOM_ARGS=\"--avoid '(^|/)(init|X)$' -s 3\"\nX=1\n";
        assert_eq!(words(quoted), ["--avoid", "(^|/)(init|X)$", "-s", "3"]);
        assert_eq!(words("export EARLYOOM_ARGS='-m 5'"), ["-m", "5"]);
        assert_eq!(words("EARLYOOM_ARGS=-m 5 -n\nOTHER=3\n"), ["-m", "5", "-n"]);
        assert_eq!(words("EARLYOOM_ARGS=\"-m 5 \\\n -s 3\"\n"), ["-m", "5", "-s", "3"]);
        assert_eq!(words("EARLYOOM_ARGS=\n"), [] as [String; 0]);
    }

    #[test]
    fn a_file_without_options_is_refused() {
        let missing =
            words_of_environment_file("# EARLYOOM_ARGS=\"-m 5\"\n").unwrap_err().to_string();
        assert!(missing.contains("EARLYOOM_ARGS: the file does not assign it"), "{missing}");
        let open = words_of_environment_file("EARLYOOM_ARGS=\"-m 5\n").unwrap_err().to_string();
        assert!(open.contains("a quote is not closed"), "{open}");
    }
}
