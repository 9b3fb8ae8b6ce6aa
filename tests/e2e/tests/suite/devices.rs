//! The file system around the devices.

use std::fs;
use std::path::Path;

use binder_client::{Client, Errno, Options, Session, binderfs};
use e2e::{Bus, Peer};

use crate::support::{expect_echo, manager, open, peer};

crate::both_mappings! {
    a_device_is_added_used_and_removed
    a_device_name_that_is_taken_or_bad_is_refused
    every_entry_accepts_a_change_of_mode
    the_control_file_cannot_be_removed
    unknown_ioctls_are_refused
    nodes_and_references_can_be_queried
}

fn a_device_is_added_used_and_removed(bus: &Bus) {
    let added = binderfs::add_device(&bus.device("binder-control"), b"anotherbinder").unwrap();
    assert_eq!(&added.name[..13], b"anotherbinder");
    let path = bus.device("anotherbinder");
    let program = Path::new(env!("CARGO_BIN_EXE_peer"));
    let manager = Peer::start(program, &path, &["manager", "1"]);
    manager.expect("ready");
    assert!(bus.ls().unwrap().iter().any(|device| device.name == "anotherbinder"));
    let client = Client::open(&path, &Options::default()).unwrap();
    let mut session = Session::new(&client);
    expect_echo(&mut session, 0, b"over a device of our own");
    fs::remove_file(&path).unwrap();
    expect_echo(&mut session, 0, b"who has it open keeps it");
    let gone = Client::open(bus.device("anotherbinder"), &Options::default());
    assert_eq!(gone.map(drop).unwrap_err().errno(), Some(Errno::NOENT));
}

fn a_device_name_that_is_taken_or_bad_is_refused(bus: &Bus) {
    let control = bus.device("binder-control");
    let refused = |name: &[u8]| binderfs::add_device(&control, name).unwrap_err().errno();
    assert_eq!(refused(b"binder"), Some(Errno::EXIST));
    assert_eq!(refused(b"binder-control"), Some(Errno::EXIST));
    for bad in [&b""[..], b".", b"..", b"a/b"] {
        assert_eq!(refused(bad), Some(Errno::ACCESS), "{bad:?}");
    }
    let added = binderfs::add_device(&control, &[b'n'; 256]).unwrap();
    let name = std::str::from_utf8(&added.name[..255]).unwrap();
    assert_eq!((name, added.name[255]), ("n".repeat(255).as_str(), 0));
    fs::remove_file(bus.device(name)).unwrap();
    manager(bus);
}

fn every_entry_accepts_a_change_of_mode(bus: &Bus) {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let folder = bus.device("");
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let before = mode(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let is_fixed = path.is_dir();
        assert_eq!(mode(&path), if is_fixed { before } else { 0o640 }, "{}", path.display());
        fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
    }
}

fn the_control_file_cannot_be_removed(bus: &Bus) {
    let error = fs::remove_file(bus.device("binder-control")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM));
}

fn unknown_ioctls_are_refused(bus: &Bus) {
    let client = open(bus);
    // Of the right type with unknown numbers, without an argument and with one.
    for request in [0x6263u32, 0x4004_62ff, 0xc008_6244] {
        let mut argument = [0u64; 4];
        // SAFETY: the largest size encoded above is 8 bytes.
        let result = unsafe { client.ioctl_raw(request, argument.as_mut_ptr() as usize) };
        assert_eq!(result, Err(Errno::INVAL), "{request:#x}");
    }
    for request in
        [binder_uapi::ioctl::BINDER_SET_IDLE_TIMEOUT, binder_uapi::ioctl::BINDER_SET_IDLE_PRIORITY]
    {
        let mut argument = 0u64;
        // SAFETY: both read at most 8 bytes.
        let result = unsafe { client.ioctl_raw(request, &raw mut argument as usize) };
        assert_eq!(result, Err(Errno::INVAL), "{request:#x}");
    }
    assert_eq!(client.version(), Ok(8), "the open still works");
}

fn nodes_and_references_can_be_queried(bus: &Bus) {
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "service"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    binder_client::registry::publish(&mut session, "here", 0x7000, 0x7001).unwrap();
    let node = client.node_debug_info(0).unwrap();
    assert_eq!((node.ptr, node.cookie, node.has_strong_ref), (0x7000, 0x7001, 1));
    assert_eq!(client.node_debug_info(0x7000).unwrap().ptr, 0, "there is no other");
    let error = client.node_info_for_ref(0).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::PERM), "only the context manager may request it");
}
