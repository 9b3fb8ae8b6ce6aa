//! A test for each feature of AIDL. They need a bus and a service manager on it:
//!
//! ```text
//! headroom run --service-manager 'rsb_hub --insecure-allow-all' -- cargo test --package suite
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard};
use std::time::Duration;

use rsbinder::{
    BinderResult, DeathRecipient, ExceptionCode, Interface, ParcelFileDescriptor, ProcessState,
    StatusCode, Strong, WIBinder, hub,
};
use suite::headroom::suite::{
    Holder::Holder, ICallback::BnCallback, ICallback::ICallback, INamed::BnNamed, INamed::INamed,
    ISuite, ISuite::ISuite as _, Large::Large, Medium::Medium, Point::Point, Small::Small,
    Value::Value,
};

type Suite = Strong<dyn ISuite::ISuite>;

const PATIENCE: Duration = Duration::from_secs(60);

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts another service in a separate process.
fn another() -> (Service, Suite) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("headroom.suite.ISuite/{}-{number}", std::process::id());
    let child = Command::new(env!("CARGO_BIN_EXE_suite_service")).arg(&name).spawn();
    let service = Service(child.expect("cannot start the service"));
    let suite = hub::wait_for_interface::<dyn ISuite::ISuite>(&name).expect("the service");
    (service, suite)
}

/// Whether there is a bus.
fn ready() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| {
        if !Path::new("/dev/binderfs/binder").exists() {
            eprintln!("skipped: no bus; headroom run -- cargo test");
            return false;
        }
        ProcessState::init_default().expect("the bus");
        ProcessState::start_thread_pool();
        true
    })
}

/// Locked for writing by tests that need all of this process's receive buffer.
static ROOM: RwLock<()> = RwLock::new(());

fn room() -> RwLockReadGuard<'static, ()> {
    ROOM.read().unwrap_or_else(|broken| broken.into_inner())
}

/// The service that most tests share.
fn shared() -> Suite {
    static SHARED: OnceLock<Mutex<(Service, Suite)>> = OnceLock::new();
    SHARED.get_or_init(|| Mutex::new(another())).lock().unwrap().1.clone()
}

/// Tests with the shared service.
macro_rules! tests {
    ($($name:ident($suite:ident) $body:block)*) => {
        $(#[test]
        fn $name() {
            if ready() {
                let _room = room();
                let $suite = shared();
                $body
            }
        })*
    };
}

/// Each value is echoed.
macro_rules! echoes {
    ($($name:ident $method:ident [$($value:expr),* $(,)?];)*) => {
        $(#[test]
        fn $name() {
            if ready() {
                let _room = room();
                let suite = shared();
                $(assert_eq!(suite.$method($value).unwrap(), $value);)*
            }
        })*
    };
}

/// Arrays are returned reversed: none, one, some, and many elements.
macro_rules! reverses {
    ($($module:ident $method:ident [$($value:expr),* $(,)?];)*) => {
        $(mod $module {
            use super::*;

            fn check(len: usize) {
                if !ready() {
                    return;
                }
                let _room = room();
                let values: Vec<_> = [$($value),*].iter().cycle().take(len).cloned().collect();
                let mut reversed = shared().$method(&values).unwrap();
                reversed.reverse();
                assert!(reversed == values, "{len} elements came back wrong");
            }

            #[test]
            fn an_empty_array_comes_back() {
                check(0);
            }

            #[test]
            fn one_element_comes_back() {
                check(1);
            }

            #[test]
            fn some_elements_come_back_in_reverse() {
                check(7);
            }

            #[test]
            fn many_elements_come_back_in_reverse() {
                check(3000);
            }
        })*
    };
}

echoes! {
    booleans_come_back echoBoolean [true, false];
    bytes_come_back echoByte [0, 1, -1, i8::MIN, i8::MAX];
    chars_come_back echoChar [0, 65, u16::MAX];
    ints_come_back echoInt [0, -1, i32::MIN, i32::MAX];
    longs_come_back echoLong [0, -1, i64::MIN, i64::MAX];
    floats_come_back echoFloat [0.0, -1.5, f32::MIN, f32::MAX, f32::INFINITY];
    doubles_come_back echoDouble [0.0, -1.5, f64::MIN, f64::MAX, f64::NEG_INFINITY];
    small_enums_come_back echoSmall [Small::ZERO, Small::ONE, Small::SEVEN];
    medium_enums_come_back echoMedium [Medium::ZERO, Medium::MANY];
    large_enums_come_back echoLarge [Large::ONE, Large::HUGE];
    strings_come_back echoString ["", "x", "hello", "größe 大 🦀", "with\0inside"];
}

