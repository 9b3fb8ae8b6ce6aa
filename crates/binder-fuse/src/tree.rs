//! The directory tree: which names there are, who may use them, which node stands for what.
//!
//! No I/O. Fixed entries have fixed node ids. A device gets a **fresh node id for every LOOKUP**, so that
//! every open has an inode, and with it a mapping, of its own.

use std::collections::{BTreeMap, HashMap};

use binder_driver::ContextId;
use binder_uapi::BINDERFS_MAX_NAME;

use crate::wire::types::{Attr, FATTR_GID, FATTR_MODE, FATTR_SIZE, FATTR_UID, ROOT_ID, SetattrIn};

/// Bytes of every device file, enough for the largest mapping that the protocol knows; a mapping of
/// more would fault behind the end.
pub(crate) const DEVICE_SIZE: u64 = 4 << 20;

/// The fixed name that adds devices.
const CONTROL_NAME: &str = "binder-control";
const FEATURES_NAME: &str = "features";
const CONTROL_ID: u64 = 2;
const FEATURES_ID: u64 = 3;
const FIRST_FEATURE_ID: u64 = 4;
const FIRST_DEVICE_NODE: u64 = 64;
/// READDIR offsets of devices start here; below are the fixed entries.
const FIRST_DEVICE_OFFSET: u64 = 16;
/// Devices at a time; only root can add one.
const MAX_DEVICES: usize = 4096;
const FEATURE_CONTENT: &[u8] = b"1\n";

/// The driver features that a client can ask for by the presence of a file. One that is not
/// implemented has no file, as with an older kernel; a file that reads "0" would be taken for a yes by
/// clients that only look whether it exists.
const FEATURES: [&str; 3] = ["extended_error", "freeze_notification", "oneway_spam_detection"];

/// Names a device; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceId(u64);

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Root,
    Control,
    Features,
    Feature,
    Device(DeviceId),
}

#[derive(Debug)]
struct Device {
    name: String,
    context: ContextId,
    owner: Owner,
    /// It has a name; without one it lives on for those who have it open.
    linked: bool,
    /// Live nodes that stand for it.
    nodes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    mode: u32,
    uid: u32,
    gid: u32,
}

#[derive(Debug)]
struct DeviceNode {
    device: DeviceId,
    lookups: u64,
    open: bool,
}

/// A directory entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) ino: u64,
    /// READDIR goes on behind this entry from here.
    pub(crate) next: u64,
    pub(crate) directory: bool,
    pub(crate) name: &'a str,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    devices: BTreeMap<DeviceId, Device>,
    nodes: HashMap<u64, DeviceNode>,
    next_device: u64,
    next_node: u64,
    control: Owner,
    /// Seconds since the epoch, of all entries.
    created: u64,
}

impl Tree {
    /// A tree without devices; `created` (seconds since the epoch) is what `stat(2)` shows.
    pub(crate) fn new(created: u64) -> Self {
        Self {
            devices: BTreeMap::new(),
            nodes: HashMap::new(),
            next_device: FIRST_DEVICE_OFFSET,
            next_node: FIRST_DEVICE_NODE,
            control: Owner { mode: 0o600, uid: 0, gid: 0 },
            created,
        }
    }

