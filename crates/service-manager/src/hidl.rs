//! `android.hidl.manager@1.2::IServiceManager`: names of HIDL services.
//!
//! A name is an interface and an instance, `android.hardware.radio@1.0::IRadio/slot1`. A service is
//! registered by its instance, under each of its interfaces: it names them (`addWithChain`), or has
//! to be asked for them (`add`).

use binder_client::{Answer, Parcel, Parent};
use binder_uapi::{BINDER_BUFFER_FLAG_HAS_PARENT, BINDER_TYPE_PTR, BinderBufferObject};
use zerocopy::{FromBytes, IntoBytes};

use crate::clients::StrongCount;
use crate::names::{Caller, Clients, ClientsChange, Names, Object, Refusal};
use crate::parcel::{LONGEST, Malformed, Reader, put_c_string, put_int, put_object};
use crate::{OneWay, Outcome, Request};

/// The interface, and those that it extends: requests name that of their method.
const INTERFACES: [&str; 3] = [
    "android.hidl.manager@1.2::IServiceManager",
    "android.hidl.manager@1.1::IServiceManager",
    "android.hidl.manager@1.0::IServiceManager",
];
/// The interface of all objects, under which nothing is registered.
const BASE: &str = "android.hidl.base@1.0::IBase";
/// The interface of callbacks, and its method `onRegistration`.
const NOTIFICATION: (&str, u32) = ("android.hidl.manager@1.0::IServiceNotification", 1);
/// The interface of client callbacks, and its method `onClients`.
const CLIENT_CALLBACK: (&str, u32) = ("android.hidl.manager@1.2::IClientCallback", 1);

/// Codes of the interface.
const GET: u32 = 1;
const ADD: u32 = 2;
const GET_TRANSPORT: u32 = 3;
const LIST: u32 = 4;
const LIST_BY_INTERFACE: u32 = 5;
const REGISTER_FOR_NOTIFICATIONS: u32 = 6;
const REGISTER_PASSTHROUGH_CLIENT: u32 = 8;
const UNREGISTER_FOR_NOTIFICATIONS: u32 = 9;
const REGISTER_CLIENT_CALLBACK: u32 = 10;
const UNREGISTER_CLIENT_CALLBACK: u32 = 11;
const ADD_WITH_CHAIN: u32 = 12;
const LIST_MANIFEST_BY_INTERFACE: u32 = 13;
const TRY_UNREGISTER: u32 = 14;
/// Codes of all objects.
const PING: u32 = u32::from_be_bytes(*b"\x0fPNG");
const INTERFACE_CHAIN: u32 = u32::from_be_bytes(*b"\x0fCHN");
const INTERFACE_DESCRIPTOR: u32 = u32::from_be_bytes(*b"\x0fDSC");

/// The transports of `getTransport`.
const NO_TRANSPORT: i32 = 0;
const HWBINDER: i32 = 1;

/// Size of `hidl_string` and `hidl_vec` in a buffer, bytes: an address, a count, and an owner.
const HEADER_LEN: usize = 16;
/// Most interfaces of one service.
const MOST_INTERFACES: u32 = 64;

/// Memory of a received parcel's buffers: by address and length.
pub trait Buffers<'a> {
    /// `None`: not in the mapping.
    fn view(&self, address: u64, len: u64) -> Option<&'a [u8]>;
}

impl<'a, F: Fn(u64, u64) -> Option<&'a [u8]>> Buffers<'a> for F {
    fn view(&self, address: u64, len: u64) -> Option<&'a [u8]> {
        self(address, len)
    }
}

/// What a request needs.
#[derive(Clone, Debug)]
pub enum Step {
    /// Nothing more.
    Done(Outcome),
    /// A service registers an instance: it is to be asked for its interfaces, by [`chain_call`].
    AskChain {
        /// The instance.
        instance: String,
        /// The service.
        service: Object,
    },
}

