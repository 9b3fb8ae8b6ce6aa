//! `headroom container waydroid NAME`: the LXC configuration that waydroid has written gets the
//! folder of a bus instead of single device files, which can be opened once only.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use headroom_linux::folders::replace_file;
use serde::Serialize;

use super::{Bus, folder};
use crate::arguments::Globals;
use crate::helpers::output::{self, printable};

/// Devices that waydroid's containers have, in its configuration and on the host.
const DEVICES: [&str; 3] = ["binder", "hwbinder", "vndbinder"];
/// Where the container has the bus.
const FOLDER: &str = "dev/binderfs";
/// Key of a mount in the configuration of LXC, see lxc.container.conf(5).
const MOUNT: &str = "lxc.mount.entry";
/// Key of a hook that runs when all is mounted.
const HOOK: &str = "lxc.hook.mount";
/// The hook, after the path of this program.
const LINK: &str = "container link";

/// Result of `container waydroid`.
#[derive(Serialize)]
struct Configured {
    bus: PathBuf,
    config: PathBuf,
    links: Vec<PathBuf>,
}

/// Runs the command. `config`: waydroid's file of mounts.
pub fn waydroid(globals: &Globals, name: &str, config: &Path) -> anyhow::Result<()> {
    let old = std::fs::read_to_string(config).with_context(|| {
        format!("cannot read {}: `waydroid init` writes it, run that first", config.display())
    })?;
    let hook = std::env::current_exe().context("cannot find our own executable")?;
    // Before a daemon is started for nothing.
    let new = rewrite(&old, &folder(name), &hook).with_context(|| config.display().to_string())?;
    let bus = Bus::find_or_start(name)?;
    rewrite_file(config, &new).with_context(|| format!("cannot write {}", config.display()))?;
    let links = link_devices(Path::new("/dev"), &bus.folder)?;
    let report = Configured { bus: bus.folder, config: config.to_owned(), links };
    output::print_as(globals.format(), &report, || {
        let mut text =
            format!("{}: {}\n", report.bus.display(), printable(&bus.devices.join(", ")));
        text += &format!("{}: binds this bus\n", report.config.display());
        for link in &report.links {
            text += &format!("{}: linked to the bus, so that waydroid finds it\n", link.display());
        }
        text
    })
}

/// The configuration with one mount of the bus and the hook, instead of mounts of device files.
fn rewrite(old: &str, bus: &Path, hook: &Path) -> anyhow::Result<String> {
    let hook = hook.display().to_string();
    // A shell of LXC splits the line.
    ensure!(
        hook.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)),
        "the path of this program, {hook:?}, cannot be written into a configuration of LXC"
    );
    let (ours, others): (Vec<&str>, Vec<&str>) = old.lines().partition(|line| is_replaced(line));
    ensure!(!ours.is_empty(), "no mount of a binder device: this is no config_nodes of waydroid's");
    let mut new: String = others.iter().map(|line| format!("{line}\n")).collect();
    new += &format!("{MOUNT} = {} {FOLDER} none bind,create=dir 0 0\n", bus.display());
    new += &format!("{HOOK} = {hook} {LINK}\n");
    Ok(new)
}

/// Whether a line mounts a device file, or has been written here before.
fn is_replaced(line: &str) -> bool {
    let Some((key, value)) = line.split_once('=') else { return false };
    match key.trim() {
        MOUNT => value.split_whitespace().nth(1).is_some_and(|target| {
            let target = target.trim_start_matches('/');
            target == FOLDER
                || target.strip_prefix("dev/").is_some_and(|name| DEVICES.contains(&name))
        }),
        HOOK => value.trim().ends_with(LINK),
        _ => false,
    }
}

/// Replaces the file, with its permissions.
fn rewrite_file(path: &Path, text: &str) -> std::io::Result<()> {
    let permissions = std::fs::metadata(path)?.permissions();
    let write = |file: &mut File| {
        file.set_permissions(permissions)?;
        file.write_all(text.as_bytes())
    };
    replace_file(path, 0o644, write).map(drop)
}

