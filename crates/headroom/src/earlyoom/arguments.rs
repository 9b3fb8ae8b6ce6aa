//! earlyoom's command line, as its manual has it: short options that can be joined, long ones that can be cut short, and
//! its exit codes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use memory_ledger::earlyoom::{Levels, Pair, Taste};

use super::pattern::Pattern;

/// Options, or what is left of the line, that nobody knows.
const UNKNOWN: u8 = 13;
/// A value that makes no sense.
const WRONG_VALUE: u8 = 14;
/// The same, of `-m` and `-M`.
const WRONG_MEMORY: u8 = 15;
/// The same, of `-s` and `-S`.
const WRONG_SWAP: u8 = 16;

/// Short options; a colon: with a value.
const SHORT: &str = "m:s:M:S:kinN:P:gdvr:pw:h";
/// Long options; true: with a value.
const LONG: &[(&str, bool)] = &[
    ("prefer", true),
    ("avoid", true),
    ("ignore", true),
    ("ignore-root-user", false),
    ("sort-by-rss", false),
    ("dryrun", false),
    ("syslog", false),
    ("debug", false),
    ("help", false),
];

const HELP: &str = "\
Watches memory and ends the largest process before the machine is out of it: earlyoom's command line, on Headroom.

Usage: headroom earlyoom [OPTIONS]

  -m PERCENT[,KILL_PERCENT]  SIGTERM when so little memory is available (10), SIGKILL at KILL_PERCENT (half of it)
  -s PERCENT[,KILL_PERCENT]  the same of free swap; both have to be short. 100: swap does not matter
  -M SIZE[,KILL_SIZE]        the same of memory in KiB; with -m the lower one counts
  -S SIZE[,KILL_SIZE]        the same of swap in KiB
      --sort-by-rss          end the largest resident set, not the highest oom_score
      --prefer REGEX         names that match get 300 points more, or 3 GiB
      --avoid REGEX          names that match get 300 points less, or 3 GiB
      --ignore REGEX         names that match are left alone
      --ignore-root-user     root's processes are left alone
  -g                         end the whole process group of the victim
  -w SECONDS                 how long a victim may take to be gone (10)
  -N PATH                    run this program after each kill
  -P PATH                    run this program before each kill, which waits 200 ms for it
  -n                         send a notice over the system bus
  -r SECONDS                 how often to report the state (1); 0: never
  -p                         nice -20, oom_score_adj -100
      --dryrun               signal nobody
      --syslog               write to the system's log
  -d, --debug                say more
  -v                         print the version
  -h, --help                 print this
  -k, -i                     removed long ago; ignored
";

/// What to do.
#[derive(Debug)]
pub struct Arguments {
    /// `-m`, `-M`, `-s`, `-S`.
    pub levels: Levels,
    /// `--sort-by-rss`, `--ignore-root-user`.
    pub taste: Taste,
    /// `--prefer`.
    pub prefer: Option<Pattern>,
    /// `--avoid`.
    pub avoid: Option<Pattern>,
    /// `--ignore`.
    pub ignore: Option<Pattern>,
    /// `-g`.
    pub group: bool,
    /// `-n`.
    pub notify: bool,
    /// `-N`.
    pub after: Option<PathBuf>,
    /// `-P`.
    pub before: Option<PathBuf>,
    /// `-r`; `None`: never.
    pub report: Option<Duration>,
    /// `-w`.
    pub patience: Duration,
    /// `-p`.
    pub priority: bool,
    /// `--dryrun`.
    pub dry_run: bool,
    /// `--syslog`.
    pub syslog: bool,
    /// `-d`.
    pub debug: bool,
    /// What was done otherwise than asked.
    pub warnings: Vec<String>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            levels: Levels::default(),
            taste: Taste::default(),
            prefer: None,
            avoid: None,
            ignore: None,
            group: false,
            notify: false,
            after: None,
            before: None,
            report: Some(Duration::from_secs(1)),
            patience: Duration::from_secs(10),
            priority: false,
            dry_run: false,
            syslog: false,
            debug: false,
            warnings: Vec::new(),
        }
    }
}

impl Arguments {
    /// Somebody is to be told.
    pub fn has_hooks(&self) -> bool {
        self.notify || self.after.is_some()
    }
}

