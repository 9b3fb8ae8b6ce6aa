//! `mount.binder`: what mount(8) calls for `mount -t binder SOURCE DIR [-o OPTIONS]`, with the
//! options `max=N`, `stats=global`, `mode=OCTAL`, `uid=USER` and `gid=GROUP`.
//!
//! The daemon acts as mount helper when it is called by this name (a link in /sbin). Each mount has
//! a daemon of its own in the background, which exits when the bus is unmounted.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use headroom_daemon::permissions::parse_mode;
use headroom_linux::{folders, mountinfo};
use owners::Uid;

use crate::devices;

/// The name that mount(8) executes.
const NAME: &str = "mount.binder";
/// Folder of the daemons that root starts.
const SYSTEM: &str = "/run/headroom";
/// Exit code of a mount helper whose mount failed, and of one that was called with invalid
/// arguments.
const MOUNT_FAILED: u8 = 32;
const BAD_USAGE: u8 = 1;
/// How long the end of a daemon whose bus was unmounted is awaited: it sends the last replies, and
/// closes what its clients had open.
const END_OF_PREDECESSOR: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Options from mount(8) that need no action: they apply to FUSE mounts anyway, or do not concern
/// the mount helper.
const IGNORED: [&str; 14] = [
    "rw", "defaults", "auto", "noauto", "nouser", "nosuid", "nodev", "noexec", "relatime", "async",
    "nofail", "_netdev", "noatime", "silent",
];

/// Mounts, if the program was called as `mount.binder`.
pub fn run_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    if Path::new(&name).file_name()? != NAME {
        return None;
    }
    let request = match Request::parse(arguments) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("{NAME}: {error:#}; usage: {NAME} SOURCE DIR [-fnsv] [-o OPTIONS]");
            return Some(ExitCode::from(BAD_USAGE));
        }
    };
    Some(match request.mount() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {}: {error:#}", request.dir.display());
            ExitCode::from(MOUNT_FAILED)
        }
    })
}

/// Mode and owner of the devices.
#[derive(Debug, Default, PartialEq, Eq)]
struct Permissions {
    mode: Option<u32>,
    uid: Option<Uid>,
    gid: Option<u32>,
}

impl Permissions {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(mode) = self.mode {
            arguments.extend(["--mode".into(), format!("{mode:o}")]);
        }
        let uid = self.uid.unwrap_or_else(|| Uid(rustix::process::geteuid().as_raw()));
        match self.gid {
            Some(gid) => arguments.extend(["--owner".into(), format!("{uid}:{gid}")]),
            None if self.uid.is_some() => arguments.extend(["--owner".into(), uid.to_string()]),
            None => {}
        }
        arguments
    }
}

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    source: String,
    dir: PathBuf,
    max: Option<u32>,
    logs: bool,
    permissions: Permissions,
    /// `-f`: check everything, but do not mount.
    fake: bool,
}