/// Links the devices in `dev` that do not exist; waydroid looks for them there before it starts.
fn link_devices(dev: &Path, bus: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for device in DEVICES {
        let link = dev.join(device);
        if link.exists() {
            continue;
        }
        match std::fs::read_link(&link) {
            // Of a bus that has ended.
            Ok(_) => std::fs::remove_file(&link)
                .with_context(|| format!("cannot remove {}", link.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => bail!("{}: {error}; remove it", link.display()),
        }
        symlink(bus.join(device), &link)
            .with_context(|| format!("cannot link {}", link.display()))?;
        made.push(link);
    }
    Ok(made)
}

/// Removes the links in `dev` that lead into the folder of a bus that has ended.
pub fn unlink_devices(dev: &Path, bus: &Path) {
    for device in DEVICES {
        let link = dev.join(device);
        if std::fs::read_link(&link).is_ok_and(|target| target == bus.join(device)) {
            let _ = std::fs::remove_file(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "lxc.mount.entry = tmpfs dev tmpfs nosuid 0 0
lxc.mount.entry = /dev/zero dev/zero none bind,create=file,optional 0 0
lxc.mount.entry = /dev/anbox-binder dev/binder none bind,create=file,optional 0 0
lxc.mount.entry = /dev/vndbinder dev/vndbinder none bind,create=file,optional 0 0
lxc.mount.entry = /dev/hwbinder dev/hwbinder none bind,create=file,optional 0 0
lxc.mount.entry = /dev/hwbinder dev/host_hwbinder none bind,create=file,optional 0 0
lxc.hook.mount = /usr/bin/mine
";

    fn rewritten(old: &str) -> anyhow::Result<String> {
        rewrite(old, Path::new("/run/headroom/bus/w"), Path::new("/usr/bin/headroom"))
    }

    #[test]
    fn device_files_are_replaced_by_the_folder_of_the_bus_and_the_rest_stays() {
        let new = rewritten(NODES).unwrap();
        let expected = "lxc.mount.entry = tmpfs dev tmpfs nosuid 0 0
lxc.mount.entry = /dev/zero dev/zero none bind,create=file,optional 0 0
lxc.mount.entry = /dev/hwbinder dev/host_hwbinder none bind,create=file,optional 0 0
lxc.hook.mount = /usr/bin/mine
lxc.mount.entry = /run/headroom/bus/w dev/binderfs none bind,create=dir 0 0
lxc.hook.mount = /usr/bin/headroom container link
";
        assert_eq!(new, expected);
        assert_eq!(rewritten(&new).unwrap(), expected, "a second time");
    }

    #[test]
    fn another_file_and_a_program_that_lxc_cannot_name_are_refused() {
        let other = rewritten("lxc.mount.entry = /dev/zero dev/zero none bind 0 0\n").unwrap_err();
        assert!(other.to_string().contains("no config_nodes of waydroid"), "{other}");
        let unnamed = rewrite(NODES, Path::new("/b"), Path::new("/opt/my headroom")).unwrap_err();
        assert!(unnamed.to_string().contains("/opt/my headroom"), "{unnamed}");
    }

    #[test]
    fn the_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config_nodes");
        std::fs::write(&path, NODES).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "another's").unwrap();
        symlink(&elsewhere, path.with_extension("new")).unwrap();
        rewrite_file(&path, "new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "another's");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn missing_and_dead_links_are_made_and_only_our_own_are_removed() {
        let dev = tempfile::tempdir().unwrap();
        let bus = Path::new("/run/headroom/bus/no-such-bus");
        std::fs::write(dev.path().join("binder"), "another's").unwrap();
        symlink("/run/headroom/bus/ended/hwbinder", dev.path().join("hwbinder")).unwrap();
        let made = link_devices(dev.path(), bus).unwrap();
        assert_eq!(made, ["hwbinder", "vndbinder"].map(|name| dev.path().join(name)));
        assert_eq!(std::fs::read_link(&made[0]).unwrap(), bus.join("hwbinder"));
        symlink("/elsewhere", dev.path().join("other")).unwrap();
        unlink_devices(dev.path(), Path::new("/run/headroom/bus/other-bus"));
        assert_eq!(std::fs::read_dir(dev.path()).unwrap().count(), 4);
        unlink_devices(dev.path(), bus);
        assert_eq!(std::fs::read_dir(dev.path()).unwrap().count(), 2);
    }
}
