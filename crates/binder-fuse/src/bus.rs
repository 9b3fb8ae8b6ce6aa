//! A bus for a test: mounted in one line of code, unmounted when its guard is dropped.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::Error;
use crate::mapping::MappingChoice;
use crate::server::{Config, Server};

/// First argument of a program that is started as server; the mount point and the options follow.
const SERVE: &str = "--serve-bus";
/// The program that is started as server if the caller of `start` cannot serve itself.
const DAEMON: &str = "headroom-binderd";
/// First line of the server's output once it serves; any other output is the reason of a failure.
const READY: &str = "ready ";
/// How long the server may take to unmount.
const PATIENCE: Duration = Duration::from_secs(10);

/// A bus that a child process serves. Dropping it unmounts: calls that are still pending fail then.
///
/// The process that serves must never use the mount itself, so the server cannot run in the process
/// of the test. The program that serves is, in this order,
///
/// 1. the one that [`Builder::program`] names;
/// 2. this very program, started again, if its `main` has called [`Bus::serve_if_started`];
/// 3. `headroom-binderd`, searched in `PATH`: needed by tests with the harness of libtest, which
///    brings its own `main`.
///
/// The bus also ends when the process that started it exits for any reason.
///
/// For root the mount is visible to all users. For any other user it is made in a user namespace of
/// the server, and only processes of this user reach it, by the path that [`Bus::path`] returns;
/// where the kernel forbids that, [`Builder::start`] fails with the reason.
///
/// ```no_run
/// use binder_fuse::Bus;
///
/// let bus = Bus::builder().devices(["binder"]).start()?;
/// let device = std::fs::File::options().read(true).write(true).open(bus.device("binder"))?;
/// // ... mmap, ioctl: services and clients of the test, in this process or in others
/// drop(device);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the bus is gone when this is dropped"]
pub struct Bus {
    child: Child,
    path: PathBuf,
    degraded: Vec<String>,
    /// The requested mount point, and whether we created the folder and have to remove it.
    folder: PathBuf,
    made: bool,
}

/// Configuration of a [`Bus`].
#[derive(Clone, Debug)]
pub struct Builder {
    config: Config,
    /// The caller chose the folder; otherwise a new temporary one is created.
    chosen: bool,
    program: Option<PathBuf>,
}

/// This program's `main` has called [`Bus::serve_if_started`], so it can be started again to serve.
static CAN_SERVE: AtomicBool = AtomicBool::new(false);

impl Bus {
    /// Configures a bus in a new temporary folder, with the three devices of Android.
    pub fn builder() -> Builder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("binder-bus-{}-{number}", std::process::id());
        let config = Config::new(std::env::temp_dir().join(name));
        Builder { config, chosen: false, program: None }
    }

    /// Serves a bus, and does not return, if this process was started by [`Builder::start`] for
    /// that; otherwise returns at once. Call it at the very start of `main`, while the process has
    /// one thread.
    ///
    /// ```no_run
    /// binder_fuse::Bus::serve_if_started();
    /// // The rest of the program follows here; it may start buses.
    /// ```
    pub fn serve_if_started() {
        CAN_SERVE.store(true, Ordering::Relaxed);
        let mut arguments = std::env::args_os().skip(1);
        if arguments.next().is_none_or(|first| first != SERVE) {
            return;
        }
        let (Some(mount), Some(options)) = (arguments.next(), arguments.next()) else { return };
        let options = options.to_string_lossy().into_owned();
        crate::client_access::serve(move || match serve(&parse_options(mount, &options)) {
            Ok(()) => 0,
            Err(error) => {
                print_once(&format!("{error}\n"));
                1
            }
        })
    }

    /// The folder with the devices, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A device (or any other file) of the bus.
    pub fn device(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What does not work on this machine and which function is lost by it, a sentence each.
    pub fn degraded(&self) -> &[String] {
        &self.degraded
    }
}

impl Builder {
    /// Mounts on this folder, which is created if it is missing.
    pub fn mount(mut self, folder: impl Into<PathBuf>) -> Self {
        self.config.mount = folder.into();
        self.chosen = true;
        self
    }

    /// Creates these devices at the start.
    pub fn devices(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.config.devices = names.into_iter().map(Into::into).collect();
        self
    }

    /// Selects how receive buffers reach clients.
    pub fn mapping(mut self, mapping: MappingChoice) -> Self {
        self.config.mapping = mapping;
        self
    }

    /// Maximum number of devices at a time.
    pub fn max_devices(mut self, max: u32) -> Self {
        self.config.max_devices = Some(max);
        self
    }

    /// Adds the folder `binder_logs`.
    pub fn logs(mut self) -> Self {
        self.config.logs = true;
        self
    }

