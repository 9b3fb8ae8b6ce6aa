//! The levels of memory and swap: `-m`, `-M`, `-s`, `-S`.

use super::options::{Flag, Given, ImportError};

/// Sizes of this machine, with which levels are compared as earlyoom does at its start.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// `MemTotal`, KiB.
    pub memory_kib: u64,
    /// `SwapTotal`, KiB.
    pub swap_kib: u64,
}

/// The resource that a level applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Memory,
    Swap,
}

/// The unit of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Percent,
    Kib,
}

/// Resource and unit of an option.
#[derive(Clone, Copy)]
struct Kind {
    resource: Resource,
    unit: Unit,
}

impl Kind {
    /// `None`: the option sets no level.
    fn of(flag: Flag) -> Option<Self> {
        let (resource, unit) = match flag {
            Flag::MemoryPercent => (Resource::Memory, Unit::Percent),
            Flag::MemorySize => (Resource::Memory, Unit::Kib),
            Flag::SwapPercent => (Resource::Swap, Unit::Percent),
            Flag::SwapSize => (Resource::Swap, Unit::Kib),
            _ => return None,
        };
        Some(Self { resource, unit })
    }
}

/// Result of translating a level option.
#[derive(Debug, Default)]
pub struct LevelLines {
    /// Lines of the section [machine].
    pub lines: Vec<String>,
    /// Explanation of the lines.
    pub comment: String,
}

impl Machine {
    fn whole_kib(self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.memory_kib,
            Resource::Swap => self.swap_kib,
        }
    }
}

/// An option with both levels, in its unit.
struct Levels {
    unit: Unit,
    term: f64,
    kill: f64,
    /// 100 %, or all of the resource.
    whole: f64,
    /// The level for SIGTERM was below that for SIGKILL, and was raised to it.
    raised: bool,
}

impl Levels {
    /// A level as Headroom's configuration has it.
    fn text(&self, level: f64) -> String {
        if self.unit == Unit::Percent {
            let text = format!("{level:.2}");
            return format!("{}%", text.trim_end_matches('0').trim_end_matches('.'));
        }
        let (mut number, mut unit) = (level as u64, 0);
        while number > 0 && number % 1024 == 0 && unit < 3 {
            number /= 1024;
            unit += 1;
        }
        format!("{number}{}", ["K", "M", "G", "T"][unit])
    }
}

/// The lines of an option and their comment. `all` has the other options of the command line: if
/// both a percentage and a size are given, the lower one counts.
pub fn translate(one: &Given, all: &[Given], machine: Machine) -> Result<LevelLines, ImportError> {
    let Some(kind) = Kind::of(one.flag) else { return Ok(LevelLines::default()) };
    let Kind { resource, unit } = kind;
    let Some(levels) = parse(one, kind, machine)? else {
        let comment = "this machine has no swap; earlyoom 1.8 ignores it.".into();
        return Ok(LevelLines { lines: Vec::new(), comment });
    };
    let competes = |other: Kind| other.resource == resource && other.unit != unit;
    let mut competitor = None;
    for other in all {
        if let Some(kind) = Kind::of(other.flag).filter(|kind| competes(*kind)) {
            competitor = parse(other, kind, machine)?.map(|levels| (other, levels));
        }
    }
    let lower = |level: f64, other: fn(&Levels) -> f64| match &competitor {
        Some((_, it)) => {
            let (ours, theirs) = (level / levels.whole, other(it) / it.whole);
            ours < theirs || (ours == theirs && unit == Unit::Percent)
        }
        None => true,
    };
    let (soft, hard, of) = match resource {
        Resource::Memory => ("soft", "hard", "available memory"),
        Resource::Swap => ("swap-soft", "swap-hard", "free swap"),
    };
    let (term, kill) = (levels.text(levels.term), levels.text(levels.kill));
    let mut lines = Vec::new();
    if lower(levels.term, |it| it.term) {
        lines.push(format!("{soft} = \"{term}\""));
    }
    if lower(levels.kill, |it| it.kill) {
        lines.push(format!("{hard} = \"{kill}\""));
    }
    let mut comment = format!("SIGTERM at {term} of {of}, SIGKILL at {kill}.");
    if levels.raised {
        comment += " The first level was below the second; earlyoom raises it too.";
    }
    if one.flag == Flag::MemoryPercent {
        comment += " The share is of MemAvailable + AnonPages + Shmem + PageTables and unevictable \
                    files; earlyoom 1.8 leaves the last three out, earlyoom 1.7 takes it of \
                    MemTotal.";
    }
    if let Some((other, _)) = competitor {
        let (other, whole) = (other.written(), machine.whole_kib(resource));
        comment += &format!(" The lower of this and {other} counts, here of {whole} KiB.");
    }
    Ok(LevelLines { lines, comment })
}

