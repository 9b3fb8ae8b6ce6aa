//! `headroom container`: a bus for containers, described to their runtimes.

mod bus;
mod cdi;
mod link;
mod remove;
mod waydroid;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::arguments::{ContainerCommand, Globals};
use crate::helpers::output::{self, printable};
use bus::Bus;
use remove::Clients;

pub use bus::parse_name;

/// Runs the command.
pub fn container(globals: &Globals, command: &ContainerCommand) -> anyhow::Result<()> {
    match command {
        ContainerCommand::Cdi { name, spec_dir } => cdi(globals, name, spec_dir),
        ContainerCommand::Remove { name, spec_dir, force } => {
            let clients = if *force { Clients::Disconnect } else { Clients::Keep };
            remove::remove(globals, name, spec_dir, clients)
        }
        ContainerCommand::Waydroid { name, config } => waydroid::waydroid(globals, name, config),
        ContainerCommand::Link { devices } => match std::env::var_os(link::LXC_ROOT) {
            Some(root) => link::link_all(Path::new(&root)),
            None => link::link(std::io::stdin().lock(), devices),
        },
    }
}

/// Replaces a file, which container runtimes may read at any time: they find the old one or the new
/// one. Those of CDI read names that end in .json and .yaml only.
fn replace(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let new = path.with_extension("new");
    // A link that somebody has put there is not followed.
    let _ = std::fs::remove_file(&new);
    write(&OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?)?;
    std::fs::rename(new, path)
}

/// Result of `container cdi`.
#[derive(Serialize)]
struct Report<'a> {
    bus: &'a Path,
    specification: &'a Path,
    device: String,
}

fn cdi(globals: &Globals, name: &str, spec_dir: &Path) -> anyhow::Result<()> {
    let bus = Bus::find_or_start(name)?;
    let hook = std::env::current_exe().context("cannot find our own executable")?;
    let specification = cdi::Specification::new(name, &bus, &hook);
    let path = specification.write(spec_dir)?;
    let report = Report { bus: &bus.folder, specification: &path, device: cdi::device(name) };
    output::print_as(globals.format(), &report, || {
        format!(
            "{}: {}\n{}: podman run --device {}\n",
            bus.folder.display(),
            printable(&bus.devices.join(", ")),
            path.display(),
            report.device
        )
    })
}