    /// May a device have this name? Errno (positive) if not: `EEXIST`, `EINVAL`, `ENAMETOOLONG`,
    /// `ENOSPC`.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), i32> {
        if name.len() > BINDERFS_MAX_NAME {
            return Err(libc::ENAMETOOLONG);
        }
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(libc::EINVAL);
        }
        let fixed = name == CONTROL_NAME || name == FEATURES_NAME;
        if fixed || self.by_name(name).is_some() {
            return Err(libc::EEXIST);
        }
        if self.devices.len() >= MAX_DEVICES {
            return Err(libc::ENOSPC);
        }
        Ok(())
    }

    /// Adds a device whose name was checked.
    pub(crate) fn add(&mut self, name: &str, context: ContextId, mode: u32) -> DeviceId {
        let id = DeviceId(self.next_device);
        self.next_device += 1;
        let owner = Owner { mode, uid: 0, gid: 0 };
        let device = Device { name: name.to_owned(), context, owner, linked: true, nodes: 0 };
        self.devices.insert(id, device);
        id
    }

    fn by_name(&self, name: &str) -> Option<DeviceId> {
        let mut linked = self.devices.iter().filter(|(_, device)| device.linked);
        linked.find(|(_, device)| device.name == name).map(|(&id, _)| id)
    }

    /// What a node stands for.
    pub(crate) fn place(&self, node: u64) -> Option<Place> {
        match node {
            ROOT_ID => Some(Place::Root),
            CONTROL_ID => Some(Place::Control),
            FEATURES_ID => Some(Place::Features),
            FIRST_FEATURE_ID..FIRST_DEVICE_NODE => {
                let index = (node - FIRST_FEATURE_ID) as usize;
                (index < FEATURES.len()).then_some(Place::Feature)
            }
            _ => self.nodes.get(&node).map(|node| Place::Device(node.device)),
        }
    }

    /// The device's context.
    pub(crate) fn context(&self, device: DeviceId) -> Option<ContextId> {
        self.devices.get(&device).map(|device| device.context)
    }

    /// The device's name.
    pub(crate) fn name(&self, device: DeviceId) -> &str {
        self.devices.get(&device).map_or("", |device| &device.name)
    }

    /// Devices that have a name.
    pub(crate) fn device_count(&self) -> usize {
        self.devices.values().filter(|device| device.linked).count()
    }

    /// Resolves a name; a device gets a fresh node. Errno on failure.
    pub(crate) fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        let name = std::str::from_utf8(name).map_err(|_| libc::ENOENT)?;
        match (self.place(parent), name) {
            (Some(Place::Root), CONTROL_NAME) => Ok(CONTROL_ID),
            (Some(Place::Root), FEATURES_NAME) => Ok(FEATURES_ID),
            (Some(Place::Root), name) => {
                let device = self.by_name(name).ok_or(libc::ENOENT)?;
                let node = self.next_node;
                self.next_node += 1;
                self.nodes.insert(node, DeviceNode { device, lookups: 1, open: false });
                self.devices.entry(device).and_modify(|device| device.nodes += 1);
                Ok(node)
            }
            (Some(Place::Features), name) => {
                let index = FEATURES.iter().position(|&feature| feature == name);
                index.map(|index| FIRST_FEATURE_ID + index as u64).ok_or(libc::ENOENT)
            }
            (Some(_), _) => Err(libc::ENOTDIR),
            (None, _) => Err(libc::ENOENT),
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

    /// Takes a device's name away. Errno on failure: `EPERM` for all that is not a device.
    pub(crate) fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<ContextId, i32> {
        let name = std::str::from_utf8(name).map_err(|_| libc::ENOENT)?;
        if self.place(parent) != Some(Place::Root) || name == CONTROL_NAME || name == FEATURES_NAME
        {
            return Err(libc::EPERM);
        }
        let id = self.by_name(name).ok_or(libc::ENOENT)?;
        let device = self.devices.get_mut(&id).ok_or(libc::ENOENT)?;
        device.linked = false;
        let context = device.context;
        self.drop_unused(id);
        Ok(context)
    }

    /// Claims a device's node for one open. `EBUSY`: it is open already, through a bind mount of the file
    /// itself or `/proc/<pid>/fd`; two opens of one inode would share one mapping.
    pub(crate) fn claim(&mut self, node: u64) -> Result<(), i32> {
        let entry = self.nodes.get_mut(&node).ok_or(libc::ENOENT)?;
        if std::mem::replace(&mut entry.open, true) { Err(libc::EBUSY) } else { Ok(()) }
    }

    /// Undoes [`claim`](Self::claim).
    pub(crate) fn unclaim(&mut self, node: u64) {
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.open = false;
        }
    }

    /// What `stat(2)` shows.
    pub(crate) fn attr(&self, node: u64) -> Option<Attr> {
        const PRIVATE: Owner = Owner { mode: 0, uid: 0, gid: 0 };
        let (kind, nlink, size, owner) = match self.place(node)? {
            Place::Root => (libc::S_IFDIR, 3, 0, Owner { mode: 0o755, ..PRIVATE }),
            Place::Features => (libc::S_IFDIR, 2, 0, Owner { mode: 0o755, ..PRIVATE }),
            Place::Feature => {
                let size = FEATURE_CONTENT.len() as u64;
                (libc::S_IFREG, 1, size, Owner { mode: 0o444, ..PRIVATE })
            }
            Place::Control => (libc::S_IFREG, 1, 0, self.control),
            Place::Device(id) => {
                let device = self.devices.get(&id)?;
                (libc::S_IFREG, u32::from(device.linked), DEVICE_SIZE, device.owner)
            }
        };
        Some(Attr {
            ino: node,
            size,
            atime: self.created,
            mtime: self.created,
            ctime: self.created,
            mode: kind | owner.mode,
            nlink,
            uid: owner.uid,
            gid: owner.gid,
            blksize: 4096,
            ..Attr::default()
        })
    }

    /// `chmod` and `chown` of devices and of `binder-control`; times are accepted and not kept. The kernel
    /// has checked the caller's rights. Errno: `EINVAL` for a new size, `EPERM` for what is fixed.
    pub(crate) fn setattr(&mut self, node: u64, change: &SetattrIn) -> Result<(), i32> {
        if change.valid & FATTR_SIZE != 0 {
            return Err(libc::EINVAL);
        }
        let owner = match self.place(node).ok_or(libc::ENOENT)? {
            Place::Control => &mut self.control,
            Place::Device(id) => &mut self.devices.get_mut(&id).ok_or(libc::ENOENT)?.owner,
            Place::Root | Place::Features | Place::Feature => return Err(libc::EPERM),
        };
        if change.valid & FATTR_MODE != 0 {
            owner.mode = change.mode & 0o7777;
        }
        if change.valid & FATTR_UID != 0 {
            owner.uid = change.uid;
        }
        if change.valid & FATTR_GID != 0 {
            owner.gid = change.gid;
        }
        Ok(())
    }

    /// Entries of a directory from `offset` on; empty for what is none. Offsets stay valid while
    /// devices come and go.
    pub(crate) fn entries(&self, node: u64, offset: u64) -> Vec<Entry<'_>> {
        let mut all = vec![
            Entry { ino: node, next: 1, directory: true, name: "." },
            Entry { ino: ROOT_ID, next: 2, directory: true, name: ".." },
        ];
        match self.place(node) {
            Some(Place::Root) => {
                all.push(Entry { ino: CONTROL_ID, next: 3, directory: false, name: CONTROL_NAME });
                all.push(Entry { ino: FEATURES_ID, next: 4, directory: true, name: FEATURES_NAME });
                let linked = self.devices.iter().filter(|(_, device)| device.linked);
                all.extend(linked.map(|(id, device)| Entry {
                    // No node yet: every LOOKUP makes its own.
                    ino: u64::MAX - id.0,
                    next: id.0 + 1,
                    directory: false,
                    name: &device.name,
                }));
            }
            Some(Place::Features) => {
                all.extend(FEATURES.iter().zip(0..).map(|(&name, index)| Entry {
                    ino: FIRST_FEATURE_ID + index,
                    next: 3 + index,
                    directory: false,
                    name,
                }));
            }
            _ => all.clear(),
        }
        all.retain(|entry| entry.next > offset);
        all
    }
}