reverses! {
    arrays_of_booleans reverseBoolean [true, false, false];
    arrays_of_bytes reverseByte [1u8, 2, 255];
    arrays_of_chars reverseChar [1u16, 2, u16::MAX];
    arrays_of_ints reverseInt [1i32, 2, i32::MIN];
    arrays_of_longs reverseLong [1i64, 2, i64::MIN];
    arrays_of_floats reverseFloat [1f32, 2.5, -0.0];
    arrays_of_doubles reverseDouble [1f64, 2.5, -0.0];
    arrays_of_strings reverseString [String::new(), "one".to_owned(), "zwölf".to_owned()];
    arrays_of_small_enums reverseSmall [Small::ZERO, Small::SEVEN];
    arrays_of_medium_enums reverseMedium [Medium::ZERO, Medium::MANY];
    arrays_of_large_enums reverseLarge [Large::ZERO, Large::HUGE];
    arrays_of_parcelables reversePoint [point(1), point(2), Point::default()];
    arrays_of_unions reverseValue
        [Value::Number(1), Value::Text("two".into()), Value::Numbers(vec![3])];
    lists_of_strings reverseList ["a".to_owned(), "b".to_owned()];
}

fn point(x: i32) -> Point {
    Point {
        x,
        y: -5,
        z: 2.5,
        flag: false,
        name: "name".into(),
        nickname: Some("nick".into()),
        numbers: vec![1, 2, 3],
        words: vec!["a".into(), String::new()],
        size: Medium::MANY,
    }
}

