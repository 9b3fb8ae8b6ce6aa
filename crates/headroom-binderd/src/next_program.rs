//! Replaces the running program by another one in the same process (`docs/design/upgrade.md`).
//!
//! A daemon accepts a request, writes its state to a [`StateFile`], has the program
//! [check](Program::check) it, and [executes](execute) the program, which reads it.

use std::ffi::{CString, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use control::{Peer, RequestId};
use headroom_linux::descriptors::{Inherited, KeptFd, without_descriptors};
use headroom_linux::sched::{SchedAttr, with_ordinary_children};
use owners::Uid;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Pid;

/// Version of the programs of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Output of `--check-state`: the exit status alone may be that of a program that ignores options.
const VERIFIED: &str = "verified";

/// A request that was accepted.
pub struct UpgradeRequest {
    /// The request to reply to.
    pub id: RequestId,
    /// The program to execute.
    pub program: Program,
}

/// Requests for upgrades.
#[derive(Default)]
pub struct UpgradeRequests {
    /// Besides root, this user may upgrade.
    user: Option<Uid>,
    accepted: Option<UpgradeRequest>,
}

impl UpgradeRequests {
    /// Requests to a daemon that root may upgrade, and `user`, to whom it belongs.
    pub fn new(user: Option<Uid>) -> Self {
        Self { user, accepted: None }
    }

    /// Accepts a request if its sender may upgrade and the program can be executed; otherwise
    /// returns the reason.
    pub fn accept(
        &mut self,
        id: RequestId,
        peer: Peer,
        program: Option<&Path>,
    ) -> Result<(), String> {
        // The uid 0 of a container is not that of the machine.
        let is_root = peer.is_root() && peer.owner.is_root();
        if !is_root && self.user != Some(peer.uid) {
            return Err(format!("uid {} may not upgrade the daemon: only root may", peer.uid));
        }
        if self.accepted.is_some() {
            return Err("another upgrade has begun: try again".to_owned());
        }
        let program = match program {
            Some(path) => Program::trusted(path, self.user),
            None => Program::installed(),
        };
        let program = program.map_err(|error| format!("{error:#}"))?;
        self.accepted = Some(UpgradeRequest { id, program });
        Ok(())
    }

    /// Removes and returns the request that was accepted.
    pub fn take(&mut self) -> Option<UpgradeRequest> {
        self.accepted.take()
    }
}

/// A state in memory, which the next program reads.
pub struct StateFile(File);

impl StateFile {
    /// Writes a state.
    pub fn create(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut file: File = memfd_create("upgrade-state", MemfdFlags::CLOEXEC)
            .context("cannot make a file for the state")?
            .into();
        file.write_all(bytes).context("cannot write the state")?;
        file.rewind().context("cannot rewind the state")?;
        Ok(Self(file))
    }

    /// Reads the state in the descriptor `fd`, which `--resume` names.
    pub fn read(fd: i32) -> anyhow::Result<Vec<u8>> {
        ensure!(fd > 2, "--resume {fd}: that one has another use");
        // SAFETY: the descriptor was passed to us for this purpose and is not used elsewhere in
        // this process; if it is not open, operations on it fail.
        let file = unsafe { File::from_raw_fd(fd) };
        let length = file.metadata().with_context(|| format!("--resume {fd}"))?.len();
        let mut bytes = vec![0; usize::try_from(length)?];
        file.read_exact_at(&mut bytes, 0).with_context(|| format!("--resume {fd}"))?;
        Ok(bytes)
    }
}

/// Reads the state in standard input, for `--check-state`.
pub fn read_state_to_check() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    Ok(bytes)
}

/// Reports that the state was verified, for `--check-state`.
pub fn report_verified() {
    println!("{VERIFIED}");
}

/// Executes the program with the state and these descriptors; returns only if that fails.
pub fn execute(program: &Program, state: &StateFile, kept: Vec<KeptFd>) -> anyhow::Error {
    let kept = kept.into_iter().chain([KeptFd::of(&state.0)]).collect();
    match InheritedDescriptors::new(kept).context("cannot keep the descriptors open") {
        Ok(_inherited) => program.execute(state.0.as_raw_fd()),
        Err(error) => error,
    }
}

/// Descriptors that the next executed program inherits. Dropping it undoes that.
struct InheritedDescriptors(Vec<KeptFd>);

impl InheritedDescriptors {
    fn new(descriptors: Vec<KeptFd>) -> io::Result<Self> {
        let this = Self(descriptors);
        this.0.iter().try_for_each(|fd| fd.set_inherited(Inherited::Yes))?;
        Ok(this)
    }
}

impl Drop for InheritedDescriptors {
    fn drop(&mut self) {
        for fd in &self.0 {
            // Cannot fail: it is open.
            let _ = fd.set_inherited(Inherited::No);
        }
    }
}

/// Gives the process the name of its program: before Linux 6.14, fexecve(3) names it after the
/// number of the descriptor.
pub fn restore_name() {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name).map(OsStrExt::as_bytes);
    if let Some(name) = name.and_then(|name| std::ffi::CString::new(name).ok()) {
        // The kernel shortens it.
        let _ = rustix::thread::set_name(&name);
    }
}

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
        let check = || self.check_without_descriptors(state, limit);
        without_descriptors(check).context("cannot start a thread for the check")?
    }

    fn check_without_descriptors(&self, state: &StateFile, limit: Duration) -> anyhow::Result<()> {
        let shown = self.path.display();
        let again = |file: &File| {
            File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .context("cannot open a descriptor again")
        };
        let program = again(&self.file)?;
        let mut arguments = arguments();
        let name = arguments.next().unwrap_or_default();
        // The descriptor is closed when the program is executed.
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command
            .arg0(name)
            .args(arguments)
            .arg("--check-state")
            .stdin(again(&state.0)?)
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
    fn execute(&self, state: RawFd) -> anyhow::Error {
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
