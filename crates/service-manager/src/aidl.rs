//! `android.os.IServiceManager`: the parcels of Android 9 to 16.
//!
//! A request's header tells three formats apart. Since Android 11 all have the same header, and the
//! codes of methods moved: what they are is an API level that the caller of this module chooses.

use binder_client::{Answer, Parcel};

use crate::clients::StrongCount;
use crate::names::{Caller, Clients, ClientsChange, Names, Object, Refusal, Service};
use crate::parcel::{Malformed, Reader, put_int, put_object, put_string};
use crate::{OneWay, Outcome, Request};

/// The interface.
const INTERFACE: &str = "android.os.IServiceManager";
/// The interface of callbacks, and its method `onRegistration`.
const CALLBACK: (&str, u32) = ("android.os.IServiceCallback", 1);
/// The interface of client callbacks, and its method `onClients`.
const CLIENT_CALLBACK: (&str, u32) = ("android.os.IClientCallback", 1);
/// Word before the interface since Android 11.
const SYSTEM_HEADER: i32 = i32::from_be_bytes(*b"SYST");
/// Codes of every object: its interface, and whether it lives.
const INTERFACE_TRANSACTION: u32 = u32::from_be_bytes(*b"_NTF");
const PING_TRANSACTION: u32 = u32::from_be_bytes(*b"_PNG");

/// Exceptions in replies.
const EX_SECURITY: i32 = -1;
const EX_ILLEGAL_ARGUMENT: i32 = -3;
const EX_ILLEGAL_STATE: i32 = -5;
const EX_UNSUPPORTED_OPERATION: i32 = -7;

/// Status codes of libbinder: an unknown code, and a parcel that cannot be read.
const UNKNOWN_TRANSACTION: Answer = Answer::Status(-libc::EBADMSG);
const BAD_VALUE: Answer = Answer::Status(-libc::EINVAL);
/// What the service manager of Android 9 and 10 replies instead of an object or a name.
const NONE: Answer = Answer::Status(-1);

/// The API level of requests with the header of Android 11 and later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiLevel(u32);

impl ApiLevel {
    /// Android 16.
    pub const NEWEST: Self = Self(36);

    /// `None`: not one of 30 to 36.
    pub fn new(level: u32) -> Option<Self> {
        (30..=36).contains(&level).then_some(Self(level))
    }

    /// The methods in the order of their codes, from 1.
    fn methods(self) -> Vec<Method> {
        use Method::{
            Add, CheckService, CheckService2, ConnectionInfo, DebugInfo, DeclaredInstances,
            GetService, GetService2, IsDeclared, List, RegisterClientCallback, TryUnregister,
            UnwatchName, UpdatableNames, UpdatableViaApex, WatchName,
        };
        let since = |level, method| (self.0 >= level).then_some(method);
        let methods = [
            Some(GetService),
            since(35, GetService2),
            Some(CheckService),
            since(36, CheckService2),
            Some(Add),
            Some(List),
            Some(WatchName),
            Some(UnwatchName),
            Some(IsDeclared),
            since(31, DeclaredInstances),
            since(31, UpdatableViaApex),
            since(34, UpdatableNames),
            since(33, ConnectionInfo),
            Some(RegisterClientCallback),
            Some(TryUnregister),
            since(31, DebugInfo),
        ];
        methods.into_iter().flatten().collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    GetService,
    GetService2,
    CheckService,
    CheckService2,
    Add,
    List,
    WatchName,
    UnwatchName,
    IsDeclared,
    DeclaredInstances,
    UpdatableViaApex,
    UpdatableNames,
    ConnectionInfo,
    RegisterClientCallback,
    TryUnregister,
    DebugInfo,
}

/// The format of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Android 10 and earlier: no exceptions, and an index into the list.
    Old,
    /// Android 11 and later.
    New,
}

/// Handles a request.
pub fn handle(
    names: &mut Names,
    request: Request<'_>,
    level: ApiLevel,
    strong: StrongCount<'_>,
) -> Outcome {
    match request.code {
        PING_TRANSACTION => return Answer::Reply(Parcel::new()).into(),
        INTERFACE_TRANSACTION => {
            let mut parcel = Parcel::new();
            put_string(&mut parcel, INTERFACE);
            return Answer::Reply(parcel).into();
        }
        _ => {}
    }
    let reader = Reader::new(request.data, request.offsets);
    let outcome = match read_header(reader) {
        Ok((Format::Old, reader)) => handle_old(names, request, reader),
        Ok((Format::New, reader)) => {
            let at = usize::try_from(request.code).ok().and_then(|code| code.checked_sub(1));
            match at.and_then(|at| level.methods().get(at).copied()) {
                Some(method) => handle_new(names, method, request.caller, strong, reader),
                None => return UNKNOWN_TRANSACTION.into(),
            }
        }
        Err(error) => Err(error),
    };
    outcome.unwrap_or_else(|Malformed| BAD_VALUE.into())
}