/// Handles a request.
pub fn handle<'a>(
    names: &mut Names,
    request: Request<'a>,
    buffers: &dyn Buffers<'a>,
    strong: StrongCount<'_>,
) -> Step {
    let mut reader = Reader::new(request.data, request.offsets);
    let step = match reader.c_string() {
        Ok(BASE) => Ok(base(request.code).into()),
        Ok(interface) if INTERFACES.contains(&interface) => match request.code {
            GET..=UNREGISTER_FOR_NOTIFICATIONS => read(names, request, reader, buffers),
            _ => read_1_2(names, request, reader, buffers, strong),
        },
        _ => Err(Malformed),
    };
    step.unwrap_or_else(|Malformed| Answer::Status(-libc::EINVAL).into())
}

impl From<Answer> for Step {
    fn from(answer: Answer) -> Self {
        Self::Done(answer.into())
    }
}

/// The reply of a call without an error.
fn success() -> Parcel {
    let mut parcel = Parcel::new();
    put_int(&mut parcel, 0);
    parcel
}

/// The reply of a method that returns whether it succeeded.
fn success_of<T>(result: &Result<T, Refusal>) -> Answer {
    let mut parcel = success();
    put_int(&mut parcel, result.is_ok().into());
    Answer::Reply(parcel)
}

fn base(code: u32) -> Answer {
    let mut parcel = success();
    match code {
        PING => {}
        INTERFACE_CHAIN => put_strings(&mut parcel, &[&INTERFACES[..], &[BASE]].concat()),
        INTERFACE_DESCRIPTOR => put_hidl_string(&mut parcel, INTERFACES[0]),
        _ => return Answer::Status(-libc::EBADMSG),
    }
    Answer::Reply(parcel)
}

/// The methods of versions 1.0 and 1.1.
fn read<'a>(
    names: &mut Names,
    request: Request<'a>,
    mut reader: Reader<'a>,
    buffers: &dyn Buffers<'a>,
) -> Result<Step, Malformed> {
    let mut parcel = success();
    match request.code {
        GET => {
            let name = read_name(&mut reader, buffers)?;
            put_object(&mut parcel, names.hand_out(&name).map(|service| service.object));
        }
        ADD => {
            let instance = hidl_string(&mut reader, buffers)?;
            let service = read_object(&mut reader)?;
            return Ok(Step::AskChain { instance, service });
        }
        GET_TRANSPORT => {
            // A client waits for a service that has one.
            let name = read_name(&mut reader, buffers)?;
            let has_one = names.get(&name).is_some() || names.is_declared(&name);
            put_int(&mut parcel, if has_one { HWBINDER } else { NO_TRANSPORT });
        }
        LIST => {
            let all: Vec<&str> = names.list().map(|(name, _)| name).collect();
            put_strings(&mut parcel, &all);
        }
        LIST_BY_INTERFACE => {
            let interface = hidl_string(&mut reader, buffers)?;
            let split = names.list().filter_map(|(name, _)| name.split_once('/'));
            let instances: Vec<&str> =
                split.filter(|(of, _)| *of == interface).map(|(_, instance)| instance).collect();
            put_strings(&mut parcel, &instances);
        }
        REGISTER_FOR_NOTIFICATIONS => {
            let name = read_name(&mut reader, buffers)?;
            let callback = read_object(&mut reader)?;
            return Ok(Step::Done(watch(names, &name, callback, request.caller)));
        }
        UNREGISTER_FOR_NOTIFICATIONS => {
            let name = read_name(&mut reader, buffers)?;
            let callback = read_object(&mut reader)?;
            return Ok(success_of(&names.unwatch(&name, callback)).into());
        }
        // Debugging information of clients, which nobody reads here.
        REGISTER_PASSTHROUGH_CLIENT => {}
        _ => return Ok(Answer::Status(-libc::EBADMSG).into()),
    }
    Ok(Answer::Reply(parcel).into())
}