    /// Starts this program as server; its `main` calls [`Bus::serve_if_started`], as that of
    /// `headroom-binderd` does.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> Result<Bus, Error> {
        let folder =
            std::path::absolute(&self.config.mount).map_err(Error::io("not a usable path"))?;
        let made = !self.chosen || !folder.exists();
        std::fs::create_dir_all(&folder).map_err(Error::io("cannot make the mount point"))?;
        let program = self.program.unwrap_or_else(|| {
            let own = CAN_SERVE.load(Ordering::Relaxed);
            PathBuf::from(if own { "/proc/self/exe" } else { DAEMON })
        });
        let mut command = Command::new(&program);
        command.arg0("binder-bus").arg(SERVE).arg(&folder).arg(options(&self.config));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        let child = command.spawn().map_err(|error| {
            if made {
                let _ = std::fs::remove_dir(&folder);
            }
            Error::BusProgram { program, error }
        })?;
        // SAFETY: plain numbers. Where Yama restricts ptrace to ancestors, this lets the server
        // trace us; without Yama the call fails.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(child.id()), 0, 0, 0) };
        let mut bus = Bus { child, path: folder.clone(), degraded: Vec::new(), folder, made };
        // From here on dropping `bus` cleans up.
        let output = bus.child.stdout.take().ok_or(Error::Server("it has no output".into()))?;
        let mut reader = BufReader::new(output);
        let mut first = String::new();
        reader.read_line(&mut first).map_err(Error::io("cannot read from the server"))?;
        let mut rest = String::new();
        reader.read_to_string(&mut rest).map_err(Error::io("cannot read from the server"))?;
        match first.trim_end().strip_prefix(READY) {
            Some(path) => {
                bus.path = path.into();
                bus.degraded = rest.lines().map(str::to_owned).collect();
                Ok(bus)
            }
            None => Err(Error::Server((first + &rest).trim().to_owned())),
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        // Closes the pipe: the server exits at the end of its standard input.
        drop(self.child.stdin.take());
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // ENOTCONN is the error of a mount whose server was killed before it could unmount.
        if rustix::fs::statfs(&self.folder).err() == Some(Errno::NOTCONN) {
            let _ = unmount(&self.folder, UnmountFlags::DETACH);
        }
        if self.made {
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

fn options(config: &Config) -> String {
    let mapping = match config.mapping {
        MappingChoice::Auto => "auto",
        MappingChoice::Only(kind) => kind.name(),
    };
    let max = config.max_devices.map_or(String::new(), |max| format!("max={max}"));
    let logs = if config.logs { "logs" } else { "" };
    format!("devices={} mapping={mapping} {max} {logs}", config.devices.join("/"))
}

fn parse_options(mount: OsString, options: &str) -> Config {
    let mut config = Config { session: true, ..Config::new(mount) };
    for option in options.split_ascii_whitespace() {
        match option.split_once('=') {
            // Device names contain no slash.
            Some(("devices", names)) => {
                let names = names.split('/').filter(|name| !name.is_empty());
                config.devices = names.map(str::to_owned).collect();
            }
            Some(("mapping", how)) => config.mapping = how.parse().unwrap_or_default(),
            Some(("max", max)) => config.max_devices = max.parse().ok(),
            _ => config.logs |= option == "logs",
        }
    }
    config
}

/// Serves until the end of the standard input.
fn serve(config: &Config) -> Result<(), Error> {
    // A new session: the terminal's signals are meant for the test, and we exit when the test does.
    let _ = rustix::process::setsid();
    let mut server = Server::new_anywhere(config)?;
    let stdin = std::io::stdin();
    server.add_external(stdin.as_fd(), 0)?;
    let degraded = server.degraded().iter().map(|sentence| format!("{sentence}\n"));
    let text =
        format!("{READY}{}\n{}", server.mount_point().display(), degraded.collect::<String>());
    print_once(&text);
    let _ = server.next_event()?;
    Ok(())
}

/// Writes to the process that started us, and closes the pipe.
fn print_once(text: &str) {
    let _ = rustix::io::write(std::io::stdout(), text.as_bytes());
    // SAFETY: this process no longer writes to the standard output; /dev/null takes its place.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::dup2(null, 1);
        libc::close(null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::MappingKind;

    #[test]
    fn options_reach_the_server_as_they_were() {
        let mut config = Config::new("/some where");
        config.devices = vec!["one device".replace(' ', "-"), "two,=".into()];
        config.mapping = MappingChoice::Only(MappingKind::NotifyStore);
        config.max_devices = Some(9);
        config.logs = true;
        let parsed = parse_options("/some where".into(), &options(&config));
        assert_eq!((parsed.mount, parsed.devices), (config.mount, config.devices));
        assert_eq!((parsed.mapping, parsed.max_devices), (config.mapping, Some(9)));
        assert!(parsed.logs);
        let plain = parse_options("/x".into(), &options(&Config::new("/x")));
        assert_eq!((plain.max_devices, plain.logs, plain.devices.len()), (None, false, 3));
    }
}