/// What a command line comes to.
#[derive(Debug)]
pub enum Parsed {
    /// To work.
    Run(Box<Arguments>),
    /// To say this and no more.
    Say(String),
}

/// Why a command line is none, and earlyoom's exit code for it.
#[derive(Debug, PartialEq, Eq)]
pub struct UsageError {
    pub message: String,
    pub code: u8,
}

fn wrong<T>(code: u8, message: String) -> Result<T, UsageError> {
    Err(UsageError { message, code })
}

/// The four ways to set levels, each pair in percent.
#[derive(Default)]
struct Asked {
    memory: Option<Pair>,
    memory_kib: Option<Pair>,
    swap: Option<Pair>,
    swap_kib: Option<Pair>,
}

/// Reads a command line without the program's name. Sizes become percentages of `total_kib` and
/// `swap_total_kib`.
pub fn parse(
    arguments: &[OsString],
    total_kib: u64,
    swap_total_kib: u64,
) -> Result<Parsed, UsageError> {
    let mut parsed = Arguments::default();
    let mut asked = Asked::default();
    for (option, value) in split(arguments)? {
        match option.as_str() {
            "h" | "help" => return Ok(Parsed::Say(HELP.to_owned())),
            "v" => {
                let version = concat!("earlyoom of headroom ", env!("CARGO_PKG_VERSION"), "\n");
                return Ok(Parsed::Say(version.to_owned()));
            }
            "m" | "s" | "M" | "S" => {
                let pair = pair(&option, &value, total_kib, swap_total_kib, &mut parsed.warnings)?;
                let place = match option.as_str() {
                    "m" => &mut asked.memory,
                    "M" => &mut asked.memory_kib,
                    "s" => &mut asked.swap,
                    _ => &mut asked.swap_kib,
                };
                *place = pair.or(*place);
            }
            "k" | "i" => parsed.warnings.push(format!("-{option} does nothing any more")),
            _ => set(&mut parsed, &option, &value)?,
        }
    }
    let lower = |percent: Option<Pair>, size: Option<Pair>| match (percent, size) {
        (Some(percent), Some(size)) => Some(percent.lower(size)),
        (percent, size) => percent.or(size),
    };
    let defaults = Levels::default();
    parsed.levels = Levels {
        memory: lower(asked.memory, asked.memory_kib).unwrap_or(defaults.memory),
        swap: lower(asked.swap, asked.swap_kib).unwrap_or(defaults.swap),
    };
    Ok(Parsed::Run(Box::new(parsed)))
}

fn set(parsed: &mut Arguments, option: &str, value: &str) -> Result<(), UsageError> {
    match option {
        "n" => parsed.notify = true,
        "g" => parsed.group = true,
        "d" | "debug" => parsed.debug = true,
        "p" => parsed.priority = true,
        "dryrun" => parsed.dry_run = true,
        "syslog" => parsed.syslog = true,
        "sort-by-rss" => parsed.taste.by_rss = true,
        "ignore-root-user" => parsed.taste.ignore_root = true,
        "prefer" => parsed.prefer = Some(pattern(option, value)?),
        "avoid" => parsed.avoid = Some(pattern(option, value)?),
        "ignore" => parsed.ignore = Some(pattern(option, value)?),
        "N" | "P" => {
            let path = PathBuf::from(value);
            if !path.is_absolute() {
                return wrong(WRONG_VALUE, format!("-{option}: {value} is no absolute path"));
            }
            let place = if option == "N" { &mut parsed.after } else { &mut parsed.before };
            *place = Some(path);
        }
        "r" => {
            let seconds = seconds(option, value)?;
            parsed.report = (!seconds.is_zero()).then_some(seconds);
        }
        _ => parsed.patience = seconds(option, value)?,
    }
    Ok(())
}

fn pattern(option: &str, value: &str) -> Result<Pattern, UsageError> {
    Pattern::new(value).or_else(|error| wrong(6, format!("--{option}: \"{value}\": {error}")))
}

