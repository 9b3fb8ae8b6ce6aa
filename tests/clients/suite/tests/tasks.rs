//! Asynchronous services and clients, and rarely used features of AIDL. They need a bus as `suite`
//! does.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rsbinder::fmq::{AttachPolicy, Descriptor, MessageQueue};
use rsbinder::{
    BinderResult, DeathRecipient, ExceptionCode, FrozenState, FrozenStateChangeCallback, Interface,
    ParcelFileDescriptor, ProcessState, Reconnecting, Strong, Tokio, TokioRuntime, Uri, WIBinder,
    hub,
};
use suite::headroom::suite::{
    INamed::BnNamed, INamed::INamed, IOneWay::BnOneWay, IOneWay::IOneWay,
    IOneWay::IOneWayAsyncService, ISuite::ISuite, ITasks, ITasks::ITasksAsync, Medium::Medium,
    Packet::Content::Content, Packet::Kind::Kind, Packet::Packet, Pair::Pair, Point::Point,
    Tree::Tree, Value::Value,
};
use suite::{stamp, tasks};
use tokio::runtime::Handle;

type Sync = Strong<dyn ITasks::ITasks>;
type Async = Strong<dyn ITasksAsync<Tokio>>;

const PATIENCE: Duration = Duration::from_secs(60);

struct Service(Child);

