//! Pressure stall information: `/proc/pressure/{memory,cpu,io}`.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ReadError;

/// Resource that tasks are stalled on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// A CPU.
    Cpu,
    /// Input and output.
    Io,
}

impl Resource {
    fn path(self, proc: &Path) -> PathBuf {
        proc.join("pressure").join(match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Io => "io",
        })
    }
}

/// Share of the tasks that are stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// At least one task.
    Some,
    /// All non-idle tasks.
    Full,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Averages {
    /// Share of the last 10 s with stalls, percent.
    pub avg10: f32,
    /// Share of the last 60 s, percent.
    pub avg60: f32,
    /// Share of the last 300 s, percent.
    pub avg300: f32,
    /// Total stall time since boot.
    pub total: Duration,
}

/// One pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Stalls of some tasks.
    pub some: Option<Averages>,
    /// Stalls of all non-idle tasks; older kernels do not report it for CPUs.
    pub full: Option<Averages>,
}

impl Pressure {
    /// Reads `pressure/<resource>` in the folder `proc`.
    pub fn read(proc: &Path, resource: Resource) -> Result<Self, ReadError> {
        let path = resource.path(proc);
        let text = std::fs::read_to_string(&path).map_err(|e| ReadError::io(&path, e))?;
        let mut pressure = Self::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let place = match kind {
                "some" => &mut pressure.some,
                "full" => &mut pressure.full,
                _ => continue,
            };
            let averages = parse_averages(rest)
                .ok_or_else(|| ReadError::parse(&path, format!("line {line:?}")))?;
            *place = Some(averages);
        }
        Ok(pressure)
    }
}

fn parse_averages(text: &str) -> Option<Averages> {
    let mut averages = Averages::default();
    for field in text.split_ascii_whitespace() {
        let (key, value) = field.split_once('=')?;
        match key {
            "avg10" => averages.avg10 = value.parse().ok()?,
            "avg60" => averages.avg60 = value.parse().ok()?,
            "avg300" => averages.avg300 = value.parse().ok()?,
            "total" => averages.total = Duration::from_micros(value.parse().ok()?),
            _ => (),
        }
    }
    Some(averages)
}

/// PSI trigger: becomes ready (`POLLPRI`) when tasks were stalled for longer than the threshold
/// within the window, at most once per window.
#[derive(Debug)]
pub struct PressureTrigger {
    file: File,
    window: Duration,
    threshold: Duration,
}

impl PressureTrigger {
    /// Without CAP_SYS_RESOURCE the kernel accepts only multiples of this window.
    pub const UNPRIVILEGED_WINDOW: Duration = Duration::from_secs(2);

    /// Sets a trigger. If the caller lacks the privilege for the window, it is rounded up to a
    /// multiple of [`Self::UNPRIVILEGED_WINDOW`] and the threshold grows in proportion; see
    /// [`Self::window`].
    pub fn open(
        proc: &Path,
        resource: Resource,
        stall: Stall,
        threshold: Duration,
        window: Duration,
    ) -> Result<Self, ReadError> {
        let path = resource.path(proc);
        match Self::set(&path, stall, threshold, window) {
            Ok(file) => Ok(Self { file, window, threshold }),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {
                let (threshold, window) = allowed_for_all(threshold, window);
                let file = Self::set(&path, stall, threshold, window)
                    .map_err(|e| ReadError::io(&path, e))?;
                Ok(Self { file, window, threshold })
            }
            Err(e) => Err(ReadError::io(&path, e)),
        }
    }

    fn set(path: &Path, stall: Stall, threshold: Duration, window: Duration) -> io::Result<File> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)?;
        let stall = match stall {
            Stall::Some => "some",
            Stall::Full => "full",
        };
        let line = format!("{stall} {} {}\0", threshold.as_micros(), window.as_micros());
        file.write_all(line.as_bytes())?;
        Ok(file)
    }

    /// The window in force.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// The threshold in force.
    pub fn threshold(&self) -> Duration {
        self.threshold
    }
}

impl AsFd for PressureTrigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn allowed_for_all(threshold: Duration, window: Duration) -> (Duration, Duration) {
    let unit = PressureTrigger::UNPRIVILEGED_WINDOW.as_micros();
    let requested = window.as_micros().max(1);
    let allowed = requested.next_multiple_of(unit);
    let threshold = threshold.as_micros().min(requested) * allowed / requested;
    let micros = |value: u128| Duration::from_micros(u64::try_from(value).unwrap_or(u64::MAX));
    (micros(threshold), micros(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_lines() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pressure")).unwrap();
        let text = "some avg10=1.50 avg60=0.20 avg300=0.00 total=1234567\n\
                    full avg10=0.25 avg60=0.00 avg300=0.00 total=99\n";
        std::fs::write(dir.path().join("pressure/io"), text).unwrap();
        let pressure = Pressure::read(dir.path(), Resource::Io).unwrap();
        let some = pressure.some.unwrap();
        assert_eq!((some.avg10, some.avg60), (1.5, 0.2));
        assert_eq!(some.total, Duration::from_micros(1_234_567));
        assert_eq!(pressure.full.unwrap().avg10, 0.25);
        std::fs::write(dir.path().join("pressure/io"), "some avg10=x").unwrap();
        let message = Pressure::read(dir.path(), Resource::Io).unwrap_err().to_string();
        assert!(message.contains("pressure/io") && message.contains("avg10=x"), "{message}");
    }

    #[test]
    fn a_window_is_rounded_up_and_its_threshold_with_it() {
        let ms = Duration::from_millis;
        assert_eq!(allowed_for_all(ms(150), ms(1000)), (ms(300), ms(2000)));
        assert_eq!(allowed_for_all(ms(70), ms(2000)), (ms(70), ms(2000)));
        assert_eq!(allowed_for_all(ms(300), ms(3000)), (ms(400), ms(4000)));
    }

    #[test]
    fn a_trigger_can_be_set_with_a_window_of_a_second() {
        let proc = Path::new("/proc");
        if !proc.join("pressure/memory").exists() {
            test_support::skip("no pressure stall information in this kernel");
            return;
        }
        let (threshold, window) = (Duration::from_millis(100), Duration::from_secs(1));
        let trigger =
            PressureTrigger::open(proc, Resource::Memory, Stall::Some, threshold, window).unwrap();
        let (window, threshold) = (trigger.window().as_millis(), trigger.threshold().as_millis());
        assert!((window, threshold) == (1000, 100) || (window, threshold) == (2000, 200));
    }
}
