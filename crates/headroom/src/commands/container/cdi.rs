//! The specification of a bus for the Container Device Interface:
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
//!
//! A container gets the *folder* of the bus: every lookup in it finds a new inode, so that each
//! client has its own mapping. A device file that is bound alone can be opened once only. Links in
//! `/dev` are made by a hook, as CDI has no edit for them.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use headroom_linux::folders;
use serde::Serialize;

use super::Bus;
use crate::arguments::Globals;
use crate::helpers::output::{self, printable};

/// The oldest version with all that is used here, which the most runtimes accept.
const CDI_VERSION: &str = "0.3.0";
/// Vendor and class of the devices.
const KIND: &str = "headroom/binder";
/// Where a container has the bus: the path of binderfs in Android.
const CONTAINER_PATH: &str = "/dev/binderfs";

/// Result of `container cdi`.
#[derive(Serialize)]
struct Described<'a> {
    bus: &'a Path,
    specification: &'a Path,
    device: String,
}

/// Runs `headroom container cdi`.
pub fn cdi(globals: &Globals, name: &str, spec_dir: &Path) -> anyhow::Result<()> {
    let bus = Bus::find_or_start(name)?;
    let hook = std::env::current_exe().context("cannot find our own executable")?;
    let specification = Specification::new(name, &bus, &hook);
    let path = specification.write(spec_dir)?;
    let report =
        Described { bus: &bus.folder, specification: &path, device: format!("{KIND}={name}") };
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

/// The file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: ContainerEdits,
}

#[derive(Debug, Serialize)]
struct ContainerEdits {
    mounts: Vec<Mount>,
    hooks: Vec<Hook>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
    container_path: &'static str,
    options: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: &'static str,
    path: PathBuf,
    args: Vec<String>,
}

/// The file of a bus.
pub fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("headroom-binder-{name}.json"))
}

impl Specification {
    /// `hook`: path of this program on the host.
    fn new(name: &str, bus: &Bus, hook: &Path) -> Self {
        let mount = Mount {
            host_path: bus.folder.clone(),
            container_path: CONTAINER_PATH,
            options: vec!["bind", "rw", "nosuid", "noexec"],
        };
        let link = ["headroom", "container", "link"].map(String::from);
        let hook = Hook {
            hook_name: "createContainer",
            path: hook.to_owned(),
            args: link.into_iter().chain(bus.devices.iter().cloned()).collect(),
        };
        let container_edits = ContainerEdits { mounts: vec![mount], hooks: vec![hook] };
        let devices = vec![Device { name: name.into(), container_edits }];
        Self { cdi_version: CDI_VERSION, kind: KIND, devices }
    }

    /// Writes the file, which runtimes may read at any time: the new one replaces an old one at
    /// once.
    fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let name = &self.devices[0].name;
        let path = path(folder, name);
        // Runtimes execute the hook as root, so no umask may make the file or its folder writable
        // for others.
        let written = folders::create_public(folder).and_then(|()| {
            folders::replace_file(&path, 0o644, |file| {
                serde_json::to_writer_pretty(&mut *file, self)?;
                file.write_all(b"\n")
            })
            .map(drop)
        });
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// The specification's types of version 0.3.0. Required and optional fields are those of its
    /// schema.json, and so are the fields that are not used here.
    mod schema {
        #![allow(dead_code)]
        use std::collections::BTreeMap;

        use serde::Deserialize;

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Spec {
            pub cdi_version: String,
            pub kind: String,
            pub devices: Vec<Device>,
            pub container_edits: Option<Edits>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Device {
            pub name: String,
            pub container_edits: Edits,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Edits {
            pub env: Option<Vec<String>>,
            pub device_nodes: Option<Vec<BTreeMap<String, serde_json::Value>>>,
            pub mounts: Option<Vec<Mount>>,
            pub hooks: Option<Vec<Hook>>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Mount {
            pub host_path: String,
            pub container_path: String,
            pub options: Option<Vec<String>>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Hook {
            pub hook_name: HookName,
            pub path: String,
            pub args: Option<Vec<String>>,
            pub env: Option<Vec<String>>,
            pub timeout: Option<i64>,
        }

        #[derive(Debug, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub enum HookName {
            Prestart,
            CreateRuntime,
            CreateContainer,
            StartContainer,
            Poststart,
            Poststop,
        }
    }

    fn bus() -> Bus {
        Bus { folder: "/run/headroom/bus/ci".into(), devices: vec!["binder".into(), "mine".into()] }
    }

    #[test]
    fn the_file_satisfies_the_schema_of_cdi() {
        let folder = tempfile::tempdir().unwrap();
        let specification = Specification::new("ci", &bus(), Path::new("/usr/bin/headroom"));
        let path = specification.write(&folder.path().join("cdi")).unwrap();
        assert!(path.ends_with("cdi/headroom-binder-ci.json"));
        let file = std::fs::File::open(path).unwrap();
        let spec = schema::Spec::deserialize(&mut serde_json::Deserializer::from_reader(file));
        let spec = spec.unwrap();
        assert_eq!((&*spec.cdi_version, &*spec.kind), ("0.3.0", "headroom/binder"));
        let [device] = &spec.devices[..] else { panic!("one device") };
        assert_eq!(device.name, "ci");
        let mounts = device.container_edits.mounts.as_ref().unwrap();
        assert_eq!(mounts[0].host_path, "/run/headroom/bus/ci");
        assert_eq!(mounts[0].container_path, "/dev/binderfs");
        let hooks = device.container_edits.hooks.as_ref().unwrap();
        assert_eq!(hooks[0].hook_name, schema::HookName::CreateContainer);
        assert_eq!(hooks[0].path, "/usr/bin/headroom");
        let args = hooks[0].args.as_ref().unwrap();
        assert_eq!(args[..], ["headroom", "container", "link", "binder", "mine"]);
    }

    #[test]
    fn others_cannot_write_to_the_file_whatever_the_umask() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let before = rustix::process::umask(rustix::fs::Mode::empty());
        let new = folder.path().join("etc/cdi");
        let path = Specification::new("ci", &bus(), Path::new("/usr/bin/headroom")).write(&new);
        rustix::process::umask(before);
        for path in [path.unwrap(), new] {
            let mode = std::fs::metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o022, 0, "{}: {mode:o}", path.display());
        }
    }

    #[test]
    fn a_new_file_replaces_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |hook: &str| Specification::new("ci", &bus(), Path::new(hook)).write(folder.path());
        write("/first").unwrap();
        let path = write("/second").unwrap();
        assert!(std::fs::read_to_string(path).unwrap().contains("\"/second\""));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
