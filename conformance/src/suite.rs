//! Plays cases, each on a context of its own.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use binder_client::{Client, ClientError, Options, Payload, Session, binderfs};

use crate::cases::Case;
use crate::shared::{Patience, Threads};
use crate::stage::Stage;
use crate::transcript::Played;

/// How long the driver may take to release a case's processes.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// Provides the contexts of cases.
pub enum Contexts {
    /// A binderfs: a new device for every case.
    Binderfs {
        /// Directory of the binderfs.
        directory: PathBuf,
    },
    /// One device that all cases use, one after the other.
    Device(PathBuf),
}

impl Contexts {
    /// A `binder-control` in the same directory makes it a binderfs.
    pub fn of(device: &Path) -> Result<Self> {
        if !device.exists() {
            bail!("{}: no such device", device.display());
        }
        let directory = device.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(if directory.join("binder-control").exists() {
            Contexts::Binderfs { directory }
        } else {
            Contexts::Device(device.to_owned())
        })
    }

    fn take(&self, number: usize) -> Result<PathBuf> {
        match self {
            Contexts::Binderfs { directory } => {
                let name = format!("conformance-{}-{number}", std::process::id());
                binderfs::add_device(&directory.join("binder-control"), name.as_bytes())
                    .with_context(|| format!("cannot add the device {name}"))?;
                Ok(directory.join(name))
            }
            Contexts::Device(device) => {
                wait_until_unmanaged(device)?;
                Ok(device.clone())
            }
        }
    }

    fn give_back(&self, device: &Path) -> Result<()> {
        if let Contexts::Binderfs { .. } = self {
            std::fs::remove_file(device)
                .with_context(|| format!("cannot remove {}", device.display()))?;
        }
        Ok(())
    }
}

/// Waits until a call to handle 0 shows that there is no manager: a driver may release a dead
/// process some time after its exit. A dead reply alone is not sufficient: a manager whose memory
/// is gone also causes one (ESRCH) while no other process can become the manager.
fn wait_until_unmanaged(device: &Path) -> Result<()> {
    let until = Instant::now() + RELEASE_PATIENCE;
    let options = Options { map_len: 0, ..Options::default() };
    loop {
        let client = Client::open(device, &options)?;
        let mut session = Session::new(&client);
        let empty = Payload::default();
        match session.oneway(0, 0, empty) {
            Err(ClientError::DeadReply) if !target_has_no_memory(&client) => return Ok(()),
            _ if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            other => bail!(
                "{}: another process is its context manager (a call to handle 0 gave \
                 {other:?}); the suite needs the device for itself",
                device.display()
            ),
        }
    }
}

/// Whether the last call failed because its target has no memory any more. Kernels before 6.0 do
/// not report that.
fn target_has_no_memory(client: &Client) -> bool {
    client.extended_error().is_ok_and(|error| error.param == -libc::ESRCH)
}

/// The setting of all cases.
#[derive(Clone, Copy)]
pub struct Setting {
    /// Timeouts.
    pub patience: Patience,
    /// What threads are before their first command.
    pub threads: Threads,
}

/// Plays one case.
pub fn play(case: &Case, contexts: &Contexts, number: usize, setting: Setting) -> Result<Played> {
    let device = contexts.take(number)?;
    let path = CString::new(device.as_os_str().as_bytes()).context("a NUL in the device's path")?;
    // How a thread becomes a looper is the subject of these.
    let threads = if case.name.starts_with("looper.") { Threads::Plain } else { setting.threads };
    let stage = Stage::new(path, setting.patience, threads);
    let outcome = (case.play)(&stage);
    let lines = stage.end(outcome);
    contexts.give_back(&device)?;
    Ok(Played { case: case.name.to_owned(), about: case.about.to_owned(), lines })
}

/// Checks that a driver serves the device; otherwise fails with an error for the operator.
pub fn check(contexts: &Contexts) -> Result<()> {
    let device = contexts.take(0)?;
    let client = Client::open(&device, &Options::default());
    contexts.give_back(&device)?;
    let client = client.context("this is no binder device that works")?;
    let mut session = Session::new(&client);
    session.enter_looper().context("BINDER_WRITE_READ does not work")
}
