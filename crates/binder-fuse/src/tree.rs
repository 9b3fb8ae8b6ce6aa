//! The directory tree: names, their owners and modes, and node ids.
//!
//! No I/O. Fixed entries have fixed node ids. A device gets a **fresh node id for every LOOKUP**,
//! so that every open has its own inode, and thereby its own mapping.

use std::collections::{BTreeMap, HashMap};

use binder_driver::{ContextId, Driver};
use binder_uapi::BINDERFS_MAX_NAME;
use owners::Uid;
use serde::{Deserialize, Serialize};

use crate::fixed::{self, DeviceId, FIRST_FREE_ID, Logs, PROCESS_IDS, Place};
use crate::wire::types::{Attr, FATTR_GID, FATTR_MODE, FATTR_SIZE, FATTR_UID, ROOT_ID, SetattrIn};

/// Size of every device file, bytes: the largest mapping that the protocol uses; a larger mapping
/// would fault behind the end.
pub(crate) const DEVICE_SIZE: u64 = 4 << 20;

/// READDIR offsets of devices and of processes start here; below are the fixed entries.
const FIRST_DEVICE_OFFSET: u64 = 16;
/// Maximum number of devices; only root can add one.
const MAX_DEVICES: usize = 4096;

/// Configuration of a tree.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    /// Initial owner of all entries but the devices.
    pub(crate) uid: Uid,
    pub(crate) gid: u32,
    /// Initial owner of each device.
    pub(crate) device_uid: Uid,
    pub(crate) device_gid: u32,
    /// Maximum number of devices.
    pub(crate) max_devices: Option<u32>,
    /// Whether there is a folder `binder_logs`.
    pub(crate) logs: Logs,
    /// Seconds since the epoch, reported by `stat(2)`.
    pub(crate) created: u64,
}

/// `renameat2(2)`: fail if the new name exists.
const RENAME_NOREPLACE: u32 = 1;
/// `renameat2(2)`: exchange the two names.
const RENAME_EXCHANGE: u32 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Device {
    name: String,
    context: ContextId,
    owner: Owner,
    /// The device has a name. An unlinked device exists while it has node ids.
    linked: bool,
    /// Number of live node ids of the device.
    nodes: u64,
    /// [`Tree::mark_bound`].
    bound: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Owner {
    mode: u32,
    uid: Uid,
    gid: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct DeviceNode {
    device: DeviceId,
    lookups: u64,
    open: bool,
}

/// A directory entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: u64,
    /// Offset at which READDIR continues after this entry.
    pub(crate) next: u64,
    pub(crate) directory: bool,
    pub(crate) name: String,
}

/// The tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    devices: BTreeMap<DeviceId, Device>,
    nodes: HashMap<u64, DeviceNode>,
    next_device: u64,
    next_node: u64,
    control: Owner,
    options: Options,
}

impl Tree {
    /// A tree without devices.
    pub(crate) fn new(options: Options) -> Self {
        let Options { uid, gid, .. } = options;
        Self {
            devices: BTreeMap::new(),
            nodes: HashMap::new(),
            next_device: FIRST_DEVICE_OFFSET,
            next_node: FIRST_FREE_ID,
            control: Owner { mode: 0o600, uid, gid },
            options,
        }
    }

    /// Node ids that are open.
    pub(crate) fn open_nodes(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().filter(|(_, node)| node.open).map(|(&id, _)| id)
    }

    /// Checks a tree that was read from a state.
    pub(crate) fn check(&self, driver: &Driver) -> Result<(), String> {
        if self.next_node.max(self.next_device) >= PROCESS_IDS {
            return Err("the numbers of nodes are used up".into());
        }
        let mut counts: HashMap<DeviceId, u64> = HashMap::new();
        for (&id, node) in &self.nodes {
            let is_in_range = (FIRST_FREE_ID..self.next_node).contains(&id);
            if !is_in_range || node.lookups == 0 || !self.devices.contains_key(&node.device) {
                return Err(format!("node {id} is that of no device"));
            }
            *counts.entry(node.device).or_default() += 1;
        }
        for (&id, device) in &self.devices {
            let count = counts.get(&id).copied().unwrap_or(0);
            let is_in_range = (FIRST_DEVICE_OFFSET..self.next_device).contains(&id.0);
            if !is_in_range || count != device.nodes || (!device.linked && count == 0) {
                return Err(format!("device {:?} has {count} nodes", device.name));
            }
            // An unlinked device may outlive its context.
            if device.linked && !driver.has_context(device.context) {
                return Err(format!("device {:?} has no context", device.name));
            }
        }
        Ok(())
    }

