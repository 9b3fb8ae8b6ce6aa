//! `headroom binder service-manager` with clients that it refuses, that die or do not answer.

use std::fs;
use std::path::Path;
use std::process::{self, Child, Stdio};

use binder_client::{Client, Options, Parcel, Session};
use binder_uapi::{BINDER_TYPE_BINDER, BinderTransactionData, Command, FlatBinderObject, Return};
use e2e::{Bus, wait};
use service_manager::hidl::put_hidl_string;
use service_manager::parcel::{Reader, put_c_string, put_int, put_string};
use zerocopy::IntoBytes;

crate::both_mappings! {
    a_name_belongs_to_its_service_until_that_dies
    rules_give_a_name_to_users
    a_hidl_service_that_does_not_answer_delays_nobody
}

/// Codes of Android 16: `checkService`, `addService`.
const CHECK: u32 = 3;
const ADD: u32 = 5;
/// Of HIDL: `get`, `add`.
const HIDL_GET: u32 = 1;
const HIDL_ADD: u32 = 2;

/// The manager, killed on drop.
struct Manager(Child);

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(bus: &Bus, rules: Option<&Path>) -> Manager {
    let program = e2e::bus::daemon_program().unwrap().with_file_name("headroom");
    let mut command = process::Command::new(program);
    command.args(["binder", "service-manager", "--bus"]).arg(bus.mount());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    if let Some(rules) = rules {
        command.arg("--rules").arg(rules);
    }
    let manager = Manager(command.spawn().unwrap());
    // The devices of a test bus are `binder`, `hwbinder` and `vndbinder`; `binder` is last.
    let is_served = || {
        let devices = bus.ls().ok()?;
        devices.iter().any(|it| it.name == "binder" && it.manager.is_some()).then_some(())
    };
    wait::until(wait::PATIENCE, is_served).expect("the manager does not serve");
    manager
}

fn request(name: &str) -> Parcel {
    let mut parcel = Parcel::new();
    for word in [0, -1, i32::from_be_bytes(*b"SYST")] {
        put_int(&mut parcel, word);
    }
    put_string(&mut parcel, "android.os.IServiceManager");
    put_string(&mut parcel, name);
    parcel
}

/// Appends an object of this process.
fn put_own(parcel: &mut Parcel, ptr: u64) {
    parcel.offsets.push(parcel.data.len() as u64);
    let object =
        FlatBinderObject { ty: BINDER_TYPE_BINDER, binder: ptr, ..FlatBinderObject::default() };
    parcel.data.extend_from_slice(object.as_bytes());
}

/// The exception of `addService`; 0: none.
fn add(session: &mut Session<'_>, name: &str) -> i32 {
    let mut parcel = request(name);
    put_own(&mut parcel, 0x5e);
    // Stability, isolated processes, priority of dumps.
    for word in [12, 0, 8] {
        put_int(&mut parcel, word);
    }
    let reply = session.call(0, ADD, parcel.payload()).unwrap();
    let exception = Reader::new(reply.data().unwrap(), &[]).int().unwrap();
    session.free(reply);
    exception
}

fn is_found(session: &mut Session<'_>, name: &str) -> bool {
    let reply = session.call(0, CHECK, request(name).payload()).unwrap();
    let found = !reply.offsets().unwrap().is_empty();
    session.free(reply);
    session.flush().unwrap();
    found
}

fn open(bus: &Bus, device: &str) -> Client {
    Client::open(bus.device(device), &Options::default()).unwrap()
}

fn a_name_belongs_to_its_service_until_that_dies(bus: &Bus) {
    let _manager = start(bus, None);
    let client = open(bus, "binder");
    let mut asking = Session::new(&client);
    assert!(!is_found(&mut asking, "a"));
    let service = open(bus, "binder");
    let mut registering = Session::new(&service);
    assert_eq!(add(&mut registering, "a"), 0);
    assert_eq!(add(&mut registering, "b"), 0);
    assert_eq!(add(&mut registering, "no name"), -3);
    assert!(is_found(&mut asking, "a") && is_found(&mut asking, "b"));
    drop(registering);
    drop(service);
    let gone = wait::until(wait::PATIENCE, || (!is_found(&mut asking, "a")).then_some(()));
    assert!(gone.is_some() && !is_found(&mut asking, "b"));
}

fn rules_give_a_name_to_users(bus: &Bus) {
    let rules = bus.mount().with_file_name("rules");
    fs::write(&rules, "# of root\nmine.*  root\nothers  12345\n").unwrap();
    let _manager = start(bus, Some(&rules));
    let client = open(bus, "binder");
    let mut session = Session::new(&client);
    let results = ["mine.a", "others", "unnamed"].map(|name| add(&mut session, name));
    assert_eq!(results, [0, -1, -1], "this test is root");
    assert!(!is_found(&mut session, "others"));
}

/// A request to the manager of HIDL with these strings.
fn hidl_request(texts: &[&str]) -> Parcel {
    let mut parcel = Parcel::new();
    put_c_string(&mut parcel, "android.hidl.manager@1.0::IServiceManager");
    for text in texts {
        put_hidl_string(&mut parcel, text);
    }
    parcel
}

fn hidl_add() -> Parcel {
    let mut parcel = hidl_request(&["x"]);
    put_own(&mut parcel, 0x5e);
    parcel
}

fn status(session: &mut Session<'_>, code: u32, parcel: &Parcel) -> Option<i32> {
    let reply = session.call(0, code, parcel.payload()).unwrap();
    let status = reply.status().unwrap();
    session.free(reply);
    session.flush().unwrap();
    status
}

fn a_hidl_service_that_does_not_answer_delays_nobody(bus: &Bus) {
    let _manager = start(bus, None);
    let hung = open(bus, "hwbinder");
    let mut hanging = Session::new(&hung);
    // It is asked for its interfaces, and never answers.
    let parcel = hidl_add();
    let payload = parcel.payload();
    let data = BinderTransactionData {
        code: HIDL_ADD,
        data_size: payload.data.len() as u64,
        offsets_size: size_of_val(payload.offsets) as u64,
        buffer: payload.data.as_ptr() as u64,
        offsets: payload.offsets.as_ptr() as u64,
        ..BinderTransactionData::default()
    };
    hanging.push(Command::Transaction { data, buffers_size: payload.buffers_size });
    hanging.write().unwrap();
    // Asked before the other registers, which would be the one that is asked.
    while !matches!(hanging.receive().unwrap(), Return::Transaction(_)) {}
    let client = open(bus, "hwbinder");
    let mut session = Session::new(&client);
    let waits =
        || (status(&mut session, HIDL_ADD, &hidl_add()) == Some(-libc::EAGAIN)).then_some(());
    assert!(wait::until(wait::PATIENCE, waits).is_some(), "one service of a user at a time");
    let get = hidl_request(&["headroom.test@1.0::ITest", "x"]);
    for _ in 0..100 {
        assert_eq!(status(&mut session, HIDL_GET, &get), None);
    }
    drop(hanging);
    drop(hung);
    // Its end is an answer, too: the next one is asked, and refuses to tell.
    let asked =
        || (status(&mut session, HIDL_ADD, &hidl_add()) == Some(-libc::EINVAL)).then_some(());
    assert!(wait::until(wait::PATIENCE, asked).is_some());
}
