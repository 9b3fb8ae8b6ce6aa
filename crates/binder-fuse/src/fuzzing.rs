//! The internals of this crate that the fuzz targets call.

use binder_driver::Driver;
use binder_uapi::BinderfsDevice;
use owners::Uid;
use zerocopy::FromBytes;

use crate::fixed::Logs;
use crate::tree::{Options, Tree};

/// Adds, looks up, renames and unlinks devices as the input directs: a byte for the operation, then
/// names up to their NULs.
#[doc(hidden)]
pub fn names(input: &[u8]) {
    let mut driver = Driver::new();
    let (uid, logs) = (Uid::ROOT, Logs::Present);
    let options = Options {
        uid,
        gid: 0,
        device_uid: uid,
        device_gid: 0,
        max_devices: Some(20),
        logs,
        created: 0,
    };
    let mut tree = Tree::new(options);
    let mut steps = input.split(|byte| *byte == 0);
    let mut nodes = Vec::new();
    while let Some(step) = steps.next() {
        let (what, name) = step.split_first().unwrap_or((&0, &[]));
        let parent = u64::from(what >> 4) + 1;
        match what % 6 {
            0 => {
                // In the layout of an ioctl of binder-control.
                let mut bytes = [0; size_of::<BinderfsDevice>()];
                let len = name.len().min(bytes.len());
                bytes[..len].copy_from_slice(&name[..len]);
                let Ok(mut device) = BinderfsDevice::read_from_bytes(&bytes) else { continue };
                if let Ok(name) = crate::server::name_of(&mut device)
                    && tree.check_name(name).is_ok()
                {
                    tree.add(name, driver.add_context(name), 0o600);
                }
            }
            1 => nodes.extend(tree.lookup(parent, name)),
            2 => {
                let other = steps.next().unwrap_or_default();
                let _ = tree.rename((parent, name), (1, other), u32::from(what >> 6));
            }
            3 => drop(tree.unlink(parent, name)),
            4 => {
                if let Some(node) = nodes.pop() {
                    tree.forget(node, 1);
                }
            }
            _ => {
                let offset = name.first().copied().unwrap_or_default();
                let entries = tree.entries(parent, offset.into(), &[1, 2]);
                assert!(entries.iter().all(|entry| entry.ino != 0 && entry.next > offset.into()));
            }
        }
        for node in nodes.iter().copied().chain(1..20) {
            let _ = (tree.attr(node), tree.place(node));
        }
        assert!(tree.device_count() <= 20);
    }
}
