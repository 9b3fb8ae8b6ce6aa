//! `headroom container link`: a hook of container runtimes (`createContainer` of OCI,
//! `lxc.hook.mount` of LXC) that links the devices in `/dev` of the container to its bus.
//!
//! The hook runs in the mount namespace of the container, before its root becomes `/`. The image
//! may contain links, so `dev` is looked up within that root.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, symlinkat};
use rustix::io::Errno;
use serde::Deserialize;

use super::is_device;

/// The folder of the bus, relative to `/dev`.
const BUS: &str = "binderfs";
/// Variable in which LXC gives its hooks the container's root.
pub const LXC_ROOT: &str = "LXC_ROOTFS_MOUNT";

/// The state of a container (OCI runtime specification), which a hook reads from its standard
/// input.
#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
}

/// `config.json` of a bundle.
#[derive(Deserialize)]
struct Config {
    root: Root,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

/// Runs the hook.
pub fn link(state: impl Read, devices: &[String]) -> anyhow::Result<()> {
    let state: State = serde_json::from_reader(state)
        .context("standard input is not the state of a container: runtimes run this as a hook")?;
    let path = state.bundle.join("config.json");
    let config = std::fs::File::open(&path)
        .map_err(anyhow::Error::from)
        .and_then(|file| Ok(serde_json::from_reader::<_, Config>(std::io::BufReader::new(file))?))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let root = state.bundle.join(config.root.path);
    link_into(&root, devices)
}

/// Runs the hook of LXC: links all devices of the bus that is mounted in the root.
pub fn link_all(root: &Path) -> anyhow::Result<()> {
    let bus = Path::new("dev").join(BUS);
    let mut devices = open(root, &bus, OFlags::RDONLY)
        .and_then(Dir::new)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<rustix::io::Result<Vec<String>>>()
        })
        .with_context(|| format!("no bus in {}", root.join(&bus).display()))?;
    devices.retain(|name| name != "." && name != ".." && is_device(name));
    link_into(root, &devices)
}

fn link_into(root: &Path, devices: &[String]) -> anyhow::Result<()> {
    let dev = open(root, Path::new("dev"), OFlags::PATH)
        .with_context(|| format!("cannot open /dev in {}", root.display()))?;
    for device in devices {
        match symlinkat(Path::new(BUS).join(device), &dev, device) {
            // As with `headroom-binderd --link-dev`, what the image has stays.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).with_context(|| format!("cannot link /dev/{device}")),
        }
    }
    Ok(())
}

/// A folder within a root, out of which no link leads.
fn open(root: &Path, folder: &Path, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, OFlags::PATH | flags, Mode::empty())?;
    openat2(&root, folder, access | flags, Mode::empty(), ResolveFlags::IN_ROOT)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bundle(root: &str) -> tempfile::TempDir {
        let bundle = tempfile::tempdir().unwrap();
        let config = format!(r#"{{"ociVersion": "1.0.2", "root": {{"path": "{root}"}}}}"#);
        fs::write(bundle.path().join("config.json"), config).unwrap();
        fs::create_dir(bundle.path().join("rootfs")).unwrap();
        bundle
    }

    fn run(bundle: &Path, devices: &[&str]) -> anyhow::Result<()> {
        let state = format!(r#"{{"id": "x", "bundle": "{}", "pid": 1}}"#, bundle.display());
        let devices: Vec<String> = devices.iter().map(|name| (*name).to_owned()).collect();
        link(state.as_bytes(), &devices)
    }

    #[test]
    fn devices_are_linked_into_the_bus() {
        let bundle = bundle("rootfs");
        let dev = bundle.path().join("rootfs/dev");
        fs::create_dir(&dev).unwrap();
        fs::write(dev.join("hwbinder"), "the image's").unwrap();
        run(bundle.path(), &["binder", "hwbinder"]).unwrap();
        assert_eq!(fs::read_link(dev.join("binder")).unwrap(), Path::new("binderfs/binder"));
        assert_eq!(fs::read_to_string(dev.join("hwbinder")).unwrap(), "the image's");
    }

    #[test]
    fn a_link_of_the_image_does_not_lead_out_of_its_root() {
        let outside = tempfile::tempdir().unwrap();
        let bundle = bundle("rootfs");
        let dev = bundle.path().join("rootfs/dev");
        std::os::unix::fs::symlink(outside.path(), dev).unwrap();
        let error = format!("{:#}", run(bundle.path(), &["binder"]).unwrap_err());
        assert!(error.contains("cannot open /dev in"), "{error}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn lxc_has_links_to_all_devices_of_the_bus() {
        let root = tempfile::tempdir().unwrap();
        let dev = root.path().join("dev");
        let error = format!("{:#}", link_all(root.path()).unwrap_err());
        assert!(error.contains("no bus in"), "{error}");
        fs::create_dir_all(dev.join("binderfs/features")).unwrap();
        for name in ["binder", "mine", "binder-control"] {
            fs::write(dev.join("binderfs").join(name), "").unwrap();
        }
        link_all(root.path()).unwrap();
        assert_eq!(fs::read_link(dev.join("mine")).unwrap(), Path::new("binderfs/mine"));
        assert!(fs::read_link(dev.join("binder")).is_ok());
        assert_eq!(fs::read_dir(dev).unwrap().count(), 3);
    }

    #[test]
    fn anything_but_a_state_is_refused() {
        let error = format!("{:#}", link(&b"{}"[..], &[]).unwrap_err());
        assert!(error.contains("runtimes run this as a hook"), "{error}");
    }
}