impl Request {
    /// `SOURCE DIR [-fnsv] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]`, without the program's name.
    fn parse(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<Self> {
        let mut request = Self {
            source: String::new(),
            dir: PathBuf::new(),
            max: None,
            logs: false,
            permissions: Permissions::default(),
            fake: false,
        };
        let mut places = Vec::new();
        let (mut arguments, mut sloppy, mut options) = (arguments, false, Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("-o") => {
                    let list = arguments.next().context("-o needs options")?;
                    options.push(list.into_string().ok().context("options that are no text")?);
                }
                Some("-t") => drop(arguments.next()),
                Some("-N") => bail!("mounting in another namespace is not supported"),
                Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                    for flag in flags[1..].chars() {
                        match flag {
                            'f' => request.fake = true,
                            's' => sloppy = true,
                            'n' | 'v' | 'w' => {}
                            'r' => bail!("a bus cannot be read-only"),
                            _ => bail!("unknown flag -{flag}"),
                        }
                    }
                }
                _ => places.push(argument),
            }
        }
        let [source, dir] = &places[..] else { bail!("needs a source and a directory") };
        request.source = source.to_str().context("a source that is no text")?.to_owned();
        request.dir = std::path::absolute(dir).context("not a usable path")?;
        for option in options.iter().flat_map(|list| list.split(',')).filter(|one| !one.is_empty())
        {
            if !request.option(option)? && !sloppy {
                bail!("unknown option {option:?}");
            }
        }
        Ok(request)
    }

    /// False for an unknown option.
    fn option(&mut self, option: &str) -> anyhow::Result<bool> {
        match option.split_once('=') {
            Some(("max", number)) => {
                let number =
                    number.parse().ok().with_context(|| format!("{option}: not a number"))?;
                self.max = Some(number);
            }
            Some(("mode", mode)) => {
                let mode = parse_mode(mode);
                self.permissions.mode = Some(mode.with_context(|| option.to_owned())?);
            }
            Some(("uid", user)) => {
                let uid = devices::parse_user(user);
                self.permissions.uid = Some(uid.with_context(|| option.to_owned())?);
            }
            Some(("gid", group)) => {
                let gid = devices::parse_group(group);
                self.permissions.gid = Some(gid.with_context(|| option.to_owned())?);
            }
            Some(("stats", which)) => {
                ensure!(which == "global", "{option}: only stats=global is known");
                self.logs = true;
            }
            None if option == "ro" => bail!("a bus cannot be read-only"),
            None => return Ok(IGNORED.contains(&option) || option.starts_with("x-")),
            Some((name, _)) => return Ok(name.starts_with("x-") || name.ends_with("context")),
        }
        Ok(true)
    }

    /// Starts a daemon for the mount and waits until it serves.
    fn mount(&self) -> anyhow::Result<()> {
        ensure!(self.dir.is_dir(), "no such directory");
        if self.fake {
            return Ok(());
        }
        let namespace = own_mount_namespace();
        let (folder, log_file) = self.make_folder(namespace)?;
        let log = folder.log_of_start();
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (ready, ready_writer) = rustix::pipe::pipe_with(flags).context("cannot make a pipe")?;
        let mut command = self.daemon(&folder);
        command.args(["--ready-fd", &ready_writer.as_raw_fd().to_string()]);
        if namespace.is_some() {
            command.arg("--leave-mount-namespace");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log_file).current_dir("/");
        in_background(&mut command, &ready_writer);
        let mut daemon = command.spawn().context("cannot start the daemon")?;
        drop(ready_writer);
        let mut line = String::new();
        File::from(ready).read_to_string(&mut line).context("cannot read from the daemon")?;
        let output = std::fs::read_to_string(&log).unwrap_or_default();
        if line.is_empty() {
            let _ = daemon.wait();
            let _ = std::fs::remove_file(&log);
            remove_if_empty(&folder.path);
            bail!("{}", output.trim().trim_start_matches("headroom-binderd: "));
        }
        eprint!("{}", warnings(&output));
        std::fs::rename(&log, folder.log()).context("cannot keep the log")
    }

    /// Makes the folder and the log of the daemon. The daemon of a bus that was unmounted here just
    /// now may still use the folder, and removes it at its end.
    fn make_folder(&self, namespace: Option<u64>) -> anyhow::Result<(RunFolder, File)> {
        let since = Instant::now();
        loop {
            let folder = RunFolder::create(&self.dir, namespace)?;
            let is_patient = since.elapsed() < END_OF_PREDECESSOR;
            if is_patient && folder.has_daemon() && !is_bus(&self.dir)? {
                std::thread::sleep(LOOK_AGAIN);
                continue;
            }
            let log = folder.log_of_start();
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o644);
            match options.open(&log) {
                Ok(file) => return Ok((folder, file)),
                Err(error) if is_patient && error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", log.display()));
                }
            }
        }
    }

    /// The command of the daemon for this mount.
    fn daemon(&self, folder: &RunFolder) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("headroom-binderd").arg("--mount").arg(&self.dir).arg("--until-unmounted");
        command.arg("--mount-source").arg(&self.source);
        command.arg("--socket").arg(folder.socket()).arg("--run-folder").arg(&folder.path);
        if folder.scope == Scope::User {
            command.arg("--session");
        }
        if let Some(max) = self.max {
            command.args(["--max", &max.to_string()]);
        }
        if self.logs {
            command.args(["--stats", "global"]);
        }
        command.args(self.permissions.arguments());
        command
    }
}