fn watch(names: &mut Names, name: &str, callback: Object, caller: Caller) -> Outcome {
    let watched = names.watch(name, callback, caller.uid);
    let known = names.list().map(|(known, _)| known);
    // Without an instance it waits for all of them.
    let is_meant = |known: &&str| match name.strip_suffix('/') {
        Some(interface) => known.split_once('/').is_some_and(|(of, _)| of == interface),
        None => **known == *name,
    };
    let calls = match watched {
        Ok(_) => known.filter(is_meant).map(|known| tell(callback, known, Since::Before)).collect(),
        Err(_) => Vec::new(),
    };
    Outcome { answer: success_of(&watched), calls }
}

/// The methods of version 1.2.
fn read_1_2<'a>(
    names: &mut Names,
    request: Request<'a>,
    mut reader: Reader<'a>,
    buffers: &dyn Buffers<'a>,
    strong: StrongCount<'_>,
) -> Result<Step, Malformed> {
    let caller = request.caller;
    let reader = &mut reader;
    let result = match request.code {
        REGISTER_CLIENT_CALLBACK => {
            let name = read_name(reader, buffers)?;
            let (service, callback) = (read_object(reader)?, read_object(reader)?);
            names.register_client_callback(&name, service, callback, caller)
        }
        UNREGISTER_CLIENT_CALLBACK => {
            let service = reader.nullable_object()?.map(|handle| Object { handle, stability: 0 });
            names.unregister_client_callback(service, read_object(reader)?, caller)
        }
        ADD_WITH_CHAIN => {
            let instance = hidl_string(reader, buffers)?;
            let service = read_object(reader)?;
            let chain = hidl_strings(reader, buffers)?;
            return Ok(Step::Done(add(names, &instance, service, &chain, caller)));
        }
        LIST_MANIFEST_BY_INTERFACE => {
            let mut parcel = success();
            let interface = hidl_string(reader, buffers)?;
            put_strings(&mut parcel, &names.declared_instances(&interface));
            return Ok(Answer::Reply(parcel).into());
        }
        TRY_UNREGISTER => {
            let name = read_name(reader, buffers)?;
            names.try_unregister(&name, read_object(reader)?, caller, strong)
        }
        _ => return Ok(Answer::Status(-libc::EBADMSG).into()),
    };
    Ok(success_of(&result).into())
}

fn read_object(reader: &mut Reader<'_>) -> Result<Object, Malformed> {
    Ok(Object { handle: reader.object()?, stability: 0 })
}

/// The call that asks a service for its interfaces: its code and its data.
pub fn chain_call() -> (u32, Parcel) {
    let mut parcel = Parcel::new();
    put_c_string(&mut parcel, BASE);
    (INTERFACE_CHAIN, parcel)
}

/// The interfaces in the reply to [`chain_call`].
pub fn read_chain<'a>(
    data: &'a [u8],
    offsets: &'a [u64],
    buffers: &dyn Buffers<'a>,
) -> Result<Vec<String>, Malformed> {
    let mut reader = Reader::new(data, offsets);
    if reader.int()? != 0 {
        return Err(Malformed);
    }
    hidl_strings(&mut reader, buffers)
}

/// A vector of strings.
fn hidl_strings<'a>(
    reader: &mut Reader<'a>,
    buffers: &dyn Buffers<'a>,
) -> Result<Vec<String>, Malformed> {
    let vector = reader.buffer()?;
    if vector.length != HEADER_LEN as u64 {
        return Err(Malformed);
    }
    let header = buffers.view(vector.buffer, vector.length).ok_or(Malformed)?;
    let count = header.get(8..12).and_then(|count| count.try_into().ok()).ok_or(Malformed)?;
    let count = u32::from_ne_bytes(count);
    if count > MOST_INTERFACES {
        return Err(Malformed);
    }
    if count > 0 {
        // The strings' headers; their contents follow.
        reader.buffer()?;
    }
    (0..count).map(|_| contents(reader, buffers)).collect()
}