/// The format whose header names the interface.
fn read_header(reader: Reader<'_>) -> Result<(Format, Reader<'_>), Malformed> {
    let with = |words: usize, format: Format| {
        let mut reader = reader.clone();
        for word in 0..words {
            let number = reader.int().ok()?;
            if word == 2 && number != SYSTEM_HEADER {
                return None;
            }
        }
        (reader.string().ok()? == INTERFACE).then_some((format, reader))
    };
    // Strict mode; since Android 10 a work source; since Android 11 the word.
    let found = with(3, Format::New).or_else(|| with(2, Format::Old));
    found.or_else(|| with(1, Format::Old)).ok_or(Malformed)
}

fn handle_old(
    names: &mut Names,
    request: Request<'_>,
    mut reader: Reader<'_>,
) -> Result<Outcome, Malformed> {
    let mut parcel = Parcel::new();
    match request.code {
        // getService, checkService
        1 | 2 => match names.hand_out(&reader.string()?) {
            Some(service) => put_object(&mut parcel, Some(service.object)),
            None => return Ok(NONE.into()),
        },
        // addService
        3 => {
            let name = reader.string()?;
            let object = Object { handle: reader.object()?, stability: 0 };
            match names.add(&name, object, request.caller) {
                Ok(waiting) => {
                    put_int(&mut parcel, 0);
                    let calls = tell(&waiting, &name, object);
                    return Ok(Outcome { answer: Answer::Reply(parcel), calls });
                }
                Err(Refusal::Access) => return Ok(Answer::Status(-libc::EPERM).into()),
                Err(_) => return Ok(BAD_VALUE.into()),
            }
        }
        // listServices
        4 => {
            let at = usize::try_from(reader.int()?).map_err(|_| Malformed)?;
            match names.list().nth(at) {
                Some((name, _)) => put_string(&mut parcel, name),
                None => return Ok(NONE.into()),
            }
        }
        _ => return Ok(UNKNOWN_TRANSACTION.into()),
    }
    Ok(Answer::Reply(parcel).into())
}

fn handle_new(
    names: &mut Names,
    method: Method,
    caller: Caller,
    strong: StrongCount<'_>,
    mut reader: Reader<'_>,
) -> Result<Outcome, Malformed> {
    let mut parcel = Parcel::new();
    put_int(&mut parcel, 0);
    match method {
        Method::GetService | Method::CheckService => {
            put_found(&mut parcel, names.hand_out(&reader.string()?));
        }
        Method::GetService2 | Method::CheckService2 => {
            let name = reader.string()?;
            put_service(&mut parcel, names, &name);
        }
        Method::Add => {
            let name = reader.string()?;
            let object = read_object(&mut reader)?;
            match names.add(&name, object, caller) {
                Ok(waiting) => {
                    let calls = tell(&waiting, &name, object);
                    return Ok(Outcome { answer: Answer::Reply(parcel), calls });
                }
                Err(refusal) => return Ok(exception(refusal).into()),
            }
        }
        Method::List => put_strings(&mut parcel, names.list().map(|(name, _)| name)),
        Method::WatchName => {
            let name = reader.string()?;
            let callback = read_object(&mut reader)?;
            match names.watch(&name, callback, caller.uid) {
                Ok(found) => {
                    let calls = found.map(|service| tell(&[callback], &name, service.object));
                    let calls = calls.unwrap_or_default();
                    return Ok(Outcome { answer: Answer::Reply(parcel), calls });
                }
                Err(refusal) => return Ok(exception(refusal).into()),
            }
        }
        Method::UnwatchName => {
            let name = reader.string()?;
            let callback = read_object(&mut reader)?;
            if let Err(refusal) = names.unwatch(&name, callback) {
                return Ok(exception(refusal).into());
            }
        }
        Method::IsDeclared => put_int(&mut parcel, names.is_declared(&reader.string()?).into()),
        Method::DeclaredInstances => {
            put_strings(&mut parcel, names.declared_instances(&reader.string()?).into_iter());
        }
        // Services are neither in other machines nor in packages that are updated.
        Method::ConnectionInfo => put_int(&mut parcel, 0),
        Method::UpdatableNames => put_strings(&mut parcel, std::iter::empty()),
        // A null string.
        Method::UpdatableViaApex => put_int(&mut parcel, -1),
        Method::RegisterClientCallback | Method::TryUnregister => {
            let result = handle_lazy(names, method, caller, strong, &mut reader)?;
            if let Err(refusal) = result {
                return Ok(exception(refusal).into());
            }
        }
        Method::DebugInfo => put_debug_info(&mut parcel, names),
    }
    Ok(Answer::Reply(parcel).into())
}