/// Whether the topmost mount on this folder is a bus.
fn is_bus(dir: &Path) -> anyhow::Result<bool> {
    let table = std::fs::read("/proc/self/mountinfo").context("cannot read the mount table")?;
    let dir = dir.canonicalize().context("not a usable path")?;
    Ok(mountinfo::topmost(&table, &dir).is_some_and(|entry| entry.fs_type == binder_fuse::FSTYPE))
}

/// Inode of this process's mount namespace, if it can end before the daemon: the first process of a
/// pid namespace is the last one to exit, so its mount namespace cannot.
fn own_mount_namespace() -> Option<u64> {
    let inode_of = |process: &str| {
        std::fs::metadata(format!("/proc/{process}/ns/mnt")).map(|namespace| namespace.ino())
    };
    let own = inode_of("self").ok()?;
    // Another user's first process cannot be inspected.
    (inode_of("1").ok() != Some(own)).then_some(own)
}

/// Warnings to show to the operator at once.
fn warnings(log: &str) -> String {
    log.lines().filter(|line| line.contains(" WARN ")).map(|line| format!("{line}\n")).collect()
}

/// Starts the command in a session of its own, with the pipe left open.
fn in_background(command: &mut Command, inherited: &OwnedFd) {
    let inherited = inherited.as_raw_fd();
    // SAFETY: two system calls, on a descriptor that is open until the parent has spawned.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            match libc::fcntl(inherited, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// Users that the daemon serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// All users.
    System,
    /// One user, without privileges.
    User,
}

/// A folder for the log and the control socket of the daemon of one mount.
#[derive(Debug)]
struct RunFolder {
    path: PathBuf,
    scope: Scope,
}