/// What reading a fixed file gives. Errno on failure: `EINVAL` for what is no feature.
pub(crate) fn read_fixed(place: Place, offset: u64, size: u32) -> Result<&'static [u8], i32> {
    match place {
        Place::Feature => {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(FEATURE_CONTENT.len());
            let end = FEATURE_CONTENT.len().min(start.saturating_add(size as usize));
            Ok(&FEATURE_CONTENT[start..end])
        }
        _ => Err(libc::EINVAL),
    }
}

/// Whether a node is a feature file, which is fixed for the life of the tree.
pub(crate) fn is_feature(node: u64) -> bool {
    (FIRST_FEATURE_ID..FIRST_FEATURE_ID + FEATURES.len() as u64).contains(&node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use binder_driver::Driver;

    fn tree_with(names: &[&str]) -> Tree {
        let mut driver = Driver::new();
        let mut tree = Tree::new(0);
        for name in names {
            let context = driver.add_context(name);
            tree.add(name, context, 0o666);
        }
        tree
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
            ("", Err(libc::EINVAL)),
            (".", Err(libc::EINVAL)),
            ("..", Err(libc::EINVAL)),
            ("a/b", Err(libc::EINVAL)),
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
            tree.entries(ROOT_ID, offset).iter().map(|entry| entry.name.to_owned()).collect()
        };
        let all = [".", "..", "binder-control", "features", "binder", "hwbinder", "vndbinder"];
        assert_eq!(names(&tree, 0), all);
        let after_binder = tree.entries(ROOT_ID, 0)[4].next;
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
        assert_eq!(tree.setattr(FEATURES_ID, &chmod), Err(libc::EPERM));
    }

    #[test]
    fn a_feature_file_reads_one_and_a_newline() {
        let mut tree = tree_with(&[]);
        let node = tree.lookup(FEATURES_ID, b"extended_error").unwrap();
        assert!(is_feature(node));
        let place = tree.place(node).unwrap();
        assert_eq!(read_fixed(place, 0, 4096), Ok(&b"1\n"[..]));
        assert_eq!(read_fixed(place, 1, 4096), Ok(&b"\n"[..]));
        assert_eq!(read_fixed(place, 2, 4096), Ok(&b""[..]));
        assert_eq!(read_fixed(place, u64::MAX, 1), Ok(&b""[..]));
        assert_eq!(read_fixed(Place::Control, 0, 1), Err(libc::EINVAL));
        assert_eq!(tree.lookup(FEATURES_ID, b"no_such_feature"), Err(libc::ENOENT));
    }
}