/// `registerClientCallback` and `tryUnregisterService`.
fn handle_lazy(
    names: &mut Names,
    method: Method,
    caller: Caller,
    strong: StrongCount<'_>,
    reader: &mut Reader<'_>,
) -> Result<Result<(), Refusal>, Malformed> {
    let name = reader.string()?;
    let service = read_object(reader)?;
    if method == Method::TryUnregister {
        return Ok(names.try_unregister(&name, service, caller, strong));
    }
    let callback = read_object(reader)?;
    Ok(names.register_client_callback(&name, service, callback, caller))
}

fn read_object(reader: &mut Reader<'_>) -> Result<Object, Malformed> {
    Ok(Object { handle: reader.object()?, stability: reader.int()? })
}

fn put_found(parcel: &mut Parcel, service: Option<Service>) {
    put_object(parcel, service.map(|service| service.object));
    put_int(parcel, service.map_or(0, |service| service.object.stability));
}

/// The union `Service` with its member `ServiceWithMetadata`.
fn put_service(parcel: &mut Parcel, names: &mut Names, name: &str) {
    const PRESENT: i32 = 1;
    const WITH_METADATA: i32 = 0;
    put_int(parcel, PRESENT);
    put_int(parcel, WITH_METADATA);
    put_int(parcel, PRESENT);
    put_sized(parcel, |parcel| {
        put_found(parcel, names.hand_out(name));
        // isLazyService: libbinder keeps no reference to one.
        put_int(parcel, names.is_lazy(name).into());
    });
}

/// A parcelable's fields, after their size.
fn put_sized(parcel: &mut Parcel, fields: impl FnOnce(&mut Parcel)) {
    let at = parcel.data.len();
    put_int(parcel, 0);
    fields(parcel);
    let size = (parcel.data.len() - at) as i32;
    parcel.data[at..at + 4].copy_from_slice(&size.to_ne_bytes());
}

fn put_strings<'a>(parcel: &mut Parcel, strings: impl Iterator<Item = &'a str>) {
    let strings: Vec<&str> = strings.collect();
    put_int(parcel, strings.len() as i32);
    strings.iter().for_each(|text| put_string(parcel, text));
}

fn put_debug_info(parcel: &mut Parcel, names: &Names) {
    put_int(parcel, names.list().count() as i32);
    for (name, service) in names.list() {
        put_int(parcel, 1);
        put_sized(parcel, |parcel| {
            put_string(parcel, name);
            put_int(parcel, service.owner.pid);
        });
    }
}

fn exception(refusal: Refusal) -> Answer {
    let (code, why) = match refusal {
        Refusal::Name => (EX_ILLEGAL_ARGUMENT, "a name has 1 to 127 of A-Z a-z 0-9 - . _ / @ :"),
        Refusal::Access => (EX_SECURITY, "the service manager's rules give this name to others"),
        Refusal::Quota => (EX_ILLEGAL_STATE, "the user has registered 1000 names and callbacks"),
        Refusal::Other => (EX_ILLEGAL_STATE, "it is not registered"),
        Refusal::NotOwner => {
            (EX_UNSUPPORTED_OPERATION, "another process has registered the service")
        }
        Refusal::InUse => (EX_ILLEGAL_STATE, "it has clients, may get one, or has no callback"),
    };
    Answer::Reply(exception_with(code, why))
}

fn exception_with(code: i32, why: &str) -> Parcel {
    let mut parcel = Parcel::new();
    put_int(&mut parcel, code);
    put_string(&mut parcel, why);
    // No stack trace.
    put_int(&mut parcel, 0);
    parcel
}

