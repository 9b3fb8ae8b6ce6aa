//! The devices that a benchmark measures: any driver's by path, or a private daemon's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use e2e::{Bus, Mapping};

use crate::{affinity, rings};

/// Options that all benchmarks of binder devices share.
#[derive(Args, Debug)]
pub struct DeviceArguments {
    /// A binder device without a context manager, of any driver.
    #[arg(long)]
    pub device: Option<PathBuf>,
    /// What the results call --device, as in "kernel-6.12" [default: "binder PATH"].
    #[arg(long, requires = "device")]
    pub subject: Option<String>,
    /// Start a private headroom-binderd (found beside this program or in $HEADROOM_BIN_DIR) for
    /// each kind of mapping.
    #[arg(long)]
    pub headroom: bool,
    /// Only this kind of mapping: passthrough or notify-store.
    #[arg(long, requires = "headroom", value_parser = ["passthrough", "notify-store"])]
    pub mapping: Option<String>,
    /// Measure calls over rings too: on one more private daemon for each kind of mapping, and on
    /// --device if its daemon accepts rings.
    #[arg(long)]
    pub ring: bool,
}

/// A device to measure.
pub struct Device {
    /// Name in the results.
    pub name: String,
    /// Path of the device.
    pub path: PathBuf,
    bus: Option<Bus>,
}

impl Device {
    /// Starts a private daemon with these options, bound to a core if one is given. `None`: this
    /// machine cannot have one, as is printed.
    pub fn start(
        name: &str,
        mapping: Mapping,
        options: &[&str],
        core: Option<usize>,
    ) -> Result<Option<Self>> {
        let Some(bus) = rings::start_bus(name, mapping, options)? else { return Ok(None) };
        if let Some(core) = core {
            affinity::pin_process(bus.pid(), core).with_context(|| name.to_owned())?;
        }
        Ok(Some(Self { name: name.to_owned(), path: bus.device("binder"), bus: Some(bus) }))
    }

    /// Pid of its daemon, if this program has started it.
    pub fn daemon(&self) -> Option<u32> {
        self.bus.as_ref().map(Bus::pid)
    }

    /// Control socket of its daemon, if this program has started it.
    pub fn control_socket(&self) -> Option<&Path> {
        self.bus.as_ref().map(Bus::socket)
    }

    /// The path as an argument of a peer.
    pub fn path_text(&self) -> Result<&str> {
        path_text(&self.path)
    }
}

/// A path as an argument of a peer.
pub fn path_text(path: &Path) -> Result<&str> {
    path.to_str().context("the device's path is not UTF-8")
}

impl DeviceArguments {
    /// Starts the program again if its calls are to go over rings. To be called before it starts
    /// others.
    pub fn prepare(&self) -> Result<()> {
        if self.ring {
            rings::preload()?;
        }
        Ok(())
    }

    /// Starts the private daemons and lists all devices. If `core` is given, these daemons are
    /// bound to it.
    pub fn open(&self, core: Option<usize>) -> Result<Vec<Device>> {
        anyhow::ensure!(
            self.device.is_some() || self.headroom,
            "nothing to measure: give --device PATH, --headroom, or both"
        );
        let mut devices = Vec::new();
        if let Some(path) = &self.device {
            let named = self.subject.clone();
            let name = named.unwrap_or_else(|| format!("binder {}", path.display()));
            devices.push(Device { name, path: path.clone(), bus: None });
        }
        if self.headroom {
            devices.extend(self.private_devices(core)?);
        }
        anyhow::ensure!(!devices.is_empty(), "nothing is left to measure");
        Ok(devices)
    }

    fn private_devices(&self, core: Option<usize>) -> Result<Vec<Device>> {
        let mappings =
            [("passthrough", Mapping::Passthrough), ("notify-store", Mapping::NotifyStore)];
        let wanted = |mapping: &str| self.mapping.as_deref().is_none_or(|only| mapping == only);
        let mut devices = Vec::new();
        for (mapping_name, mapping) in mappings.into_iter().filter(|(name, _)| wanted(name)) {
            for over_rings in [false, true].into_iter().take(1 + usize::from(self.ring)) {
                let (by, options) =
                    if over_rings { (", rings", rings::ACCEPTED) } else { ("", &[][..]) };
                let name = format!("headroom {mapping_name}{by}");
                devices.extend(Device::start(&name, mapping, options, core)?);
            }
        }
        Ok(devices)
    }
}

/// Stops the private daemons, after their clients have exited.
pub fn close(devices: Vec<Device>) -> Result<()> {
    for Device { name, bus, .. } in devices {
        if let Some(bus) = bus {
            bus.stop().map_err(|fault| anyhow::anyhow!("{name}: {fault}"))?;
        }
    }
    Ok(())
}