struct Named(&'static str);

impl Interface for Named {}

impl INamed for Named {
    fn name(&self) -> BinderResult<String> {
        Ok(self.0.to_owned())
    }
}

fn named(name: &'static str) -> Strong<dyn INamed> {
    BnNamed::new_binder(Named(name))
}

struct Callback(Option<Sender<i32>>);

impl Interface for Callback {}

impl ICallback for Callback {
    fn bounce(&self, suite: &Suite, times: i32) -> BinderResult<i32> {
        let own = BnCallback::new_binder(Callback(None));
        if times == 0 { Ok(0) } else { Ok(suite.bounce(&own, times - 1)? + 1) }
    }

    fn received(&self, number: i32) -> BinderResult<()> {
        let _ = self.0.as_ref().map(|sender| sender.send(number));
        Ok(())
    }
}

fn callback() -> (Strong<dyn ICallback>, Receiver<i32>) {
    let (sender, received) = channel();
    (BnCallback::new_binder(Callback(Some(sender))), received)
}

tests! {
    constants_are_known(_suite) {
        assert_eq!((ISuite::ANSWER, ISuite::GREETING), (42, "hello"));
    }
    a_parcelable_comes_back(suite) {
        assert_eq!(suite.echoPoint(&point(3)).unwrap(), point(3));
    }
    a_parcelable_has_its_defaults(suite) {
        let echoed = suite.echoPoint(&Point::default()).unwrap();
        assert_eq!((echoed.x, echoed.y, echoed.flag, echoed.size), (0, 7, true, Medium::ONE));
    }
    no_parcelable_is_none(suite) {
        assert_eq!(suite.maybePoint(None).unwrap(), None);
        assert_eq!(suite.maybePoint(Some(&point(1))).unwrap(), Some(point(1)));
    }
    a_parcelable_is_changed_in_place(suite) {
        let mut moved = point(1);
        suite.r#move(&mut moved, 41).unwrap();
        assert_eq!(moved, point(42));
    }
    a_parcelable_is_filled(suite) {
        let mut filled = point(1);
        suite.fill(&mut filled).unwrap();
        assert_eq!((filled.x, &*filled.name), (0, "filled"));
    }
    an_out_array_is_filled(suite) {
        let mut copy = vec![9; 3];
        assert_eq!(suite.twice(&[1, 2], &mut copy).unwrap(), [1, 2]);
        assert_eq!(copy, [1, 2]);
    }
    a_union_has_its_default(suite) {
        assert_eq!(suite.echoValue(&Value::default()).unwrap(), Value::Number(42));
    }
    a_union_of_a_text_comes_back(suite) {
        let value = Value::Text("text".into());
        assert_eq!(suite.echoValue(&value).unwrap(), value);
    }
    a_union_of_a_parcelable_comes_back(suite) {
        let value = Value::Point(point(9));
        assert_eq!(suite.echoValue(&value).unwrap(), value);
    }
    a_union_of_an_array_comes_back(suite) {
        let value = Value::Numbers((0..1000).collect());
        assert_eq!(suite.echoValue(&value).unwrap(), value);
    }
    an_empty_holder_comes_back(suite) {
        let holder = Holder { before: 1, after: 2, ..Holder::default() };
        let echoed = suite.echoHolder(&holder).unwrap();
        assert_eq!((echoed.before, echoed.after), (1, 2));
        assert!(echoed.extension.get_parcelable::<Point>().unwrap().is_none());
    }
    a_holder_keeps_what_it_holds(suite) {
        let mut holder = Holder { before: 1, after: 2, ..Holder::default() };
        holder.extension.set_parcelable(Arc::new(point(5))).unwrap();
        let echoed = suite.echoHolder(&holder).unwrap();
        assert_eq!(echoed.extension.get_parcelable::<Point>().unwrap().as_deref(), Some(&point(5)));
        assert_eq!((echoed.before, echoed.after), (1, 2));
    }
    a_string_that_may_be_none_comes_back(suite) {
        assert_eq!(suite.maybeString(Some("there")).unwrap().as_deref(), Some("there"));
        assert_eq!(suite.maybeString(None).unwrap(), None);
    }
    an_array_that_may_be_none_comes_back(suite) {
        assert_eq!(suite.maybeInts(None).unwrap(), None);
        assert_eq!(suite.maybeInts(Some(&[])).unwrap(), Some(vec![]));
        assert_eq!(suite.maybeInts(Some(&[1, 2])).unwrap(), Some(vec![1, 2]));
    }
    an_array_of_strings_that_may_be_none_comes_back(suite) {
        let some = vec![Some("a".to_owned()), None, Some(String::new())];
        assert_eq!(suite.maybeStrings(Some(&some)).unwrap(), Some(some));
        assert_eq!(suite.maybeStrings(None).unwrap(), None);
    }
    an_object_of_the_service_is_called(suite) {
        assert_eq!(suite.named("Ada").unwrap().name().unwrap(), "Ada");
    }
    a_thousand_objects_of_the_service_are_called_and_dropped(suite) {
        for round in 0..10 {
            let one = |i| suite.named(&format!("{round}/{i}")).unwrap();
            let all: Vec<_> = (0..100).map(one).collect();
            for (i, one) in all.iter().enumerate() {
                assert_eq!(one.name().unwrap(), format!("{round}/{i}"));
            }
        }
    }
    an_object_of_ours_comes_back_as_itself(suite) {
        let ours = named("ours");
        let back = suite.echoNamed(&ours).unwrap();
        assert_eq!(back.as_binder(), ours.as_binder());
        assert!(!back.as_binder().is_remote());
    }
    an_object_of_theirs_comes_back_as_the_same(suite) {
        let theirs = suite.named("theirs").unwrap();
        let back = suite.echoNamed(&theirs).unwrap();
        assert_eq!(back.as_binder(), theirs.as_binder());
    }
    a_bare_binder_comes_back(suite) {
        let binder = suite.named("bare").unwrap().as_binder();
        assert_eq!(suite.echoBinder(&binder).unwrap(), binder);
    }
    no_object_is_none(suite) {
        assert!(suite.maybeNamed(None).unwrap().is_none());
        let some = suite.maybeNamed(Some(&named("some"))).unwrap().unwrap();
        assert_eq!(some.name().unwrap(), "some");
    }
    arrays_of_objects_come_back_in_reverse(suite) {
        let all = [named("a"), suite.named("b").unwrap(), named("c")];
        let back = suite.reverseNamed(&all).unwrap();
        let names: Vec<_> = back.iter().map(|one| one.name().unwrap()).collect();
        assert_eq!(names, ["c", "b", "a"]);
    }
    a_call_is_nested_once(suite) {
        assert_eq!(suite.bounce(&callback().0, 1).unwrap(), 1);
    }
    a_call_is_nested_ten_deep(suite) {
        assert_eq!(suite.bounce(&callback().0, 10).unwrap(), 10);
    }
    nested_calls_of_many_threads_find_their_way(suite) {
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for n in 0..30 {
                        assert_eq!(suite.bounce(&callback().0, n % 5).unwrap(), n % 5);
                    }
                });
            }
        });
    }
    a_file_is_read_by_the_service(suite) {
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"through a pipe").unwrap();
        drop(write);
        let mut content = Vec::new();
        suite.readFrom(&ParcelFileDescriptor::new(OwnedFd::from(read)), &mut content).unwrap();
        assert_eq!(content, b"through a pipe");
    }
    a_file_of_the_service_is_read(suite) {
        let file = suite.pipeWith("from over there").unwrap();
        let mut text = String::new();
        File::from(OwnedFd::from(file)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "from over there");
    }
    a_file_comes_back_and_both_are_open(suite) {
        let (read, write) = std::io::pipe().unwrap();
        let ours = ParcelFileDescriptor::new(OwnedFd::from(write));
        let back = suite.echoFile(&ours).unwrap();
        File::from(OwnedFd::from(back)).write_all(b"one").unwrap();
        File::from(OwnedFd::from(ours)).write_all(b"two").unwrap();
        let mut text = String::new();
        File::from(OwnedFd::from(read)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo", "and no process has it open any more");
    }
    two_hundred_files_come_back(suite) {
        for i in 0..200 {
            let mut text = String::new();
            let file = suite.pipeWith(&i.to_string()).unwrap();
            File::from(OwnedFd::from(file)).read_to_string(&mut text).unwrap();
            assert_eq!(text, i.to_string());
        }
    }
    errors_of_the_service_have_their_code(suite) {
        for code in [1, -1, 4711] {
            let error = suite.failWithCode(code).unwrap_err();
            assert_eq!(error.exception_code(), ExceptionCode::ServiceSpecific);
            assert_eq!(error.service_specific_error(), code);
            assert_eq!(error.message(), Some("as requested"));
        }
    }
    exceptions_are_what_they_were(suite) {
        for (code, exception) in [
            (-1, ExceptionCode::Security),
            (-3, ExceptionCode::IllegalArgument),
            (-4, ExceptionCode::NullPointer),
            (-5, ExceptionCode::IllegalState),
            (-7, ExceptionCode::UnsupportedOperation),
        ] {
            assert_eq!(suite.failWithException(code).unwrap_err().exception_code(), exception);
        }
    }
    a_failed_transaction_returns_its_status(suite) {
        let denied = suite.failWithStatus(0).unwrap_err().transaction_error();
        assert_eq!(denied, StatusCode::PermissionDenied);
        assert_eq!(suite.failWithStatus(1).unwrap_err().transaction_error(), StatusCode::BadValue);
    }
    a_call_of_another_interface_is_refused(suite) {
        let wrong = suite.named("wrong").unwrap().as_binder();
        assert!(rsbinder::FromIBinder::try_from(wrong).map(|_: Suite| ()).is_err());
    }
    a_service_is_alive_when_pinged(suite) {
        suite.as_binder().ping_binder().unwrap();
    }
    the_service_knows_its_caller(suite) {
        assert_eq!(suite.callerPid().unwrap(), std::process::id() as i32);
        assert_eq!(suite.callerUid().unwrap(), 0, "the user of a session is its root");
    }
    calls_of_eight_threads_do_not_mix(suite) {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let suite = &suite;
                scope.spawn(move || {
                    for i in 0..200 {
                        assert_eq!(suite.echoInt(thread * 1000 + i).unwrap(), thread * 1000 + i);
                    }
                });
            }
        });
    }
    a_slow_call_does_not_hold_up_others(suite) {
        let slow = std::thread::spawn({
            let suite = suite.clone();
            move || suite.sleep(300).unwrap()
        });
        while !slow.is_finished() {
            assert_eq!(suite.echoInt(1).unwrap(), 1);
        }
        slow.join().unwrap();
    }
    what_is_too_large_fails_and_the_next_call_does_not(suite) {
        let large = vec![7_u8; 3 << 20];
        assert!(suite.reverseByte(&large).is_err());
        assert_eq!(suite.reverseByte(&[1, 2]).unwrap(), [2, 1]);
    }
    the_service_is_in_the_list(suite) {
        let names = hub::list_services(0xf);
        assert!(names.iter().any(|name| name.starts_with("headroom.suite.ISuite/")), "{names:?}");
        drop(suite);
    }
    an_unregistered_name_has_no_service(_suite) {
        assert!(hub::check_service("headroom.suite.INothing/default").is_none());
    }
    a_service_of_ours_is_found_by_its_name(_suite) {
        let name = format!("headroom.suite.INamed/{}", std::process::id());
        hub::add_service(&name, named("registered").as_binder()).unwrap();
        let found = hub::check_interface::<dyn INamed>(&name).unwrap();
        assert_eq!(found.name().unwrap(), "registered");
    }
}