/// `TERM[,KILL]`; `None`: of swap that does not exist.
fn parse(one: &Given, kind: Kind, machine: Machine) -> Result<Option<Levels>, ImportError> {
    let Kind { resource, unit } = kind;
    let whole = match unit {
        Unit::Percent => 100.0,
        Unit::Kib if machine.whole_kib(resource) == 0 => return Ok(None),
        Unit::Kib => machine.whole_kib(resource) as f64,
    };
    // All memory is never available, so 100 % is not a valid level.
    let most = if one.flag == Flag::MemoryPercent { 99.0 } else { whole };
    let example = if unit == Unit::Percent { "10,5" } else { "1048576,524288 (KiB)" };
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number > most => {
            Err(one.error(format!("{text} is more than {most}"), example))
        }
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err(one.error(format!("\"{text}\" is not a number from 0 to {most}"), example)),
    };
    let (term, kill) = match one.value.split_once(',') {
        // earlyoom takes an empty value next to a comma as 0.
        Some((term, kill)) => {
            let or_zero = |text: &str| if text.is_empty() { Ok(0.0) } else { number(text) };
            (or_zero(term)?, or_zero(kill)?)
        }
        None => {
            let term = number(&one.value)?;
            (term, term / 2.0)
        }
    };
    if term == 0.0 && kill == 0.0 {
        return Err(one.error("both levels are 0, so no process would be killed", example));
    }
    Ok(Some(Levels { unit, term: term.max(kill), kill, whole, raised: term < kill }))
}

#[cfg(test)]
mod tests {
    use super::super::options;
    use super::*;

    /// 8 GiB of memory and 4 GiB of swap.
    const MACHINE: Machine = Machine { memory_kib: 8 << 20, swap_kib: 4 << 20 };

    fn lines_on(machine: Machine, line: &str) -> Result<Vec<String>, String> {
        let given = options::parse(&shlex::split(line).unwrap()).unwrap();
        let mut lines = Vec::new();
        for one in &given {
            let more = translate(one, &given, machine).map_err(|error| error.to_string())?;
            lines.extend(more.lines.iter().map(|line| line.replace([' ', '"'], "")));
        }
        lines.sort();
        Ok(lines)
    }

    #[test]
    fn levels_are_those_that_earlyoom_prints_at_its_start() {
        for (line, expected) in [
            ("-m 30", &["hard=15%", "soft=30%"][..]),
            ("-m 20,18 -s100", &["hard=18%", "soft=20%", "swap-hard=50%", "swap-soft=100%"]),
            ("-m 7,7", &["hard=7%", "soft=7%"]),
            ("-m 5,10", &["hard=10%", "soft=10%"]),
            ("-m 10,", &["hard=0%", "soft=10%"]),
            ("-m ,5", &["hard=5%", "soft=5%"]),
            ("-m 0.125", &["hard=0.06%", "soft=0.12%"]),
            ("-m 1e1", &["hard=5%", "soft=10%"]),
            ("-M 838860.8", &["hard=419430K", "soft=838860K"]),
            // The lower level counts, separately for SIGTERM and SIGKILL.
            ("-m 10 -M 419430.4", &["hard=209715K", "soft=419430K"]),
            ("-M 4194304,1 -m 10,9", &["hard=1K", "soft=10%"]),
            ("-s 5 -S 2097152", &["swap-hard=2.5%", "swap-soft=5%"]),
            ("-S 2097152,1048576", &["swap-hard=1G", "swap-soft=2G"]),
        ] {
            assert_eq!(lines_on(MACHINE, line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn a_size_of_swap_is_ignored_without_swap() {
        let machine = Machine { swap_kib: 0, ..MACHINE };
        assert_eq!(lines_on(machine, "-S 1000").unwrap(), [] as [&str; 0]);
        assert_eq!(lines_on(machine, "-S 1000 -s 5").unwrap(), ["swap-hard=2.5%", "swap-soft=5%"]);
    }

    #[test]
    fn numbers_that_earlyoom_refuses_are_refused() {
        for (line, fact) in [
            ("-m 100", "-m: 100 is more than 99; write -m 10,5"),
            ("-s 101", "-s: 101 is more than 100; write -s 10,5"),
            ("-m 0", "-m: both levels are 0"),
            ("-m 10%", "-m: \"10%\" is not a number"),
            ("-m 10,5,2", "-m: \"5,2\" is not a number"),
            ("-m -5", "-m: \"-5\" is not a number"),
            ("-m nan", "-m: \"nan\" is not a number"),
            ("-M 8388609", "-M: 8388609 is more than 8388608; write -M 1048576,524288 (KiB)"),
            ("-S 1000,x", "-S: \"x\" is not a number"),
        ] {
            let error = lines_on(MACHINE, line).expect_err(line);
            assert!(error.starts_with(fact), "{line}: {error}");
        }
    }
}