/// Registers an instance of a service with these interfaces, or with none of them.
pub fn add(
    names: &mut Names,
    instance: &str,
    service: Object,
    chain: &[String],
    caller: Caller,
) -> Outcome {
    let interfaces = || chain.iter().filter(|interface| *interface != BASE);
    let all: Vec<String> = interfaces().map(|of| format!("{of}/{instance}")).collect();
    let added = names.add_all(&all, service, caller);
    let is_added = added.is_ok() && !all.is_empty();
    let mut calls = Vec::new();
    for ((name, interface), told) in all.iter().zip(interfaces()).zip(added.unwrap_or_default()) {
        let of_all = names.waiting(&format!("{interface}/"));
        calls.extend(told.into_iter().chain(of_all).map(|it| tell(it, name, Since::Now)));
    }
    let mut parcel = Parcel::new();
    put_int(&mut parcel, 0);
    put_int(&mut parcel, is_added.into());
    Outcome { answer: Answer::Reply(parcel), calls }
}

/// Since when a service is registered, as `onRegistration` reports it.
#[derive(Clone, Copy, Debug)]
enum Since {
    Now = 0,
    /// Before the callback was.
    Before = 1,
}

fn tell(callback: Object, name: &str, since: Since) -> OneWay {
    let (interface, code) = NOTIFICATION;
    let (of, instance) = name.split_once('/').unwrap_or((name, ""));
    let mut parcel = Parcel::new();
    put_c_string(&mut parcel, interface);
    put_hidl_string(&mut parcel, of);
    put_hidl_string(&mut parcel, instance);
    put_int(&mut parcel, since as i32);
    OneWay { handle: callback.handle, code, parcel }
}

/// The calls that tell a service of its clients.
pub fn tell_clients(change: &ClientsChange) -> Vec<OneWay> {
    let call = |callback: &Object| {
        let (interface, code) = CLIENT_CALLBACK;
        let mut parcel = Parcel::new();
        put_c_string(&mut parcel, interface);
        put_object(&mut parcel, Some(change.service));
        put_int(&mut parcel, (change.clients == Clients::Some).into());
        OneWay { handle: callback.handle, code, parcel }
    };
    change.callbacks.iter().map(call).collect()
}

/// An interface and an instance.
fn read_name<'a>(reader: &mut Reader<'a>, buffers: &dyn Buffers<'a>) -> Result<String, Malformed> {
    let interface = hidl_string(reader, buffers)?;
    let instance = hidl_string(reader, buffers)?;
    Ok(format!("{interface}/{instance}"))
}

fn hidl_string<'a>(
    reader: &mut Reader<'a>,
    buffers: &dyn Buffers<'a>,
) -> Result<String, Malformed> {
    if reader.buffer()?.length != HEADER_LEN as u64 {
        return Err(Malformed);
    }
    contents(reader, buffers)
}

/// A string's bytes, with a NUL at their end.
fn contents<'a>(reader: &mut Reader<'a>, buffers: &dyn Buffers<'a>) -> Result<String, Malformed> {
    let object = reader.buffer()?;
    // Names are kept: without a bound a user's would fill the manager's memory.
    if object.flags & BINDER_BUFFER_FLAG_HAS_PARENT == 0 || object.length > LONGEST as u64 {
        return Err(Malformed);
    }
    let bytes = buffers.view(object.buffer, object.length).ok_or(Malformed)?;
    let (_, bytes) = bytes.split_last().ok_or(Malformed)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed)
}

impl Reader<'_> {
    /// A buffer that the driver has copied.
    fn buffer(&mut self) -> Result<BinderBufferObject, Malformed> {
        let bytes = self.any_object(size_of::<BinderBufferObject>())?;
        let object = BinderBufferObject::read_from_bytes(bytes).map_err(|_| Malformed)?;
        if object.ty == BINDER_TYPE_PTR { Ok(object) } else { Err(Malformed) }
    }
}

/// Header of a string of this length, or of a vector of as many elements.
fn header(count: usize) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[8..12].copy_from_slice((count as u32).as_bytes());
    bytes
}

fn put_contents(parcel: &mut Parcel, text: &str, parent: Parent) {
    let bytes: Vec<u8> = text.bytes().chain([0]).collect();
    parcel.buffer(&bytes, Some(parent));
}