/// Arrays of bytes of each power of two up to near the size of a receive buffer.
macro_rules! sizes {
    ($($name:ident $len:expr;)*) => {
        $(#[test]
        fn $name() {
            if ready() {
                // Alone: its answer takes nearly all of our receive buffer.
                let _alone = ROOM.write().unwrap_or_else(|broken| broken.into_inner());
                let (_service, suite) = another();
                let values: Vec<u8> = (0..$len).map(|i: usize| (i % 251) as u8).collect();
                let mut reversed = suite.reverseByte(&values).unwrap();
                reversed.reverse();
                assert!(reversed == values, "{} bytes came back wrong", $len);
            }
        })*
    };
}

sizes! {
    one_byte_comes_back 1;
    four_kibibytes_come_back 4 << 10;
    sixty_four_kibibytes_come_back 64 << 10;
    a_quarter_of_a_mebibyte_comes_back 256 << 10;
    half_a_mebibyte_comes_back 512 << 10;
    almost_a_mebibyte_comes_back 1000 << 10;
}

struct Obituary(Sender<()>);

impl DeathRecipient for Obituary {
    fn binder_died(&self, _who: &WIBinder) {
        let _ = self.0.send(());
    }
}

fn watched(suite: &Suite) -> (Arc<Obituary>, Receiver<()>) {
    let (sender, died) = channel();
    let obituary = Arc::new(Obituary(sender));
    suite.as_binder().link_to_death_arc(&obituary).unwrap();
    (obituary, died)
}