/// A day is the longest that makes sense to anybody; a year is taken.
fn seconds(option: &str, value: &str) -> Result<Duration, UsageError> {
    const MOST: f64 = 366.0 * 86_400.0;
    match value.trim().parse::<f64>() {
        Ok(seconds) if (0.0..=MOST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => wrong(WRONG_VALUE, format!("-{option}: \"{value}\" is no number of seconds")),
    }
}

/// `TERM[,KILL]`, as percentages. `None`: of swap that does not exist.
fn pair(
    option: &str,
    value: &str,
    total_kib: u64,
    swap_total_kib: u64,
    warnings: &mut Vec<String>,
) -> Result<Option<Pair>, UsageError> {
    let code = if option.eq_ignore_ascii_case("m") { WRONG_MEMORY } else { WRONG_SWAP };
    let whole = match option {
        "M" => total_kib as f64,
        "S" if swap_total_kib == 0 => {
            warnings.push("-S is ignored: there is no swap".to_owned());
            return Ok(None);
        }
        "S" => swap_total_kib as f64,
        _ => 100.0,
    };
    // All of it is never available.
    let most = if option == "m" { 99.0 } else { whole };
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number > most => {
            wrong(code, format!("-{option}: {text} is more than {most}"))
        }
        Ok(number) if number >= 0.0 => Ok(number * 100.0 / whole),
        _ => wrong(code, format!("-{option}: \"{text}\" is no number, or below 0")),
    };
    let (term, kill) = match value.split_once(',') {
        Some((term, kill)) => (number(term)?, number(kill)?),
        None => {
            let term = number(value)?;
            (term, term / 2.0)
        }
    };
    if term == 0.0 && kill == 0.0 {
        return wrong(code, format!("-{option}: both levels are 0"));
    }
    if term < kill {
        let what =
            format!("-{option}: the level of SIGTERM is below that of SIGKILL, which counts");
        warnings.push(what);
    }
    Ok(Some(Pair { term: term.max(kill), kill }))
}

/// Options with their values, in their order.
fn split(arguments: &[OsString]) -> Result<Vec<(String, String)>, UsageError> {
    let mut options = Vec::new();
    let mut rest = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    while let Some(argument) = rest.next() {
        if argument == "--" {
            if let Some(extra) = rest.next() {
                return wrong(UNKNOWN, format!("\"{extra}\" is not understood"));
            }
        } else if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let (name, wants) = long_option(name)?;
            let value = match (wants, value) {
                (true, value) => match value.or_else(|| rest.next()) {
                    Some(value) => value,
                    None => return wrong(UNKNOWN, format!("--{name} lacks its value")),
                },
                (false, None) => String::new(),
                (false, Some(_)) => return wrong(UNKNOWN, format!("--{name} takes no value")),
            };
            options.push((name.to_owned(), value));
        } else if argument.len() > 1 && argument.starts_with('-') {
            short_options(&argument[1..], &mut rest, &mut options)?;
        } else {
            return wrong(UNKNOWN, format!("\"{argument}\" is not understood"));
        }
    }
    Ok(options)
}

/// By its name, or the beginning of it that no other has.
fn long_option(name: &str) -> Result<(&'static str, bool), UsageError> {
    if let Some(exact) = LONG.iter().find(|(known, _)| *known == name) {
        return Ok(*exact);
    }
    let mut begin = LONG.iter().filter(|(known, _)| known.starts_with(name));
    match (begin.next(), begin.next()) {
        (Some(only), None) => Ok(*only),
        (Some(_), Some(_)) => wrong(UNKNOWN, format!("--{name} can be several options")),
        (None, _) => wrong(UNKNOWN, format!("--{name} is no option; see --help")),
    }
}