impl RunFolder {
    /// Creates the folder of a mount in `/run/headroom`, or where that is refused, in
    /// `$XDG_RUNTIME_DIR`, or else in the folder for temporary files.
    fn create(mount: &Path, namespace: Option<u64>) -> anyhow::Result<Self> {
        let name = name_of(mount, namespace);
        let path = Path::new(SYSTEM).join(&name);
        let system = folders::create_public(Path::new(SYSTEM));
        if system.and_then(|()| create_own(&path, 0o755)).is_ok() {
            return Ok(Self { path, scope: Scope::System });
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let temporary = std::env::temp_dir();
        let path = |parent: &Path| parent.join(format!("headroom-{name}"));
        let runtime = runtime.filter(|runtime| runtime.is_absolute()).map(|runtime| path(&runtime));
        let path = match runtime.filter(|path| create_own(path, 0o700).is_ok()) {
            Some(path) => path,
            None => {
                let path = path(&temporary);
                create_own(&path, 0o700)
                    .with_context(|| format!("{}: cannot make it", path.display()))?;
                path
            }
        };
        Ok(Self { path, scope: Scope::User })
    }

    fn socket(&self) -> PathBuf {
        self.path.join("binderd.sock")
    }

    /// Whether a daemon listens on the socket.
    fn has_daemon(&self) -> bool {
        // It is a socket of packets: a dead one refuses the connection, a live one its kind.
        match UnixStream::connect(self.socket()) {
            Ok(_) => true,
            Err(error) => error.raw_os_error() == Some(libc::EPROTOTYPE),
        }
    }

    fn log(&self) -> PathBuf {
        log_in(&self.path)
    }

    /// The log of a daemon that does not serve yet; that of an earlier one is kept until then.
    fn log_of_start(&self) -> PathBuf {
        self.path.join(format!("binderd.log.{}", std::process::id()))
    }
}

/// Removes the log and the folder of a daemon, after the socket.
pub fn remove_run_folder(folder: &Path) {
    let _ = std::fs::remove_file(log_in(folder));
    remove_if_empty(folder);
}

/// Removes the folder, unless another daemon uses it.
fn remove_if_empty(folder: &Path) {
    let _ = std::fs::remove_dir(folder);
}

fn log_in(folder: &Path) -> PathBuf {
    folder.join("binderd.log")
}

/// `binderd@mnt-bus` for `/mnt/bus`, as systemd names units of paths; the same path may be mounted
/// in several mount namespaces.
fn name_of(mount: &Path, namespace: Option<u64>) -> String {
    let path = mount.to_string_lossy();
    let name = path.trim_matches('/').replace('-', "\\x2d").replace('/', "-");
    match namespace {
        Some(inode) => format!("binderd@{name}@{inode}"),
        None => format!("binderd@{name}"),
    }
}

/// Creates a folder, or accepts one of this user that a killed daemon left.
fn create_own(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = path.symlink_metadata()?;
            let is_own = there.is_dir() && there.uid() == rustix::process::geteuid().as_raw();
            if is_own { Ok(()) } else { Err(error) }
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use test_support::documents::{self, CommandLine};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Request, String> {
        let arguments = arguments.iter().map(OsString::from);
        Request::parse(arguments).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn mount_commands_of_the_documents_are_valid() {
        let lines = documents::command_lines("mount");
        let binder = |line: &&CommandLine| line.words.get(2).is_some_and(|kind| kind == "binder");
        // Shorter ones only mention the type.
        let whole = lines.iter().filter(binder).filter(|line| line.words.len() > 4);
        let results: Vec<_> = whole
            .map(|line| (&line.place, Request::parse(line.words[1..].iter().map(OsString::from))))
            .collect();
        assert!(results.len() > 1 && results.iter().all(|(_, r)| r.is_ok()), "{results:?}");
    }

    #[test]
    fn arguments_of_mount_8_are_parsed() {
        let request =
            parse(&["binder", "/mnt/a-b/bus", "-o", "rw,nosuid,max=7,stats=global"]).unwrap();
        assert_eq!((request.max, request.logs, request.fake), (Some(7), true, false));
        let given = parse(&["none", "/mnt", "-o", "mode=0660,gid=7"]).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let expected = ["--mode", "660", "--owner", &format!("{own}:7")].map(str::to_owned);
        assert_eq!(given.permissions.arguments(), expected);
        let given = parse(&["none", "/mnt", "-o", "uid=root"]).unwrap();
        assert_eq!(given.permissions.arguments(), ["--owner", "0"].map(str::to_owned));
        let plain = parse(&["none", "/mnt", "-n", "-t", "binder"]).unwrap();
        assert_eq!((plain.max, plain.logs), (None, false));
        assert_eq!(plain.permissions, Permissions::default());
        assert!(parse(&["none", "/mnt", "-fv"]).unwrap().fake);
    }

    #[test]
    fn unsupported_mount_options_are_reported() {
        for (arguments, expected) in [
            (&["binder"][..], "a source and a directory"),
            (&["binder", "/mnt", "-o", "max=many"], "max=many: not a number"),
            (&["binder", "/mnt", "-o", "mode=rw"], "mode=rw: not an octal mode"),
            (&["binder", "/mnt", "-o", "uid=no such"], "uid=no such: no such user"),
            (&["binder", "/mnt", "-o", "gid=no such"], "gid=no such: no such group"),
            (&["binder", "/mnt", "-o", "stats=local"], "only stats=global"),
            (&["binder", "/mnt", "-o", "ro"], "read-only"),
            (&["binder", "/mnt", "-o", "size=1m"], "unknown option \"size=1m\""),
            (&["binder", "/mnt", "-x"], "unknown flag -x"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
        assert!(parse(&["binder", "/mnt", "-s", "-o", "size=1m"]).is_ok(), "sloppy: it is ignored");
    }

    #[test]
    fn each_mount_of_each_namespace_has_a_name() {
        assert_eq!(name_of(Path::new("/mnt/a-b/bus"), None), "binderd@mnt-a\\x2db-bus");
        assert_eq!(name_of(Path::new("/mnt"), Some(7)), "binderd@mnt@7");
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, link) = (parent.path().join("folder"), parent.path().join("link"));
        create_own(&folder, 0o700).unwrap();
        create_own(&folder, 0o700).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert_eq!(create_own(&link, 0o700).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_folder_is_kept_while_another_daemon_uses_it() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder { path: parent.path().join("folder"), scope: Scope::User };
        create_own(&folder.path, 0o700).unwrap();
        std::fs::write(folder.socket(), "").unwrap();
        std::fs::write(folder.log(), "").unwrap();
        remove_run_folder(&folder.path);
        assert!(folder.socket().exists() && !folder.log().exists());
        std::fs::remove_file(folder.socket()).unwrap();
        remove_run_folder(&folder.path);
        assert!(!folder.path.exists());
    }
}