/// Tests with their own service, which may exit.
macro_rules! alone {
    ($($name:ident($service:ident, $suite:ident) $body:block)*) => {
        $(#[test]
        fn $name() {
            if ready() {
                let _room = room();
                #[allow(unused_mut)]
                let (mut $service, $suite) = another();
                $body
            }
        })*
    };
}

alone! {
    one_way_calls_arrive_in_order(_service, suite) {
        let (callback, received) = callback();
        suite.subscribe(&callback).unwrap();
        for batch in 0..10 {
            (0..50).for_each(|i| suite.notifyAll(batch * 50 + i).unwrap());
            for i in 0..50 {
                assert_eq!(received.recv_timeout(PATIENCE).unwrap(), batch * 50 + i);
            }
        }
    }
    one_way_calls_of_several_threads_all_arrive(_service, suite) {
        let (callback, received) = callback();
        suite.subscribe(&callback).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let suite = &suite;
                scope.spawn(move || {
                    for i in 0..50 {
                        suite.notifyAll(thread * 50 + i).unwrap();
                    }
                });
            }
        });
        let next = || received.recv_timeout(PATIENCE).unwrap();
        let mut all: Vec<i32> = (0..200).map(|_| next()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..200));
    }
    the_death_of_a_service_is_reported(service, suite) {
        let (_obituary, died) = watched(&suite);
        service.0.kill().unwrap();
        died.recv_timeout(PATIENCE).expect("no death notification");
        assert!(suite.echoInt(1).is_err());
    }
    the_exit_of_a_service_is_reported_too(_service, suite) {
        let (_obituary, died) = watched(&suite);
        suite.die().unwrap();
        died.recv_timeout(PATIENCE).expect("no death notification");
    }
    an_unlinked_recipient_is_not_notified(service, suite) {
        let (obituary, died) = watched(&suite);
        let weak = Arc::downgrade(&(obituary as Arc<dyn DeathRecipient>));
        suite.as_binder().unlink_to_death(weak).unwrap();
        let (_other, also) = watched(&suite);
        service.0.kill().unwrap();
        also.recv_timeout(PATIENCE).expect("no death notification");
        assert!(died.try_recv().is_err());
    }
    a_call_under_way_fails_when_its_service_dies(service, suite) {
        let calling = std::thread::spawn(move || suite.sleep(3_600_000));
        std::thread::sleep(Duration::from_millis(50));
        service.0.kill().unwrap();
        assert!(calling.join().unwrap().is_err());
    }
    calls_fail_and_do_not_hang_when_services_die_under_them(service, suite) {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| while suite.echoInt(1).is_ok() {});
            }
            std::thread::sleep(Duration::from_millis(30));
            service.0.kill().unwrap();
        });
    }
    an_object_outlives_its_name_but_not_its_process(service, suite) {
        let theirs = suite.named("theirs").unwrap();
        drop(suite);
        assert_eq!(theirs.name().unwrap(), "theirs");
        service.0.kill().unwrap();
        service.0.wait().unwrap();
        assert!(theirs.name().is_err());
    }
}
