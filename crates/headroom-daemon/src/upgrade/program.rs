//! The program that replaces the running one: opened once, checked, and executed.

use std::ffi::{CString, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use headroom_linux::sched::{SchedAttr, with_ordinary_children};
use owners::Uid;
use rustix::process::Pid;

use super::{StateFile, VERIFIED};

/// What the kernel appends to the path of a running program whose file was replaced.
const DELETED: &[u8] = b" (deleted)";
/// Write permission of other users than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const EXECUTABLE: u32 = 0o111;
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Nice value of the check, above ordinary processes: clients wait for it.
const CHECK_NICE: i32 = -20;
/// Option with which a program continues.
const RESUME: &str = "--resume=";

/// An opened program.
#[derive(Debug)]
pub struct Program {
    file: File,
    path: PathBuf,
}

impl Program {
    /// Opens the file that the running program was started from, or the one that has replaced it.
    pub fn installed() -> anyhow::Result<Self> {
        let link = std::fs::read_link("/proc/self/exe").context("/proc/self/exe")?;
        let path = link.into_os_string().into_vec();
        let path = path.strip_suffix(DELETED).map(<[u8]>::to_vec).unwrap_or(path);
        Self::open(OsString::from_vec(path).into(), |_| Ok(()))
    }

    /// Opens a program that only root, and a user who runs the daemon for themselves, can change.
    pub fn trusted(path: &Path, user: Option<Uid>) -> anyhow::Result<Self> {
        let shown = path.display();
        ensure!(path.is_absolute(), "{shown}: not an absolute path; give one");
        Self::open(path.to_owned(), |file| {
            let owner = Uid(file.uid());
            ensure!(
                owner == Uid::ROOT || Some(owner) == user,
                "{shown}: uid {owner} owns it: install a program that root owns"
            );
            ensure!(
                file.mode() & WRITABLE_BY_OTHERS == 0,
                "{shown}: users other than its owner may write to it: chmod go-w it"
            );
            Ok(())
        })
    }

    fn open(
        path: PathBuf,
        check: impl FnOnce(&Metadata) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let shown = path.display();
        let mut options = File::options();
        // A FIFO would block.
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(&path).with_context(|| format!("{shown}: cannot open it"))?;
        let metadata = file.metadata().with_context(|| format!("{shown}: cannot stat it"))?;
        ensure!(
            metadata.is_file() && metadata.mode() & EXECUTABLE != 0,
            "{shown}: not an executable file; give the path of the daemon's program"
        );
        check(&metadata)?;
        Ok(Self { file, path })
    }

    /// Has the program verify a state within `limit`. The daemon serves nobody meanwhile.
    pub fn check(&self, state: &StateFile, limit: Duration) -> anyhow::Result<()> {
        let shown = self.path.display();
        let mut arguments = arguments();
        let name = arguments.next().unwrap_or_default();
        // The descriptor is closed when the program is executed.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command
            .arg0(name)
            .args(arguments)
            .arg("--check-state")
            .stdin(state.0.try_clone().context("cannot duplicate a descriptor")?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // One that spins would keep the event loop from ending it at the limit.
        let mut child = with_ordinary_children(|| command.spawn())
            .with_context(|| format!("{shown}: cannot start it to verify the state"))?;
        // Fails without the privilege for it, and if the child has exited.
        let _ = SchedAttr::other(CHECK_NICE).apply(Some(Pid::from_child(&child)));
        let status = wait(&mut child, limit);
        let status = status.with_context(|| format!("{shown}: cannot wait for it"))?;
        let Some(status) = status else {
            // It may be unable to end before this daemon serves its clients again.
            let _ = std::thread::Builder::new().spawn(move || child.wait());
            bail!("{shown}: it did not verify the state within {} s", limit.as_secs());
        };
        if status.success() && text(child.stdout.take()).trim_end() == VERIFIED {
            return Ok(());
        }
        let errors = text(child.stderr.take());
        let Some(first) = errors.lines().find(|line| !line.trim().is_empty()) else {
            bail!("{shown}: it did not verify the state ({status}): give a program of this daemon");
        };
        let named = first.split_once(": ").filter(|(name, _)| name.starts_with("headroom-"));
        let reason = named.map_or(first, |(_, reason)| reason);
        bail!("{shown}: it cannot continue with the state: {reason}");
    }

    /// Executes the program in this process; returns only if that fails.
    pub(super) fn execute(&self, state: RawFd) -> anyhow::Error {
        let mut with_resume: Vec<OsString> = arguments().collect();
        let resume = format!("{RESUME}{state}");
        with_resume.insert(with_resume.len().min(1), resume.into());
        let variable = |(name, value): (OsString, OsString)| {
            OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        let error = match (strings(with_resume), strings(std::env::vars_os().map(variable))) {
            (Ok(arguments), Ok(variables)) => {
                let (arguments, variables) = (pointers(&arguments), pointers(&variables));
                // SAFETY: both arrays end with a null pointer, and the strings outlive the call.
                unsafe {
                    let file = self.file.as_raw_fd();
                    libc::fexecve(file, arguments.as_ptr(), variables.as_ptr());
                }
                io::Error::last_os_error()
            }
            (Err(error), _) | (_, Err(error)) => error,
        };
        anyhow!(error).context(format!("{}: cannot execute it", self.path.display()))
    }
}

/// The arguments of this program, its name first, without that of an earlier upgrade.
fn arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os().filter(|argument| !argument.as_bytes().starts_with(RESUME.as_bytes()))
}

/// The output of a process that has exited, which is shorter than a pipe is long.
fn text(output: Option<impl Read>) -> String {
    let mut text = String::new();
    // An output that is no text is that of another program.
    let _ = output.map(|mut output| output.read_to_string(&mut text));
    text
}

/// Waits for the exit of a child; `None`: it was sent SIGKILL, since it did not exit in time.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            return Ok(None);
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn strings(values: impl IntoIterator<Item = OsString>) -> io::Result<Vec<CString>> {
    let string = |value: OsString| CString::new(value.into_vec()).map_err(io::Error::other);
    values.into_iter().map(string).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refusal(path: &Path) -> String {
        let own = Uid(rustix::process::geteuid().as_raw());
        Program::trusted(path, Some(own)).unwrap_err().to_string()
    }

    #[test]
    fn a_program_that_others_can_change_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, expected) in [
            (0o775, "users other than its owner may write to it"),
            (0o757, "users other than its owner may write to it"),
            (0o644, "not an executable file"),
        ] {
            file.as_file().set_permissions(Permissions::from_mode(mode)).unwrap();
            assert!(refusal(file.path()).contains(expected), "{mode:o}: {}", refusal(file.path()));
        }
        file.as_file().set_permissions(Permissions::from_mode(0o755)).unwrap();
        let own = Uid(rustix::process::geteuid().as_raw());
        let open = |user| Program::trusted(file.path(), user);
        assert!(open(Some(own)).is_ok());
        assert_eq!(open(None).is_ok(), own == Uid::ROOT, "a user's file in the daemon of root");
    }

    #[test]
    fn paths_that_are_no_program_are_refused() {
        assert!(refusal(Path::new("headroom-oomd")).contains("not an absolute path"));
        assert!(refusal(Path::new("/dev")).contains("not an executable file"));
        assert!(refusal(Path::new("/missing/program")).contains("cannot open it"));
    }

    #[test]
    fn the_installed_program_is_the_running_one() {
        assert_eq!(Program::installed().unwrap().path, std::env::current_exe().unwrap());
    }
}