impl Service {
    fn start(program: &str, name: &str) -> Self {
        Self(Command::new(program).arg(name).spawn().expect("cannot start the service"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own_name(interface: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("headroom.suite.{interface}/{}-{number}", std::process::id())
}

/// Starts a service for one test.
fn start() -> (Service, String) {
    let name = own_name("ITasks");
    (Service::start(env!("CARGO_BIN_EXE_tasks_service"), &name), name)
}

fn there_is_a_bus() -> bool {
    let there = Path::new("/dev/binderfs/binder").exists();
    if !there {
        eprintln!("skipped: no bus; headroom run -- cargo test");
    }
    there
}

/// Tests whose client is asynchronous.
macro_rules! asynchronous {
    ($($name:ident($service:ident, $tasks:ident) $body:block)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
        async fn $name() {
            if there_is_a_bus() {
                #[allow(unused_mut, unused_variables)]
                let (mut $service, name) = start();
                let uri = Uri::kernel().with_service(&name);
                let found = rsbinder::connect_async::<dyn ITasks::ITasks>(uri);
                let found = tokio::time::timeout(PATIENCE, found).await.expect("a service");
                let $tasks: Async = found.unwrap().into_async::<Tokio>();
                $body
            }
        })*
    };
}

/// Tests whose client is synchronous.
macro_rules! synchronous {
    ($($name:ident($service:ident, $tasks:ident) $body:block)*) => {
        $(#[test]
        fn $name() {
            if there_is_a_bus() {
                #[allow(unused_mut, unused_variables)]
                let (mut $service, name) = start();
                let uri = Uri::kernel().with_service(&name);
                let $tasks: Sync = rsbinder::connect(uri).expect("a service");
                $body
            }
        })*
    };
}

fn text_of(file: ParcelFileDescriptor) -> String {
    let mut text = String::new();
    File::from(OwnedFd::from(file)).read_to_string(&mut text).unwrap();
    text
}

fn points(count: i32) -> Vec<Point> {
    (0..count).map(|x| Point { x, size: Medium::MANY, ..Point::default() }).collect()
}

/// Receives numbers; served either way.
struct Recorder(Mutex<Sender<i32>>);

impl Interface for Recorder {}

impl IOneWay for Recorder {
    fn put(&self, number: i32) -> BinderResult<()> {
        let _ = self.0.lock().unwrap().send(number);
        Ok(())
    }
}

#[async_trait]
impl IOneWayAsyncService for Recorder {
    async fn put(&self, number: i32) -> BinderResult<()> {
        tokio::task::yield_now().await;
        let _ = self.0.lock().unwrap().send(number);
        Ok(())
    }
}

fn recorder() -> (Recorder, Receiver<i32>) {
    let (sender, received) = channel();
    (Recorder(Mutex::new(sender)), received)
}

struct Obituary(Sender<()>);

impl DeathRecipient for Obituary {
    fn binder_died(&self, _who: &WIBinder) {
        let _ = self.0.send(());
    }
}

struct Weather(Mutex<Sender<FrozenState>>);

impl FrozenStateChangeCallback for Weather {
    fn on_state_changed(&self, _who: &WIBinder, state: FrozenState) {
        let _ = self.0.lock().unwrap().send(state);
    }
}

asynchronous! {
    an_awaited_call_is_answered(_service, tasks) {
        assert_eq!(tasks.echo("größe 大 🦀").await.unwrap(), "größe 大 🦀");
    }
    a_hundred_awaited_calls_at_once_are_answered(_service, tasks) {
        let calls: Vec<_> = (0..100)
            .map(|i| {
                let tasks = tasks.clone();
                tokio::spawn(async move { tasks.sum(&[i, 1000]).await.unwrap() == i + 1000 })
            })
            .collect();
        for call in calls {
            assert!(call.await.unwrap());
        }
    }
    awaited_calls_of_one_task_come_in_order(_service, tasks) {
        for i in 0..200 {
            assert_eq!(tasks.sum(&[i, i]).await.unwrap(), 2 * i);
        }
    }
    a_slow_call_holds_up_no_other_task(_service, tasks) {
        let slow = tokio::spawn({
            let tasks = tasks.clone();
            async move { tasks.slowly("late", 300).await.unwrap() }
        });
        while !slow.is_finished() {
            assert_eq!(tasks.echo("soon").await.unwrap(), "soon");
        }
        assert_eq!(slow.await.unwrap(), "late");
    }
    ten_slow_calls_sleep_together(_service, tasks) {
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let tasks = tasks.clone();
                tokio::spawn(async move { tasks.slowly("x", 50).await.is_ok() })
            })
            .collect();
        for call in calls {
            assert!(call.await.unwrap());
        }
    }
    parcelables_are_awaited(_service, tasks) {
        let mut reversed = tasks.reverse(&points(500)).await.unwrap();
        reversed.reverse();
        assert!(reversed == points(500));
    }
    unions_are_awaited(_service, tasks) {
        for value in [Value::default(), Value::Text("text".into()), Value::Numbers(vec![1, 2])] {
            assert_eq!(tasks.echoValue(&value).await.unwrap(), value);
        }
    }
    out_parameters_are_awaited(_service, tasks) {
        let (mut four, mut words) = ([0; 4], vec!["first".to_owned()]);
        tasks.fill(&mut four, &mut words).await.unwrap();
        assert_eq!((four, words), ([1, 2, 3, 4], vec!["first".to_owned(), "filled".to_owned()]));
    }
    an_awaited_error_has_its_code(_service, tasks) {
        let error = tasks.fail(4711).await.unwrap_err();
        assert_eq!(error.exception_code(), ExceptionCode::ServiceSpecific);
        assert_eq!((error.service_specific_error(), error.message()), (4711, Some("as requested")));
    }
    an_asynchronous_object_of_the_service_is_awaited(_service, tasks) {
        let named = tasks.named("Ada").await.unwrap().into_async::<Tokio>();
        assert_eq!(named.name().await.unwrap(), "Ada");
    }
    asynchronous_calls_are_nested_once(_service, tasks) {
        assert_eq!(tasks.relay(&tasks::tasks(), 1).await.unwrap(), 1);
    }
    asynchronous_calls_are_nested_ten_deep(_service, tasks) {
        assert_eq!(tasks.relay(&tasks::tasks(), 10).await.unwrap(), 10);
    }
    nested_asynchronous_calls_of_many_tasks_find_their_way(_service, tasks) {
        let calls: Vec<_> = (0..20)
            .map(|i| {
                let tasks = tasks.clone();
                tokio::spawn(async move {
                    tasks.relay(&tasks::tasks(), i % 4).await.unwrap() == i % 4
                })
            })
            .collect();
        for call in calls {
            assert!(call.await.unwrap());
        }
    }
    one_way_calls_to_an_asynchronous_object_arrive_in_order(_service, tasks) {
        let (recorder, received) = recorder();
        let recorder = BnOneWay::new_async_binder(recorder, TokioRuntime(Handle::current()));
        tasks.report(&recorder, 100).await.unwrap();
        tokio::task::spawn_blocking(move || {
            (0..100).for_each(|i| assert_eq!(received.recv_timeout(PATIENCE).unwrap(), i));
        })
        .await
        .unwrap();
    }
    one_way_calls_to_a_synchronous_object_arrive_in_order(_service, tasks) {
        let (recorder, received) = recorder();
        tasks.report(&BnOneWay::new_binder(recorder), 100).await.unwrap();
        tokio::task::spawn_blocking(move || {
            (0..100).for_each(|i| assert_eq!(received.recv_timeout(PATIENCE).unwrap(), i));
        })
        .await
        .unwrap();
    }
    a_file_is_awaited(_service, tasks) {
        assert_eq!(text_of(tasks.pipeWith("awaited").await.unwrap()), "awaited");
    }
    a_file_is_written_by_an_asynchronous_service(_service, tasks) {
        let (read, write) = std::io::pipe().unwrap();
        let file = ParcelFileDescriptor::new(OwnedFd::from(write));
        tasks.writeTo(&file, b"from a task").await.unwrap();
        drop(file);
        assert_eq!(text_of(ParcelFileDescriptor::new(OwnedFd::from(read))), "from a task");
    }
    a_stream_is_awaited(_service, tasks) {
        let (mut stream, endpoint) =
            rsbinder::stream::Receiver::<i32>::new(&tasks.as_binder()).unwrap();
        tasks.count(&endpoint, 10_000).await.unwrap();
        for number in 0..10_000 {
            assert_eq!(stream.recv_async().await.expect("a number").unwrap(), number);
        }
        assert!(stream.recv_async().await.is_none());
    }
    the_death_of_an_asynchronous_service_is_reported(service, tasks) {
        let (sender, died) = channel();
        let obituary = Arc::new(Obituary(sender));
        tasks.as_binder().link_to_death_arc(&obituary).unwrap();
        service.0.kill().unwrap();
        let notified = tokio::task::spawn_blocking(move || died.recv_timeout(PATIENCE));
        notified.await.unwrap().expect("a death notification");
        assert!(tasks.echo("still there?").await.is_err());
    }
    an_awaited_call_under_way_fails_when_its_service_dies(service, tasks) {
        let calling = tokio::spawn(async move { tasks.slowly("never", 3_600_000).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        service.0.kill().unwrap();
        assert!(calling.await.unwrap().is_err());
    }
    a_cancelled_call_does_not_affect_a_later_one(_service, tasks) {
        let gone = tokio::time::timeout(Duration::from_millis(20), tasks.slowly("gone", 200)).await;
        assert!(gone.is_err());
        assert_eq!(tasks.echo("next").await.unwrap(), "next");
    }
    an_asynchronous_service_knows_its_caller(_service, tasks) {
        assert_eq!(tasks.callerPid().await.unwrap(), std::process::id() as i32);
    }
    an_asynchronous_service_that_ends_itself_is_gone(_service, tasks) {
        tasks.die().await.unwrap();
        while tasks.echo("still there?").await.is_ok() {}
    }
    a_synchronous_service_is_awaited(_service, _tasks) {
        let name = own_name("ISuite");
        let _other = Service::start(env!("CARGO_BIN_EXE_suite_service"), &name);
        let suite = rsbinder::wait_for_interface_async::<dyn ISuite>(&name).await.unwrap();
        let suite = suite.into_async::<Tokio>();
        assert_eq!(suite.echoInt(42).await.unwrap(), 42);
        assert_eq!(suite.reversePoint(&points(3)).await.unwrap()[0].x, 2);
        assert_eq!(suite.failWithCode(7).await.unwrap_err().service_specific_error(), 7);
    }
    no_service_is_found_under_an_unregistered_name(_service, _tasks) {
        let name = "headroom.suite.INothing/async";
        assert!(rsbinder::get_interface_async::<dyn INamed>(name).await.is_err());
    }
    an_asynchronous_service_of_ours_is_found_by_its_name(_service, _tasks) {
        let name = own_name("INamed");
        hub::add_service(&name, tasks::named("registered").as_binder()).unwrap();
        let found = rsbinder::get_interface_async::<dyn INamed>(&name).await.unwrap();
        assert_eq!(found.into_async::<Tokio>().name().await.unwrap(), "registered");
    }
}

synchronous! {
    an_asynchronous_service_answers_a_synchronous_client(_service, tasks) {
        assert_eq!(tasks.echo("hello").unwrap(), "hello");
    }
    calls_of_eight_threads_to_an_asynchronous_service_do_not_mix(_service, tasks) {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let tasks = &tasks;
                scope.spawn(move || {
                    for i in 0..100 {
                        assert_eq!(tasks.sum(&[thread, i]).unwrap(), thread + i);
                    }
                });
            }
        });
    }
    an_asynchronous_service_calls_a_synchronous_object_back(_service, tasks) {
        let (recorder, received) = recorder();
        tasks.report(&BnOneWay::new_binder(recorder), 10).unwrap();
        (0..10).for_each(|i| assert_eq!(received.recv_timeout(PATIENCE).unwrap(), i));
    }
    arrays_of_fixed_size_come_back(_service, tasks) {
        assert_eq!(tasks.transpose(&[[1, 2, 3], [4, 5, 6]]).unwrap(), [[1, 4, 2], [5, 3, 6]]);
    }
    a_parcelable_with_parameters_comes_back(_service, tasks) {
        let pair = Pair::<i32, String> { left: 1, right: 2, ..Pair::default() };
        let swapped = tasks.swap(&pair).unwrap();
        assert_eq!((swapped.left, swapped.right), (2, 1));
    }
    a_parcelable_that_holds_itself_comes_back(_service, tasks) {
        let mut tree = Tree { value: 0, ..Tree::default() };
        for value in 1..50 {
            let (child, leaf) = (Some(Box::new(tree)), Tree { value: -value, ..Tree::default() });
            tree = Tree { value, child, children: vec![leaf.clone(), leaf] };
        }
        assert!(tasks.echoTree(&tree).unwrap() == tree);
    }
    defaults_and_constants_of_a_parcelable_are_known(_service, tasks) {
        let echoed = tasks.echoPacket(&Packet::default()).unwrap();
        assert_eq!(echoed.defaults, [1, 2, 19]);
        assert_eq!(echoed.labels, ["a", "b"]);
        assert_eq!((echoed.stamp.kind, suite::headroom::suite::Packet::LIMIT), (Kind::SEALED, 19));
    }
    nested_types_and_text_in_utf8_come_back(_service, tasks) {
        let echoed = tasks
            .echoPacket(&Packet {
                matrix: [[1, 2, 3], [4, 5, 6]],
                stamp: stamp(Kind::PLAIN, i64::MIN),
                content: Content::Stamp(stamp(Kind::SEALED, 7)),
                text: "größe".to_owned(),
                kinds: vec![Kind::PLAIN, Kind::SEALED],
                ..Packet::default()
            })
            .unwrap();
        assert_eq!((echoed.matrix, echoed.stamp.time), ([[1, 2, 3], [4, 5, 6]], i64::MIN));
        assert!(matches!(echoed.content, Content::Stamp(stamp) if stamp.time == 7));
        assert_eq!((&*echoed.text, echoed.kinds), ("größe", vec![Kind::PLAIN, Kind::SEALED]));
    }
    objects_inside_of_parcelables_come_back(_service, tasks) {
        let ours = |name| BnNamed::new_binder(Ours(name));
        let content = Content::Object(Some(ours("content").as_binder()));
        let echoed = tasks
            .echoPacket(&Packet {
                content,
                named: Some(ours("named")),
                crowd: Some(vec![Some(ours("one")), None, Some(ours("two"))]),
                objects: vec![tasks.as_binder(), ours("bare").as_binder()],
                ..Packet::default()
            })
            .unwrap();
        assert!(matches!(echoed.content, Content::Object(Some(object)) if !object.is_remote()));
        assert_eq!(echoed.named.unwrap().name().unwrap(), "named");
        let crowd = echoed.crowd.unwrap();
        let name = |one: &Strong<dyn INamed>| one.name().unwrap();
        let crowd: Vec<_> = crowd.iter().map(|one| one.as_ref().map(name)).collect();
        assert_eq!(crowd, [Some("one".to_owned()), None, Some("two".to_owned())]);
        assert_eq!(echoed.objects[0], tasks.as_binder());
        assert_eq!(echoed.objects.len(), 2);
    }
    files_inside_of_parcelables_come_back(_service, tasks) {
        let mut pipes: Vec<_> = (0..3).map(|_| std::io::pipe().unwrap()).collect();
        for (number, (_, write)) in pipes.iter_mut().enumerate() {
            write.write_all(format!("file {number}").as_bytes()).unwrap();
        }
        let mut reads =
            pipes.into_iter().map(|(read, _)| ParcelFileDescriptor::new(OwnedFd::from(read)));
        let packet = Packet { file: reads.next(), files: reads.collect(), ..Packet::default() };
        let echoed = tasks.echoPacket(&packet).unwrap();
        assert_eq!(text_of(echoed.file.unwrap()), "file 0");
        assert_eq!(echoed.files.into_iter().map(text_of).collect::<Vec<_>>(), ["file 1", "file 2"]);
    }
    thirty_files_come_in_one_array(_service, tasks) {
        let contents: Vec<String> = (0..30).map(|i| format!("content {i}")).collect();
        let files = tasks.pipesWith(&contents).unwrap();
        assert_eq!(files.into_iter().map(text_of).collect::<Vec<_>>(), contents);
    }
    a_stream_of_numbers_is_read_in_order(_service, tasks) {
        let (stream, endpoint) =
            rsbinder::stream::Receiver::<i32>::new(&tasks.as_binder()).unwrap();
        tasks.count(&endpoint, 100_000).unwrap();
        assert!(stream.map(Result::unwrap).eq(0..100_000));
    }
    a_message_queue_of_the_service_is_read(_service, tasks) {
        let content: Vec<u8> = (0..=255).collect();
        let descriptor = Descriptor::try_from(&tasks.queueWith(&content).unwrap()).unwrap();
        let policy =
            AttachPolicy { max_capacity: 4096, require_seal: true, require_event_flag: true };
        let mut queue = MessageQueue::<u8>::attach(&descriptor, &policy).unwrap();
        let mut read = vec![0; content.len()];
        assert!(queue.read(&mut read).unwrap());
        assert_eq!(read, content);
    }
    an_operation_is_canceled_through_its_signal(_service, tasks) {
        let signal = tasks.start().unwrap();
        assert!(!tasks.canceled().unwrap());
        rsbinder::cancel::cancel_remote(&signal).unwrap();
        while !tasks.canceled().unwrap() {}
    }
    a_service_reports_version_and_hash_of_its_interface(_service, tasks) {
        assert_eq!(tasks.getInterfaceVersion().unwrap(), 3);
        assert_eq!(tasks.getInterfaceHash().unwrap(), "0123abcd");
    }
    a_watcher_is_notified_when_a_service_is_frozen_and_thawed(service, tasks) {
        let (sender, received) = channel();
        let weather = Arc::new(Weather(Mutex::new(sender)));
        tasks.as_binder().add_frozen_state_change_callback_arc(&weather).unwrap();
        assert_eq!(received.recv_timeout(PATIENCE).unwrap(), FrozenState::Unfrozen);
        let (driver, pid) = (ProcessState::as_self(), service.0.id() as i32);
        driver.freeze_process(pid, true, PATIENCE).unwrap();
        assert_eq!(received.recv_timeout(PATIENCE).unwrap(), FrozenState::Frozen);
        assert!(tasks.echo("frozen").is_err());
        assert!(driver.process_freeze_info(pid).unwrap().sync_received);
        driver.freeze_process(pid, false, PATIENCE).unwrap();
        assert_eq!(received.recv_timeout(PATIENCE).unwrap(), FrozenState::Unfrozen);
        assert_eq!(tasks.echo("thawed").unwrap(), "thawed");
    }
    a_client_that_reconnects_finds_the_successor_of_the_dead(service, _tasks) {
        let name = own_name("ITasks");
        let first = Service::start(env!("CARGO_BIN_EXE_tasks_service"), &name);
        let uri = Uri::kernel().with_service(&name);
        hub::wait_for_interface::<dyn ITasks::ITasks>(&name).unwrap();
        let tasks = Reconnecting::<dyn ITasks::ITasks>::builder(uri).build().unwrap();
        assert_eq!(tasks.with(|tasks| tasks.echo("first")).unwrap(), "first");
        drop(first);
        let _second = Service::start(env!("CARGO_BIN_EXE_tasks_service"), &name);
        let again = std::time::Instant::now();
        while tasks.with(|tasks| tasks.echo("second")).is_err() {
            assert!(again.elapsed() < PATIENCE, "{:?}", tasks.last_error());
        }
        drop(service);
    }
    a_service_without_an_extension_returns_none(_service, tasks) {
        assert!(tasks.as_binder().get_extension().unwrap().is_none());
    }
    an_extension_of_an_object_is_called(_service, tasks) {
        let named = BnNamed::new_binder(Ours("extended"));
        let extension = BnNamed::new_binder(Ours("extension"));
        named.as_binder().set_extension(&extension.as_binder()).unwrap();
        let packet = Packet { named: Some(named), ..Packet::default() };
        let back = tasks.echoPacket(&packet).unwrap().named.unwrap();
        let extension = back.as_binder().get_extension().unwrap().expect("an extension");
        assert_eq!(extension.into_interface::<dyn INamed>().unwrap().name().unwrap(), "extension");
    }
}

struct Ours(&'static str);

impl Interface for Ours {}

impl INamed for Ours {
    fn name(&self) -> BinderResult<String> {
        Ok(self.0.to_owned())
    }
}