    /// Checks the name of a new device. Errno (positive) if it is refused: `EEXIST`, `EACCES` (as
    /// the kernel for what is no name), `ENAMETOOLONG`, `ENOSPC`.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), i32> {
        if name.len() > BINDERFS_MAX_NAME {
            return Err(libc::ENAMETOOLONG);
        }
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(libc::EACCES);
        }
        if self.is_fixed(name) || self.by_name(name).is_some() {
            return Err(libc::EEXIST);
        }
        let most = self.options.max_devices.map_or(MAX_DEVICES, |max| max as usize);
        // An unlinked device that is still open uses memory, but does not count as a device.
        if self.device_count() >= most || self.devices.len() >= MAX_DEVICES {
            return Err(libc::ENOSPC);
        }
        Ok(())
    }

    fn is_fixed(&self, name: &str) -> bool {
        fixed::lookup(ROOT_ID, name, self.options.logs).is_some()
    }

    /// Adds a device whose name was checked.
    pub(crate) fn add(&mut self, name: &str, context: ContextId, mode: u32) -> DeviceId {
        let id = DeviceId(self.next_device);
        self.next_device += 1;
        let Options { device_uid: uid, device_gid: gid, .. } = self.options;
        let owner = Owner { mode, uid, gid };
        let device =
            Device { name: name.to_owned(), context, owner, linked: true, nodes: 0, bound: false };
        self.devices.insert(id, device);
        id
    }

    fn by_name(&self, name: &str) -> Option<DeviceId> {
        let mut linked = self.devices.iter().filter(|(_, device)| device.linked);
        linked.find(|(_, device)| device.name == name).map(|(&id, _)| id)
    }

    /// The entry that a node id refers to.
    pub(crate) fn place(&self, node: u64) -> Option<Place> {
        let device = || self.nodes.get(&node).map(|node| Place::Device(node.device));
        fixed::place(node, self.options.logs).or_else(device)
    }

    /// The device's context.
    pub(crate) fn context(&self, device: DeviceId) -> Option<ContextId> {
        self.devices.get(&device).map(|device| device.context)
    }

    /// The device's name.
    pub(crate) fn name(&self, device: DeviceId) -> &str {
        self.devices.get(&device).map_or("", |device| &device.name)
    }

    /// Number of devices that have a name.
    pub(crate) fn device_count(&self) -> usize {
        self.devices.values().filter(|device| device.linked).count()
    }

    /// Resolves a name; a device gets a fresh node. Errno on failure.
    pub(crate) fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        let name = std::str::from_utf8(name).map_err(|_| libc::ENOENT)?;
        if let Some(node) = fixed::lookup(parent, name, self.options.logs) {
            return Ok(node);
        }
        match self.place(parent) {
            Some(Place::Root) => {
                let device = self.by_name(name).ok_or(libc::ENOENT)?;
                let node = self.next_node;
                self.next_node += 1;
                self.nodes.insert(node, DeviceNode { device, lookups: 1, open: false });
                self.devices.entry(device).and_modify(|device| device.nodes += 1);
                Ok(node)
            }
            Some(Place::Features | Place::Logs | Place::Processes) | None => Err(libc::ENOENT),
            Some(_) => Err(libc::ENOTDIR),
        }
    }

    /// The kernel dropped `count` lookups of a node.
    pub(crate) fn forget(&mut self, node: u64, count: u64) {
        let Some(entry) = self.nodes.get_mut(&node) else { return };
        entry.lookups = entry.lookups.saturating_sub(count);
        if entry.lookups == 0 {
            let id = entry.device;
            self.nodes.remove(&node);
            if let Some(device) = self.devices.get_mut(&id) {
                device.nodes -= 1;
            }
            self.drop_unused(id);
        }
    }

    fn drop_unused(&mut self, id: DeviceId) {
        if self.devices.get(&id).is_some_and(|device| !device.linked && device.nodes == 0) {
            self.devices.remove(&id);
        }
    }

    /// Removes a device's name. Errno on failure: `EPERM` for every entry that is not a device.
    pub(crate) fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<ContextId, i32> {
        let name = self.name_of_device(parent, name)?;
        let id = self.by_name(name).ok_or(libc::ENOENT)?;
        self.take_name(id).ok_or(libc::ENOENT)
    }

    /// Renames a device; returns the context of another device that had the new name and has none
    /// now. Clients that have it open are not affected. Errno on failure: `EPERM` for every entry
    /// that is not a device.
    pub(crate) fn rename(
        &mut self,
        (old_parent, old): (u64, &[u8]),
        (new_parent, new): (u64, &[u8]),
        flags: u32,
    ) -> Result<Option<ContextId>, i32> {
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 {
            return Err(libc::EINVAL);
        }
        let old = self.name_of_device(old_parent, old)?;
        let new = self.name_of_device(new_parent, new)?;
        let id = self.by_name(old).ok_or(libc::ENOENT)?;
        let other = self.by_name(new).filter(|&other| other != id);
        let mut replaced = None;
        match other {
            Some(other) if flags & RENAME_EXCHANGE != 0 => {
                let entry = self.devices.get_mut(&other).ok_or(libc::ENOENT)?;
                entry.name = old.to_owned();
            }
            Some(_) if flags & RENAME_NOREPLACE != 0 => return Err(libc::EEXIST),
            Some(other) => replaced = self.take_name(other),
            None if flags & RENAME_EXCHANGE != 0 => return Err(libc::ENOENT),
            None if new.len() > BINDERFS_MAX_NAME => return Err(libc::ENAMETOOLONG),
            None => {}
        }
        self.devices.get_mut(&id).ok_or(libc::ENOENT)?.name = new.to_owned();
        Ok(replaced)
    }

    /// Checks that a name in this folder is a possible device name.
    fn name_of_device<'a>(&self, parent: u64, name: &'a [u8]) -> Result<&'a str, i32> {
        let name = std::str::from_utf8(name).map_err(|_| libc::EINVAL)?;
        let possible = self.place(parent) == Some(Place::Root) && !self.is_fixed(name);
        if possible { Ok(name) } else { Err(libc::EPERM) }
    }

    fn take_name(&mut self, id: DeviceId) -> Option<ContextId> {
        let device = self.devices.get_mut(&id)?;
        device.linked = false;
        let context = device.context;
        self.drop_unused(id);
        Some(context)
    }

    /// Claims a device's node for one open. `EBUSY`: the node is open already, through a bind mount
    /// of the file itself or `/proc/<pid>/fd`; two opens of one inode would share one mapping.
    pub(crate) fn claim(&mut self, node: u64) -> Result<(), i32> {
        let entry = self.nodes.get_mut(&node).ok_or(libc::ENOENT)?;
        if std::mem::replace(&mut entry.open, true) { Err(libc::EBUSY) } else { Ok(()) }
    }

    /// Marks a device of which one file was opened twice. The name, if it was not marked before.
    pub(crate) fn mark_bound(&mut self, id: DeviceId) -> Option<&str> {
        let device = self.devices.get_mut(&id)?;
        (!std::mem::replace(&mut device.bound, true)).then_some(&*device.name)
    }

    /// Whether the device with this name is [marked](Self::mark_bound).
    pub(crate) fn is_bound(&self, name: &str) -> bool {
        self.devices.values().any(|device| device.linked && device.bound && device.name == name)
    }

    /// Undoes [`claim`](Self::claim).
    pub(crate) fn unclaim(&mut self, node: u64) {
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.open = false;
        }
    }

    /// Attributes for `stat(2)`.
    pub(crate) fn attr(&self, node: u64) -> Option<Attr> {
        let Options { uid, gid, created, .. } = self.options;
        let (folder, file) = (Owner { mode: 0o755, uid, gid }, Owner { mode: 0o444, uid, gid });
        let (kind, nlink, size, owner) = match self.place(node)? {
            Place::Root => {
                (libc::S_IFDIR, 3 + u32::from(self.options.logs == Logs::Present), 0, folder)
            }
            Place::Logs => (libc::S_IFDIR, 3, 0, folder),
            Place::Features | Place::Processes => (libc::S_IFDIR, 2, 0, folder),
            Place::Feature => (libc::S_IFREG, 1, fixed::feature_size(), file),
            Place::Log(_) => (libc::S_IFREG, 1, 0, file),
            Place::Control => (libc::S_IFREG, 1, 0, self.control),
            Place::Device(id) => {
                let device = self.devices.get(&id)?;
                (libc::S_IFREG, u32::from(device.linked), DEVICE_SIZE, device.owner)
            }
        };
        Some(Attr {
            ino: node,
            size,
            atime: created,
            mtime: created,
            ctime: created,
            mode: kind | owner.mode,
            nlink,
            uid: owner.uid.0,
            gid: owner.gid,
            blksize: 4096,
            ..Attr::default()
        })
    }

    /// `chmod` and `chown` of devices and of `binder-control`; times are accepted and ignored, as
    /// are all changes of fixed entries: scripts change the mode of all files of a folder. The
    /// kernel has checked the caller's rights. Errno: `EINVAL` for a new size.
    pub(crate) fn setattr(&mut self, node: u64, change: &SetattrIn) -> Result<(), i32> {
        if change.valid & FATTR_SIZE != 0 {
            return Err(libc::EINVAL);
        }
        let owner = match self.place(node).ok_or(libc::ENOENT)? {
            Place::Control => &mut self.control,
            Place::Device(id) => &mut self.devices.get_mut(&id).ok_or(libc::ENOENT)?.owner,
            _ => return Ok(()),
        };
        if change.valid & FATTR_MODE != 0 {
            owner.mode = change.mode & 0o7777;
        }
        if change.valid & FATTR_UID != 0 {
            owner.uid = Uid(change.uid);
        }
        if change.valid & FATTR_GID != 0 {
            owner.gid = change.gid;
        }
        Ok(())
    }

    /// Entries of a directory from `offset` on; empty if the node is no directory. `pids` are the
    /// processes that have a device open. Offsets stay valid while devices and processes come and
    /// go.
    pub(crate) fn entries(&self, node: u64, offset: u64, pids: &[u32]) -> Vec<Entry> {
        let place = self.place(node);
        let folder =
            matches!(place, Some(Place::Root | Place::Features | Place::Logs | Place::Processes));
        if !folder {
            return Vec::new();
        }
        let new = |ino, next, directory, name: &str| Entry {
            ino,
            next,
            directory,
            name: name.to_owned(),
        };
        let mut all = vec![new(node, 1, true, "."), new(ROOT_ID, 2, true, "..")];
        let inside = fixed::all(self.options.logs).filter(|(_, entry)| entry.parent == node);
        all.extend(inside.map(|(number, entry)| {
            let directory = matches!(entry.place, Place::Features | Place::Logs | Place::Processes);
            new(entry.id, 3 + number, directory, entry.name)
        }));
        let later = |number: u64| FIRST_DEVICE_OFFSET + number + 1;
        match place {
            Some(Place::Root) => {
                let linked = self.devices.iter().filter(|(_, device)| device.linked);
                // No node id yet: every LOOKUP creates its own.
                all.extend(
                    linked.map(|(id, device)| new(u64::MAX - id.0, id.0 + 1, false, &device.name)),
                );
            }
            Some(Place::Processes) => all.extend(pids.iter().map(|&pid| {
                new(fixed::process_node(pid), later(pid.into()), false, &pid.to_string())
            })),
            _ => {}
        }
        all.retain(|entry| entry.next > offset);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options {
        uid: Uid::ROOT,
        gid: 0,
        device_uid: Uid::ROOT,
        device_gid: 0,
        max_devices: None,
        logs: Logs::Absent,
        created: 0,
    };
    const FEATURES_ID: u64 = 3;

    fn tree_with(names: &[&str]) -> Tree {
        let mut driver = Driver::new();
        let mut tree = Tree::new(OPTIONS);
        for name in names {
            let context = driver.add_context(name);
            tree.add(name, context, 0o666);
        }
        tree
    }

    #[test]
    fn a_bound_file_is_reported_once_per_device() {
        let mut tree = tree_with(&["binder", "other"]);
        let node = tree.lookup(ROOT_ID, b"binder").unwrap();
        let Some(Place::Device(device)) = tree.place(node) else { panic!("a device") };
        assert!(!tree.is_bound("binder"));
        assert_eq!(tree.mark_bound(device), Some("binder"));
        assert_eq!(tree.mark_bound(device), None);
        assert!(tree.is_bound("binder") && !tree.is_bound("other"));
    }

    #[test]
    fn every_lookup_of_a_device_is_a_node_of_its_own() {
        let mut tree = tree_with(&["binder"]);
        let first = tree.lookup(ROOT_ID, b"binder").unwrap();
        let second = tree.lookup(ROOT_ID, b"binder").unwrap();
        assert_ne!(first, second);
        assert_eq!(tree.place(first), tree.place(second));
        assert_ne!(tree.attr(first).unwrap().ino, tree.attr(second).unwrap().ino);
        tree.forget(first, 1);
        assert_eq!(tree.place(first), None);
        assert!(tree.place(second).is_some());
    }

    #[test]
    fn a_node_is_open_once_at_a_time() {
        let mut tree = tree_with(&["binder"]);
        let node = tree.lookup(ROOT_ID, b"binder").unwrap();
        assert_eq!(tree.claim(node), Ok(()));
        assert_eq!(tree.claim(node), Err(libc::EBUSY));
        tree.unclaim(node);
        assert_eq!(tree.claim(node), Ok(()));
    }

    #[test]
    fn an_unlinked_device_lives_on_for_its_nodes_only() {
        let mut tree = tree_with(&["binder", "other"]);
        let node = tree.lookup(ROOT_ID, b"binder").unwrap();
        assert!(tree.unlink(ROOT_ID, b"binder").is_ok());
        assert_eq!(tree.lookup(ROOT_ID, b"binder"), Err(libc::ENOENT));
        assert_eq!(tree.attr(node).unwrap().nlink, 0);
        assert_eq!(tree.check_name("binder"), Ok(()), "the name is free again");
        tree.forget(node, 1);
        assert_eq!(tree.devices.len(), 1, "nothing is kept of it");
        assert_eq!(tree.unlink(ROOT_ID, b"binder").unwrap_err(), libc::ENOENT);
    }

    #[test]
    fn only_devices_can_be_unlinked() {
        let mut tree = tree_with(&["binder"]);
        assert_eq!(tree.unlink(ROOT_ID, b"binder-control").unwrap_err(), libc::EPERM);
        assert_eq!(tree.unlink(ROOT_ID, b"features").unwrap_err(), libc::EPERM);
        assert_eq!(tree.unlink(FEATURES_ID, b"extended_error").unwrap_err(), libc::EPERM);
    }

    #[test]
    fn bad_names_have_their_errno() {
        let tree = tree_with(&["binder"]);
        let long = "x".repeat(256);
        let cases = [
            ("binder", Err(libc::EEXIST)),
            ("binder-control", Err(libc::EEXIST)),
            ("features", Err(libc::EEXIST)),
            ("", Err(libc::EACCES)),
            (".", Err(libc::EACCES)),
            ("..", Err(libc::EACCES)),
            ("a/b", Err(libc::EACCES)),
            (&long, Err(libc::ENAMETOOLONG)),
            (&long[1..], Ok(())),
            ("anbox-binder", Ok(())),
        ];
        for (name, expected) in cases {
            assert_eq!(tree.check_name(name), expected, "{name:?}");
        }
    }

    #[test]
    fn a_listing_goes_on_where_it_stopped_though_devices_come_and_go() {
        let mut tree = tree_with(&["binder", "hwbinder", "vndbinder"]);
        let names = |tree: &Tree, offset| -> Vec<String> {
            tree.entries(ROOT_ID, offset, &[]).iter().map(|entry| entry.name.clone()).collect()
        };
        let all = [".", "..", "binder-control", "features", "binder", "hwbinder", "vndbinder"];
        assert_eq!(names(&tree, 0), all);
        let after_binder = tree.entries(ROOT_ID, 0, &[])[4].next;
        tree.unlink(ROOT_ID, b"binder").unwrap();
        assert_eq!(names(&tree, after_binder), ["hwbinder", "vndbinder"]);
    }

    #[test]
    fn chmod_and_chown_stay_with_the_device_and_sizes_are_fixed() {
        let mut tree = tree_with(&["binder"]);
        let node = tree.lookup(ROOT_ID, b"binder").unwrap();
        let chmod = SetattrIn { valid: FATTR_MODE, mode: 0o100_640, ..SetattrIn::default() };
        tree.setattr(node, &chmod).unwrap();
        let chown =
            SetattrIn { valid: FATTR_UID | FATTR_GID, uid: 7, gid: 8, ..Default::default() };
        tree.setattr(node, &chown).unwrap();
        let again = tree.lookup(ROOT_ID, b"binder").unwrap();
        let attr = tree.attr(again).unwrap();
        assert_eq!((attr.mode, attr.uid, attr.gid), (0o100_640, 7, 8));
        let truncate = SetattrIn { valid: FATTR_SIZE, ..SetattrIn::default() };
        assert_eq!(tree.setattr(node, &truncate), Err(libc::EINVAL));
        assert_eq!(tree.setattr(FEATURES_ID, &chmod), Ok(()));
        assert_eq!(tree.attr(FEATURES_ID).unwrap().mode, libc::S_IFDIR | 0o755, "without effect");
    }

    #[test]
    fn a_renamed_device_keeps_its_opens_and_what_had_the_name_loses_it() {
        let mut tree = tree_with(&["one", "two"]);
        let open = tree.lookup(ROOT_ID, b"one").unwrap();
        let place = tree.place(open);
        assert_eq!(tree.rename((ROOT_ID, b"one"), (ROOT_ID, b"three"), 0), Ok(None));
        assert_eq!(tree.lookup(ROOT_ID, b"one"), Err(libc::ENOENT));
        let again = tree.lookup(ROOT_ID, b"three").unwrap();
        assert_eq!(tree.place(again), place);
        let refused = tree.rename((ROOT_ID, b"three"), (ROOT_ID, b"two"), RENAME_NOREPLACE);
        assert_eq!(refused, Err(libc::EEXIST));
        assert_eq!(tree.rename((ROOT_ID, b"three"), (ROOT_ID, b"two"), RENAME_EXCHANGE), Ok(None));
        let two = tree.lookup(ROOT_ID, b"two").unwrap();
        assert_eq!(tree.place(two), place);
        assert!(tree.rename((ROOT_ID, b"two"), (ROOT_ID, b"three"), 0).unwrap().is_some());
        assert_eq!(tree.device_count(), 1);
        assert_eq!(tree.rename((ROOT_ID, b"three"), (ROOT_ID, b"three"), 0), Ok(None), "itself");
        assert_eq!(tree.device_count(), 1);
    }

    #[test]
    fn only_devices_can_be_renamed_and_only_to_names_of_devices() {
        let mut tree = tree_with(&["one"]);
        let long = [b'x'; 256];
        for (old, new, flags, errno) in [
            ((ROOT_ID, &b"binder-control"[..]), (ROOT_ID, &b"x"[..]), 0, libc::EPERM),
            ((ROOT_ID, b"one"), (ROOT_ID, b"binder-control"), 0, libc::EPERM),
            ((ROOT_ID, b"one"), (FEATURES_ID, b"one"), 0, libc::EPERM),
            ((ROOT_ID, b"none"), (ROOT_ID, b"x"), 0, libc::ENOENT),
            ((ROOT_ID, b"one"), (ROOT_ID, b"x"), RENAME_EXCHANGE, libc::ENOENT),
            ((ROOT_ID, b"one"), (ROOT_ID, b"x"), 4, libc::EINVAL),
            ((ROOT_ID, b"one"), (ROOT_ID, &long), 0, libc::ENAMETOOLONG),
        ] {
            assert_eq!(tree.rename(old, new, flags), Err(errno), "{old:?} {new:?}");
        }
    }

    #[test]
    fn no_more_devices_than_wanted_have_a_name() {
        let mut driver = Driver::new();
        let mut tree = Tree::new(Options { max_devices: Some(1), ..OPTIONS });
        assert_eq!(tree.check_name("one"), Ok(()));
        tree.add("one", driver.add_context("one"), 0o666);
        assert_eq!(tree.check_name("two"), Err(libc::ENOSPC));
        let node = tree.lookup(ROOT_ID, b"one").unwrap();
        tree.unlink(ROOT_ID, b"one").unwrap();
        assert_eq!(tree.check_name("two"), Ok(()), "though the first is still open");
        tree.forget(node, 1);
    }

    #[test]
    fn the_folder_of_processes_lists_the_open_processes() {
        let tree = Tree::new(Options { logs: Logs::Present, uid: Uid(7), ..OPTIONS });
        let logs = fixed::lookup(ROOT_ID, "binder_logs", Logs::Present).unwrap();
        let names = |node, offset| -> Vec<String> {
            let entries = tree.entries(node, offset, &[5, 4_000_000_000]);
            entries.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names(ROOT_ID, 2), ["binder-control", "features", "binder_logs"]);
        let files =
            ["failed_transaction_log", "proc", "state", "stats", "transaction_log", "transactions"];
        assert_eq!(names(logs, 2), files);
        let processes = fixed::lookup(logs, "proc", Logs::Present).unwrap();
        assert_eq!(names(processes, 0), [".", "..", "5", "4000000000"]);
        let first = tree.entries(processes, 2, &[5]).remove(0);
        assert_eq!(names(processes, first.next), ["4000000000"]);
        let attr = tree.attr(first.ino).unwrap();
        assert_eq!((attr.mode, attr.uid), (libc::S_IFREG | 0o444, 7));
    }
}