/// `gn`, `m10`, or `m` with the next argument.
fn short_options(
    letters: &str,
    rest: &mut impl Iterator<Item = String>,
    options: &mut Vec<(String, String)>,
) -> Result<(), UsageError> {
    for (at, letter) in letters.char_indices() {
        let known = SHORT.find(letter).filter(|_| letter != ':');
        let Some(known) = known else {
            return wrong(UNKNOWN, format!("-{letter} is no option; see --help"));
        };
        if SHORT.as_bytes().get(known + 1) != Some(&b':') {
            options.push((letter.to_string(), String::new()));
            continue;
        }
        let joined = &letters[at + letter.len_utf8()..];
        let value = match joined {
            "" => rest.next(),
            joined => Some(joined.to_owned()),
        };
        match value {
            Some(value) => options.push((letter.to_string(), value)),
            None => return wrong(UNKNOWN, format!("-{letter} lacks its value")),
        }
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL_KIB: u64 = 8 << 20;
    const SWAP_KIB: u64 = 4 << 20;

    fn parsed(line: &str, swap_kib: u64) -> Result<Box<Arguments>, UsageError> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&arguments, TOTAL_KIB, swap_kib)? {
            Parsed::Run(arguments) => Ok(arguments),
            Parsed::Say(text) => panic!("{text}"),
        }
    }

    fn levels(line: &str) -> [f64; 4] {
        let Levels { memory, swap } = parsed(line, SWAP_KIB).unwrap().levels;
        [memory.term, memory.kill, swap.term, swap.kill]
    }

    #[test]
    fn levels_are_those_of_the_manual() {
        assert_eq!(levels(""), [10.0, 5.0, 10.0, 5.0]);
        assert_eq!(levels("-m 30"), [30.0, 15.0, 10.0, 5.0]);
        assert_eq!(levels("-m 20,18 -s100"), [20.0, 18.0, 100.0, 50.0]);
        assert_eq!(levels("-m 7,7"), [7.0, 7.0, 10.0, 5.0]);
        assert_eq!(levels("-M 838860.8"), [10.0, 5.0, 10.0, 5.0]);
        assert_eq!(levels("-m 10 -M 419430.4"), [5.0, 2.5, 10.0, 5.0], "the lower one");
        assert_eq!(levels("-M 4194304,1 -m 10,9")[0], 10.0);
        assert_eq!(levels("-S 2097152,1048576"), [10.0, 5.0, 50.0, 25.0]);
        assert_eq!(levels("-m 5,10"), [10.0, 10.0, 10.0, 5.0]);
        let without_swap = parsed("-S 1000", 0).unwrap();
        assert_eq!(without_swap.levels, Levels::default());
        assert!(without_swap.warnings[0].contains("no swap"));
    }

    #[test]
    fn everything_of_the_manual_is_understood() {
        let line = "-gnpd -r 3600 -w 20 -N /bin/after -P/bin/before --prefer ^a$ --avoid=^b$ --ignore c \
                    --sort-by-rss --ignore-root-user --dry --syslog -k -i";
        let all = parsed(line, SWAP_KIB).unwrap();
        assert!(all.group && all.notify && all.priority && all.debug && all.dry_run && all.syslog);
        assert!(all.taste.by_rss && all.taste.ignore_root && all.has_hooks());
        assert_eq!(
            (all.report, all.patience),
            (Some(Duration::from_secs(3600)), Duration::from_secs(20))
        );
        assert_eq!(all.after, Some("/bin/after".into()));
        assert_eq!(all.before, Some("/bin/before".into()));
        assert!(all.prefer.unwrap().matches("a") && all.avoid.unwrap().matches("b"));
        assert!(all.ignore.unwrap().matches("abc"));
        assert_eq!(all.warnings.len(), 2, "-k and -i");
        assert_eq!(parsed("-r 0", 0).unwrap().report, None);
    }

    #[test]
    fn mistakes_have_earlyooms_exit_codes() {
        for (line, code) in [
            ("-m 0", 15),
            ("-m 99.5", 15),
            ("-m x", 15),
            ("-m -5", 15),
            ("-M 0", 15),
            ("-s 101", 16),
            ("-S 99999999", 16),
            ("-s 0,0", 16),
            ("-N after", 14),
            ("-r -1", 14),
            ("-w soon", 14),
            ("--prefer (", 6),
            ("-z", 13),
            ("--nope", 13),
            ("--ignore", 13),
            ("--dryrun=yes", 13),
            ("-m", 13),
            ("extra", 13),
            ("-- extra", 13),
        ] {
            let error = parsed(line, SWAP_KIB).expect_err(line);
            assert!(error.code == code && !error.message.is_empty(), "{line}: {error:?}");
        }
    }

    #[test]
    fn help_and_version_are_said_and_nothing_is_done() {
        for (line, part) in
            [("-h", "--sort-by-rss"), ("-m 5 --help", "-w SECONDS"), ("-v", "headroom")]
        {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            match parse(&arguments, TOTAL_KIB, 0) {
                Ok(Parsed::Say(text)) => assert!(text.contains(part), "{text}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }
}
