//! `headroom binder service-manager` with clients that it refuses, that die or do not answer.

use std::fs;
use std::path::Path;
use std::process::{self, Child, Stdio};

use binder_client::{Answer, Client, Options, Parcel, Parent, Received, Session};
use binder_uapi::{BINDER_TYPE_BINDER, BinderTransactionData, Command, FlatBinderObject, Return};
use e2e::{Bus, wait};
use service_manager::hidl::put_hidl_string;
use service_manager::parcel::{Reader, put_c_string, put_int, put_string};
use zerocopy::IntoBytes;

crate::both_mappings! {
    a_name_belongs_to_its_service_until_that_dies
    rules_give_a_name_to_users
    a_lazy_service_is_told_of_its_clients_and_withdrawn_without_any
    a_hidl_service_that_names_its_interfaces_is_found
    a_hidl_service_that_does_not_answer_delays_nobody
}

/// Codes of Android 16.
const CHECK: u32 = 3;
const ADD: u32 = 5;
const IS_DECLARED: u32 = 9;
const REGISTER_CLIENT_CALLBACK: u32 = 14;
const TRY_UNREGISTER: u32 = 15;
/// Of HIDL.
const HIDL_GET: u32 = 1;
const HIDL_ADD: u32 = 2;
const HIDL_ADD_WITH_CHAIN: u32 = 12;
/// Objects of services, by their addresses.
const SERVICE: u64 = 0x5e;
const CALLBACK: u64 = 0xcb;

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
    put_own(&mut parcel, SERVICE);
    // Stability, isolated processes, priority of dumps.
    for word in [12, 0, 8] {
        put_int(&mut parcel, word);
    }
    exception(session, ADD, &parcel)
}

/// The exception that a method returns; 0: none.
fn exception(session: &mut Session<'_>, code: u32, parcel: &Parcel) -> i32 {
    let reply = session.call(0, code, parcel.payload()).unwrap();
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
    for (name, is_declared) in [("others", 1), ("mine.a", 0)] {
        let reply = session.call(0, IS_DECLARED, request(name).payload()).unwrap();
        let data = [0, is_declared].map(i32::to_ne_bytes).concat();
        assert_eq!(reply.data().unwrap(), data, "{name}");
        session.free(reply);
    }
}

/// A request about a service with this object.
fn about(name: &str, put: impl FnOnce(&mut Parcel)) -> Parcel {
    let mut parcel = request(name);
    put(&mut parcel);
    put_int(&mut parcel, 12);
    parcel
}

/// Whether the service has clients, as its callback is told next. `during` runs in the callback.
fn told(session: &mut Session<'_>, mut during: impl FnMut(&mut Session<'_>)) -> bool {
    let mut has_clients = None;
    while has_clients.is_none() {
        let mut callback = |session: &mut Session<'_>, incoming: &Received<'_>| {
            assert_eq!((incoming.transaction().target, incoming.code()), (CALLBACK, 1));
            let (_, last) = incoming.data().unwrap().split_last_chunk::<4>().unwrap();
            has_clients = Some(i32::from_ne_bytes(*last) == 1);
            during(session);
            Answer::Reply(Parcel::new())
        };
        session.serve_one(&mut callback).unwrap();
    }
    has_clients.unwrap()
}

fn a_lazy_service_is_told_of_its_clients_and_withdrawn_without_any(bus: &Bus) {
    let _manager = start(bus, None);
    let server = open(bus, "binder");
    let mut serving = Session::new(&server);
    assert_eq!(add(&mut serving, "lazy"), 0);
    let mut register = about("lazy", |parcel| put_own(parcel, SERVICE));
    put_own(&mut register, CALLBACK);
    put_int(&mut register, 12);
    assert_eq!(exception(&mut serving, REGISTER_CLIENT_CALLBACK, &register), 0);
    serving.enter_looper().unwrap();
    assert!(told(&mut serving, |_| {}), "somebody may have waited for it");
    assert!(!told(&mut serving, |_| {}), "nobody has");

    let client = open(bus, "binder");
    let mut using = Session::new(&client);
    let reply = using.call(0, CHECK, request("lazy").payload()).unwrap();
    let handle = reply.objects().unwrap()[0].handle();
    using.acquire(handle);
    using.free(reply);
    using.flush().unwrap();
    assert!(told(&mut serving, |_| {}));
    let withdraw = about("lazy", |parcel| put_own(parcel, SERVICE));
    assert_eq!(exception(&mut serving, TRY_UNREGISTER, &withdraw), -5, "it has a client");

    using.release(handle);
    using.flush().unwrap();
    let mut withdrawn = None;
    let has_clients = told(&mut serving, |session| {
        withdrawn = Some(exception(session, TRY_UNREGISTER, &withdraw));
    });
    assert_eq!((has_clients, withdrawn), (false, Some(0)));
    assert!(!is_found(&mut using, "lazy"));
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

/// A vector of one string: its header, the string's, and the string, each in a buffer of its own.
fn put_vector_of_one(parcel: &mut Parcel, text: &str) {
    let header = |count: usize| [0, count as u64].map(u64::to_ne_bytes).concat();
    let vector = parcel.buffer(&header(1), None);
    let strings = parcel.buffer(&header(text.len()), Some(Parent { index: vector, offset: 0 }));
    let bytes: Vec<u8> = text.bytes().chain([0]).collect();
    parcel.buffer(&bytes, Some(Parent { index: strings, offset: 0 }));
}

fn a_hidl_service_that_names_its_interfaces_is_found(bus: &Bus) {
    let _manager = start(bus, None);
    let server = open(bus, "hwbinder");
    let mut serving = Session::new(&server);
    let mut parcel = hidl_request(&["x"]);
    put_own(&mut parcel, SERVICE);
    put_vector_of_one(&mut parcel, "headroom.test@1.0::ITest");
    // The server reads no call in between: it is not asked.
    let reply = serving.call(0, HIDL_ADD_WITH_CHAIN, parcel.payload()).unwrap();
    assert_eq!(reply.data().unwrap(), [0i32, 1].map(i32::to_ne_bytes).concat());
    serving.free(reply);
    let client = open(bus, "hwbinder");
    let mut asking = Session::new(&client);
    let get = hidl_request(&["headroom.test@1.0::ITest", "x"]);
    let reply = asking.call(0, HIDL_GET, get.payload()).unwrap();
    assert_eq!(reply.offsets().unwrap(), [4]);
    asking.free(reply);
}

fn hidl_add() -> Parcel {
    let mut parcel = hidl_request(&["x"]);
    put_own(&mut parcel, SERVICE);
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