/// Appends a string.
pub fn put_hidl_string(parcel: &mut Parcel, text: &str) {
    let index = parcel.buffer(&header(text.len()), None);
    put_contents(parcel, text, Parent { index, offset: 0 });
}

fn put_strings(parcel: &mut Parcel, strings: &[&str]) {
    let index = parcel.buffer(&header(strings.len()), None);
    if strings.is_empty() {
        return;
    }
    let headers: Vec<u8> = strings.iter().flat_map(|text| header(text.len())).collect();
    let index = parcel.buffer(&headers, Some(Parent { index, offset: 0 }));
    for (at, text) in strings.iter().enumerate() {
        put_contents(parcel, text, Parent { index, offset: (at * HEADER_LEN) as u64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Access, Rule};
    use owners::Uid;

    const CALLER: Caller = Caller { pid: 7, uid: Uid(1000) };
    const SERVICE: Object = Object { handle: 3, stability: 0 };
    const RADIO: &str = "android.hardware.radio@1.0::IRadio";

    /// A parcel's own buffers, as the driver's copies of them.
    fn own<'a>(address: u64, len: u64) -> Option<&'a [u8]> {
        // SAFETY: the tests pass objects of parcels that are alive.
        Some(unsafe { std::slice::from_raw_parts(address as *const u8, len as usize) })
    }

    fn request(words: &[&str], object: Option<Object>) -> Parcel {
        let mut parcel = Parcel::new();
        put_c_string(&mut parcel, INTERFACES[2]);
        words.iter().for_each(|word| put_hidl_string(&mut parcel, word));
        if object.is_some() {
            put_object(&mut parcel, object);
        }
        parcel
    }

    fn ask(names: &mut Names, code: u32, parcel: &Parcel) -> Step {
        let (data, offsets) = (&parcel.data[..], &parcel.offsets[..]);
        handle(names, Request { code, data, offsets, caller: CALLER }, &own, &|_| 1)
    }

    fn done(step: Step) -> (Parcel, Vec<OneWay>) {
        match step {
            Step::Done(Outcome { answer: Answer::Reply(parcel), calls }) => (parcel, calls),
            other => panic!("{other:?}"),
        }
    }

    fn strings(parcel: &Parcel) -> Vec<String> {
        read_chain(&parcel.data, &parcel.offsets, &own).unwrap()
    }

    fn with_radio() -> Names {
        let mut names = Names::default();
        let chain = [RADIO.to_owned(), BASE.to_owned()];
        let Step::AskChain { instance, service } =
            ask(&mut names, ADD, &request(&["slot1"], Some(SERVICE)))
        else {
            panic!("it has to be asked for its interfaces");
        };
        let outcome = add(&mut names, &instance, service, &chain, CALLER);
        let (reply, _) = done(Step::Done(outcome));
        assert_eq!(reply.data, [0i32, 1].map(i32::to_ne_bytes).concat());
        names
    }

    #[test]
    fn a_service_is_found_by_interface_and_instance() {
        let mut names = with_radio();
        let (found, _) = done(ask(&mut names, GET, &request(&[RADIO, "slot1"], None)));
        assert_eq!(Reader::new(&found.data[4..], &[0]).object(), Ok(3));
        assert_eq!(found.offsets, [4]);
        let (missing, _) = done(ask(&mut names, GET, &request(&[RADIO, "slot2"], None)));
        assert!(missing.offsets.is_empty());
        let (base, _) = done(ask(&mut names, GET, &request(&[BASE, "slot1"], None)));
        assert!(base.offsets.is_empty());
        let (listed, _) = done(ask(&mut names, LIST, &request(&[], None)));
        assert_eq!(strings(&listed), [format!("{RADIO}/slot1")]);
        let (instances, _) = done(ask(&mut names, LIST_BY_INTERFACE, &request(&[RADIO], None)));
        assert_eq!(strings(&instances), ["slot1"]);
        let (none, _) = done(ask(&mut names, LIST_BY_INTERFACE, &request(&["x"], None)));
        assert!(strings(&none).is_empty());
        for (instance, transport) in [("slot1", HWBINDER), ("slot2", NO_TRANSPORT)] {
            let (reply, _) =
                done(ask(&mut names, GET_TRANSPORT, &request(&[RADIO, instance], None)));
            assert_eq!(reply.data, [0, transport].map(i32::to_ne_bytes).concat());
        }
    }

    #[test]
    fn those_that_wait_for_an_interface_are_told_of_each_instance() {
        let mut names = with_radio();
        let callback = Object { handle: 9, stability: 0 };
        let watch = request(&[RADIO, ""], Some(callback));
        let (reply, calls) = done(ask(&mut names, REGISTER_FOR_NOTIFICATIONS, &watch));
        assert_eq!(reply.data, [0i32, 1].map(i32::to_ne_bytes).concat());
        assert_eq!((calls.len(), calls[0].handle, calls[0].code), (1, 9, 1));
        let told = |call: &OneWay| {
            let mut reader = Reader::new(&call.parcel.data, &call.parcel.offsets);
            assert_eq!(reader.c_string(), Ok(NOTIFICATION.0));
            (read_name(&mut reader, &own).unwrap(), reader.int().unwrap())
        };
        assert_eq!(told(&calls[0]), (format!("{RADIO}/slot1"), 1));
        let chain = [RADIO.to_owned(), BASE.to_owned()];
        let outcome = add(&mut names, "slot2", SERVICE, &chain, CALLER);
        assert_eq!(told(&outcome.calls[0]), (format!("{RADIO}/slot2"), 0));
        assert_eq!(outcome.calls.len(), 1);
    }

    /// What the method that returns a success replies.
    fn success_at(names: &mut Names, code: u32, parcel: &Parcel) -> bool {
        let (reply, _) = done(ask(names, code, parcel));
        let mut reader = Reader::new(&reply.data, &[]);
        assert_eq!(reader.int(), Ok(0));
        reader.int().unwrap() == 1
    }

    #[test]
    fn a_service_that_names_its_interfaces_is_not_asked() {
        let mut names = Names::default();
        let mut parcel = request(&["slot1"], Some(SERVICE));
        put_strings(&mut parcel, &[RADIO, "android.hardware.radio@1.1::IRadio", BASE]);
        assert!(success_at(&mut names, ADD_WITH_CHAIN, &parcel));
        let all: Vec<&str> = names.list().map(|(name, _)| name).collect();
        let expected = ["android.hardware.radio@1.0::IRadio", "android.hardware.radio@1.1::IRadio"];
        assert_eq!(all, expected.map(|of| format!("{of}/slot1")));
        let mut none = request(&["slot1"], Some(SERVICE));
        put_strings(&mut none, &[BASE]);
        assert!(!success_at(&mut names, ADD_WITH_CHAIN, &none));
        let (chain, _) = {
            let mut parcel = Parcel::new();
            put_c_string(&mut parcel, BASE);
            done(ask(&mut names, INTERFACE_CHAIN, &parcel))
        };
        assert_eq!(strings(&chain), [&INTERFACES[..], &[BASE]].concat());
    }

    #[test]
    fn a_lazy_service_is_called_and_withdrawn() {
        let mut names = with_radio();
        let callback = Object { handle: 9, stability: 0 };
        let mut register = request(&[RADIO, "slot1"], Some(SERVICE));
        put_object(&mut register, Some(callback));
        assert!(success_at(&mut names, REGISTER_CLIENT_CALLBACK, &register));
        done(ask(&mut names, GET, &request(&[RADIO, "slot1"], None)));
        let [change] = &names.take_changes()[..] else { panic!("it has a client") };
        let [call] = &tell_clients(change)[..] else { panic!("it has one callback") };
        assert_eq!((call.handle, call.code), (9, 1));
        let mut reader = Reader::new(&call.parcel.data, &call.parcel.offsets);
        assert_eq!(reader.c_string(), Ok("android.hidl.manager@1.2::IClientCallback"));
        assert_eq!([reader.object().map(|it| it as i32), reader.int()], [Ok(3), Ok(1)]);
        let withdraw = request(&[RADIO, "slot1"], Some(SERVICE));
        assert!(!success_at(&mut names, TRY_UNREGISTER, &withdraw));
        let name = format!("{RADIO}/slot1");
        names.observe(&name, 1);
        names.observe(&name, 1);
        let mut of_all = request(&[], None);
        put_object(&mut of_all, None);
        put_object(&mut of_all, Some(callback));
        assert!(success_at(&mut names, UNREGISTER_CLIENT_CALLBACK, &of_all));
        assert!(!success_at(&mut names, UNREGISTER_CLIENT_CALLBACK, &of_all));
        assert!(!success_at(&mut names, TRY_UNREGISTER, &withdraw), "without a callback");
        assert!(success_at(&mut names, REGISTER_CLIENT_CALLBACK, &register));
        assert!(success_at(&mut names, TRY_UNREGISTER, &withdraw));
        assert_eq!(names.list().count(), 0);
    }

    #[test]
    fn declared_services_have_a_transport_and_a_notification_can_be_withdrawn() {
        let rule = |pattern: &str| Rule { pattern: pattern.to_owned(), users: vec![] };
        let rules = vec![rule(&format!("{RADIO}/slot1")), rule(&format!("{RADIO}/*"))];
        let mut names = Names::new(Access::Rules(rules));
        let list = request(&[RADIO], None);
        let (instances, _) = done(ask(&mut names, LIST_MANIFEST_BY_INTERFACE, &list));
        assert_eq!(strings(&instances), ["slot1"]);
        let (reply, _) = done(ask(&mut names, GET_TRANSPORT, &request(&[RADIO, "slot1"], None)));
        assert_eq!(reply.data, [0, HWBINDER].map(i32::to_ne_bytes).concat());
        let watch = request(&[RADIO, ""], Some(SERVICE));
        assert!(success_at(&mut names, REGISTER_FOR_NOTIFICATIONS, &watch));
        assert!(success_at(&mut names, UNREGISTER_FOR_NOTIFICATIONS, &watch));
        assert!(!success_at(&mut names, UNREGISTER_FOR_NOTIFICATIONS, &watch));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let mut names = Names::default();
        let status = |step| match step {
            Step::Done(Outcome { answer: Answer::Status(status), .. }) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(status(ask(&mut names, GET, &Parcel::new())), -libc::EINVAL);
        assert_eq!(status(ask(&mut names, GET, &request(&[RADIO], None))), -libc::EINVAL);
        assert_eq!(status(ask(&mut names, 99, &request(&[], None))), -libc::EBADMSG);
        let mut no_offsets = request(&[RADIO, "slot1"], None);
        no_offsets.offsets.clear();
        assert_eq!(status(ask(&mut names, GET, &no_offsets)), -libc::EINVAL);
        assert_eq!(read_chain(&[], &[], &own), Err(Malformed));
        for chain in [&[RADIO, "no interface"][..], &[BASE][..]] {
            let chain: Vec<String> = chain.iter().map(|&text| text.to_owned()).collect();
            let (reply, _) = done(Step::Done(add(&mut names, "a", SERVICE, &chain, CALLER)));
            assert_eq!(reply.data, [0i32, 0].map(i32::to_ne_bytes).concat());
            assert_eq!((names.list().count(), names.take_references().len()), (0, 0));
        }
        let failed = add(&mut names, "a b", SERVICE, &[RADIO.to_owned()], CALLER);
        let (reply, _) = done(Step::Done(failed));
        assert_eq!(reply.data, [0i32, 0].map(i32::to_ne_bytes).concat());
        let long = "x".repeat(LONGEST);
        let watch = request(&[RADIO, &long], Some(SERVICE));
        assert_eq!(status(ask(&mut names, REGISTER_FOR_NOTIFICATIONS, &watch)), -libc::EINVAL);
    }
}