/// A call of a callback's only method: its header.
fn callback_header(interface: &str) -> Parcel {
    let mut parcel = Parcel::new();
    // No strict mode, and no work source.
    for word in [0, -1, SYSTEM_HEADER] {
        put_int(&mut parcel, word);
    }
    put_string(&mut parcel, interface);
    parcel
}

fn tell(waiting: &[Object], name: &str, object: Object) -> Vec<OneWay> {
    let call = |callback: &Object| {
        let (interface, code) = CALLBACK;
        let mut parcel = callback_header(interface);
        put_string(&mut parcel, name);
        put_object(&mut parcel, Some(object));
        put_int(&mut parcel, object.stability);
        OneWay { handle: callback.handle, code, parcel }
    };
    waiting.iter().map(call).collect()
}

/// The calls that tell a service of its clients.
pub fn tell_clients(change: &ClientsChange) -> Vec<OneWay> {
    let call = |callback: &Object| {
        let (interface, code) = CLIENT_CALLBACK;
        let mut parcel = callback_header(interface);
        put_object(&mut parcel, Some(change.service));
        put_int(&mut parcel, change.service.stability);
        put_int(&mut parcel, (change.clients == Clients::Some).into());
        OneWay { handle: callback.handle, code, parcel }
    };
    change.callbacks.iter().map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Access, Rule};
    use owners::Uid;

    const CALLER: Caller = Caller { pid: 7, uid: Uid(1000) };
    const LEVEL: ApiLevel = ApiLevel::NEWEST;

    fn object(handle: u32) -> Object {
        Object { handle, stability: 12 }
    }

    /// A header of these words and the interface.
    fn request(words: &[i32]) -> Parcel {
        let mut parcel = Parcel::new();
        words.iter().for_each(|word| put_int(&mut parcel, *word));
        put_string(&mut parcel, INTERFACE);
        parcel
    }

    fn new_request() -> Parcel {
        request(&[0x4000_0000, -1, SYSTEM_HEADER])
    }

    fn ask_at(level: ApiLevel, names: &mut Names, code: u32, parcel: &Parcel) -> Outcome {
        let (data, offsets) = (&parcel.data[..], &parcel.offsets[..]);
        handle(names, Request { code, data, offsets, caller: CALLER }, level, &|_| 1)
    }

    fn ask(names: &mut Names, code: u32, parcel: &Parcel) -> Outcome {
        ask_at(LEVEL, names, code, parcel)
    }

    fn reply(outcome: Outcome) -> Parcel {
        match outcome.answer {
            Answer::Reply(parcel) => parcel,
            other => panic!("{other:?}"),
        }
    }

    fn status(outcome: Outcome) -> i32 {
        match outcome.answer {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn named(mut parcel: Parcel, name: &str) -> Parcel {
        put_string(&mut parcel, name);
        parcel
    }

    fn with_object(parcel: Parcel, name: &str, object: Object) -> Parcel {
        let mut parcel = named(parcel, name);
        put_object(&mut parcel, Some(object));
        put_int(&mut parcel, object.stability);
        parcel
    }

    #[test]
    fn the_headers_of_three_formats_are_told_apart() {
        let mut names = Names::default();
        names.add("x", object(3), CALLER).unwrap();
        for words in [&[1][..], &[1, -1][..]] {
            let found = reply(ask(&mut names, 2, &named(request(words), "x")));
            assert_eq!((found.data.len(), &found.offsets[..]), (24, &[0][..]), "{words:?}");
            assert_eq!(status(ask(&mut names, 2, &named(request(words), "y"))), -1);
        }
        let found = reply(ask(&mut names, 3, &named(new_request(), "x")));
        assert_eq!((found.data.len(), &found.offsets[..]), (32, &[4][..]));
        let missing = reply(ask(&mut names, 3, &named(new_request(), "y")));
        assert_eq!((missing.data.len(), missing.offsets.len()), (32, 0));
        let vendor = request(&[1, -1, i32::from_be_bytes(*b"VNDR")]);
        assert_eq!(status(ask(&mut names, 3, &vendor)), -libc::EINVAL);
        assert_eq!(status(ask(&mut names, 3, &Parcel::new())), -libc::EINVAL);
    }

    #[test]
    fn codes_are_those_of_the_level() {
        use Method::{Add, CheckService, CheckService2, DebugInfo, GetService2, TryUnregister};
        let code = |level, method| {
            let methods = ApiLevel::new(level).unwrap().methods();
            methods.iter().position(|it| *it == method).map(|at| at + 1)
        };
        let of = |method| [30, 31, 33, 34, 35, 36].map(|level| code(level, method));
        assert_eq!(of(CheckService), [2, 2, 2, 2, 3, 3].map(Some));
        assert_eq!(of(Add), [3, 3, 3, 3, 4, 5].map(Some));
        assert_eq!(of(DebugInfo), [None, Some(12), Some(13), Some(14), Some(15), Some(16)]);
        assert_eq!(of(TryUnregister), [9, 11, 12, 13, 14, 15].map(Some));
        assert_eq!(of(GetService2), [None, None, None, None, Some(2), Some(2)]);
        assert_eq!(of(CheckService2), [None, None, None, None, None, Some(4)]);
        assert_eq!((ApiLevel::new(29), ApiLevel::new(37)), (None, None));
        let mut names = Names::default();
        for code in [0, 17, u32::MAX] {
            assert_eq!(status(ask(&mut names, code, &new_request())), -libc::EBADMSG, "{code}");
        }
    }

    #[test]
    fn a_service_is_found_with_its_stability() {
        let mut names = Names::default();
        let added = reply(ask(&mut names, 5, &with_object(new_request(), "x", object(3))));
        assert_eq!(added.data, 0i32.to_ne_bytes());
        // getService2: no exception, present, a service with metadata, present, its size.
        let found = reply(ask(&mut names, 2, &named(new_request(), "x")));
        let mut reader = Reader::new(&found.data, &found.offsets);
        let head = [0; 5].map(|_| reader.int().unwrap());
        assert_eq!(head, [0, 1, 0, 1, 4 + 24 + 4 + 4]);
        assert_eq!(reader.object(), Ok(3));
        assert_eq!([reader.int(), reader.int(), reader.int()], [Ok(12), Ok(0), Err(Malformed)]);
        let listed = reply(ask(&mut names, 6, &new_request()));
        let mut reader = Reader::new(&listed.data, &[]);
        assert_eq!((reader.int(), reader.int()), (Ok(0), Ok(1)));
        assert_eq!(reader.string().as_deref(), Ok("x"));
        let info = reply(ask(&mut names, 16, &new_request()));
        let mut reader = Reader::new(&info.data, &[]);
        let head = [0; 4].map(|_| reader.int().unwrap());
        assert_eq!(head, [0, 1, 1, 4 + 4 + 4 + 4]);
        assert_eq!(reader.string().as_deref(), Ok("x"));
        assert_eq!(reader.int(), Ok(CALLER.pid));
    }

    #[test]
    fn those_that_wait_are_called_with_name_and_object() {
        let mut names = Names::default();
        let watch = with_object(new_request(), "x", object(5));
        assert!(ask(&mut names, 7, &watch).calls.is_empty());
        let add = with_object(new_request(), "x", object(3));
        let calls = ask(&mut names, 5, &add).calls;
        assert_eq!((calls.len(), calls[0].handle, calls[0].code), (1, 5, 1));
        let mut reader = Reader::new(&calls[0].parcel.data, &calls[0].parcel.offsets);
        assert_eq!([(); 3].map(|()| reader.int().unwrap()), [0, -1, SYSTEM_HEADER]);
        assert_eq!(reader.string().as_deref(), Ok("android.os.IServiceCallback"));
        assert_eq!(reader.string().as_deref(), Ok("x"));
        assert_eq!((reader.object(), reader.int()), (Ok(3), Ok(12)));
        assert_eq!(ask(&mut names, 7, &watch).calls.len(), 1, "it is there already");
        assert_eq!(reply(ask(&mut names, 8, &watch)).data, 0i32.to_ne_bytes());
        assert_eq!(reply(ask(&mut names, 8, &watch)).data, 0i32.to_ne_bytes(), "twice watched");
        let gone = reply(ask(&mut names, 8, &watch));
        assert_eq!(Reader::new(&gone.data, &[]).int(), Ok(EX_ILLEGAL_STATE));
    }

    #[test]
    fn refusals_are_exceptions_with_reasons() {
        let rule = Rule { pattern: "own.*".to_owned(), users: vec![Uid(0)] };
        let mut names = Names::new(Access::Rules(vec![rule]));
        let refused = |names: &mut Names, code, parcel: &Parcel| {
            let reply = reply(ask(names, code, parcel));
            let mut reader = Reader::new(&reply.data, &[]);
            let found = (reader.int().unwrap(), !reader.string().unwrap().is_empty());
            assert_eq!(reader.int(), Ok(0));
            found
        };
        let add = with_object(new_request(), "own.x", object(3));
        assert_eq!(refused(&mut names, 5, &add), (EX_SECURITY, true));
        let add = with_object(new_request(), "a b", object(3));
        assert_eq!(refused(&mut names, 5, &add), (EX_ILLEGAL_ARGUMENT, true));
        let absent = with_object(new_request(), "x", object(3));
        assert_eq!(refused(&mut names, 15, &absent), (EX_ILLEGAL_STATE, true));
        let old = with_object(request(&[1]), "own.x", object(3));
        assert_eq!(status(ask(&mut names, 3, &old)), -libc::EPERM);
    }

    #[test]
    fn a_lazy_service_is_called_and_withdrawn() {
        let mut names = Names::default();
        ask(&mut names, 5, &with_object(new_request(), "x", object(3)));
        let mut register = with_object(new_request(), "x", object(3));
        put_object(&mut register, Some(object(5)));
        put_int(&mut register, 12);
        assert_eq!(reply(ask(&mut names, 14, &register)).data, 0i32.to_ne_bytes());
        let found = reply(ask(&mut names, 2, &named(new_request(), "x")));
        assert_eq!(found.data[found.data.len() - 4..], 1i32.to_ne_bytes(), "it is lazy");
        let [change] = &names.take_changes()[..] else { panic!("it has a client") };
        let [call] = &tell_clients(change)[..] else { panic!("it has one callback") };
        assert_eq!((call.handle, call.code), (5, 1));
        let mut reader = Reader::new(&call.parcel.data, &call.parcel.offsets);
        assert_eq!([(); 3].map(|()| reader.int().unwrap()), [0, -1, SYSTEM_HEADER]);
        assert_eq!(reader.string().as_deref(), Ok("android.os.IClientCallback"));
        assert_eq!(read_object(&mut reader), Ok(object(3)));
        assert_eq!([reader.int(), reader.int()], [Ok(1), Err(Malformed)]);
        let unregister = with_object(new_request(), "x", object(3));
        let code = |outcome| Reader::new(&reply(outcome).data, &[]).int();
        assert_eq!(code(ask(&mut names, 15, &unregister)), Ok(EX_ILLEGAL_STATE));
        names.observe("x", 1);
        names.observe("x", 1);
        assert_eq!(code(ask(&mut names, 15, &unregister)), Ok(0));
        assert_eq!(names.list().count(), 0);
        names.add("y", object(3), Caller { pid: 9, ..CALLER }).unwrap();
        let foreign = with_object(new_request(), "y", object(3));
        assert_eq!(code(ask(&mut names, 15, &foreign)), Ok(EX_UNSUPPORTED_OPERATION));
    }

    #[test]
    fn rules_of_whole_names_declare_services() {
        let rules = ["a.I/one", "a.I/two", "a.I/*", "a.Ix/b"];
        let rule = |pattern: &str| Rule { pattern: pattern.to_owned(), users: vec![] };
        let mut names = Names::new(Access::Rules(rules.map(rule).to_vec()));
        for (name, is_declared) in [("a.I/one", 1), ("a.I/*", 0), ("a.I/three", 0)] {
            let reply = reply(ask(&mut names, 9, &named(new_request(), name)));
            assert_eq!(reply.data, [0, is_declared].map(i32::to_ne_bytes).concat(), "{name}");
        }
        let reply = reply(ask(&mut names, 10, &named(new_request(), "a.I")));
        let mut reader = Reader::new(&reply.data, &[]);
        assert_eq!((reader.int(), reader.int()), (Ok(0), Ok(2)));
        assert_eq!([reader.string(), reader.string()].map(Result::unwrap), ["one", "two"]);
    }

    #[test]
    fn android_10_lists_names_one_by_one() {
        let mut names = Names::default();
        for name in ["b", "a"] {
            let added = reply(ask(&mut names, 3, &with_object(request(&[1, -1]), name, object(3))));
            assert_eq!(added.data, 0i32.to_ne_bytes());
        }
        let mut at = |index: i32| {
            let mut parcel = request(&[1, -1]);
            put_int(&mut parcel, index);
            ask(&mut names, 4, &parcel)
        };
        let name = |outcome| Reader::new(&reply(outcome).data, &[]).string().unwrap();
        assert_eq!([name(at(0)), name(at(1))], ["a", "b"]);
        assert_eq!((status(at(2)), status(at(-1))), (-1, -libc::EINVAL));
    }
}
