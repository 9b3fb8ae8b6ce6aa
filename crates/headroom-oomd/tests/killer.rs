//! The OOM manager with real processes and a watch that the test controls. A separate test program,
//! since it replaces the allocator to count allocations.

#[path = "../../../tests/contracts/watch.rs"]
mod contract;
mod support;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use control::lease::{LEASE_SOCKET_NAME, REPLY_BYTES, Reply, Request, Status, VERSION, page};
use control::oomd::{AccountRef, KilledBy, Outcome, Trigger};
use headroom_linux::clock::monotonic_ns;
use headroom_oomd::leases::Leases;
use headroom_oomd::oom::{OomManager, OomManagerBuilder, control as oom_control};
use headroom_oomd::shrink::Shrinker;
use headroom_oomd::usage::UsageWorker;
use memory_ledger::{
    AccountId, Comm, Count, Floors, Limit, ProcessId, RateLimit, Requester, Source, Thresholds, Uid,
};
use memory_watch::{
    Backend, Charge, Charged, Event, Killed, NotifierError, Precision, ProcessSample, Reconciled,
    SlotLimit, UnarmedKills, Usage, Watch,
};
use reclaim::{Reaper, Victim};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType, connect, recvmsg, send, socket,
};
use support::reclaimer::Reclaimer;
use test_support::allocations::{CountingAllocator, allocations};

const PATIENCE: Duration = Duration::from_secs(60);
const UID: Uid = Uid(62301);
const ACCOUNT: AccountId = AccountId::User(UID);
/// Hard limit in all tests, pages.
const HARD: u64 = 1000;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// State of the fake watch: its readings and events, and the calls of the manager.
#[derive(Default)]
struct State {
    usage: Usage,
    events: Vec<Event>,
    samples: Vec<ProcessSample>,
    armed: Option<ProcessId>,
    /// The kernel program kills while processes are listed.
    kills_during_scan: bool,
    releases: u32,
    /// Number of allocations when the last events were delivered.
    at_event: u64,
    /// Allocations from then until the victim's pages are counted, which is right after the signal.
    before_signal: Option<u64>,
}

struct FakeWatch {
    state: Arc<Mutex<State>>,
    fd: OwnedFd,
}

impl FakeWatch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Watch for FakeWatch {
    fn backend(&self) -> Backend {
        Backend::Bpf
    }

    fn charge(&mut self, _account: AccountId, _charge: Charge) -> Result<(), NotifierError> {
        Ok(())
    }

    fn set_limit(&mut self, _: AccountId, _: SlotLimit) -> Result<(), NotifierError> {
        Ok(())
    }

    fn clear_limit(&mut self, _: AccountId) -> Result<(), NotifierError> {
        Ok(())
    }

    fn usage(&self, _: AccountId) -> Option<Usage> {
        Some(self.state().usage)
    }

    fn arm(&mut self, _: AccountId, victim: Option<ProcessId>) -> Result<(), NotifierError> {
        self.state().armed = victim;
        Ok(())
    }

    fn set_unarmed_kills(&mut self, _: AccountId, _: UnarmedKills) -> Result<(), NotifierError> {
        Ok(())
    }

    fn set_precision(&mut self, _: AccountId, _: Precision) -> Result<(), NotifierError> {
        Ok(())
    }

    fn charged(&self, process: &ProcessSample) -> Result<Option<Charged>, NotifierError> {
        let state = self.state();
        let found = state.samples.iter().find(|sample| sample.id() == process.id());
        Ok(found.map(|sample| Charged {
            account: sample.uid.into(),
            pages: sample.counted_pages(Count::default()),
        }))
    }

    fn take_latch(&mut self, _: AccountId) -> Result<bool, NotifierError> {
        Ok(!std::mem::replace(&mut self.state().usage.latched, true))
    }

    fn count_dying(&mut self, _: AccountId, victim: ProcessId) -> Result<(), NotifierError> {
        let mut state = self.state();
        let found = state.samples.iter().find(|sample| sample.id() == victim);
        state.usage.dying_pages = found.map_or(0, |sample| sample.counted_pages(Count::default()));
        state.before_signal = Some(allocations() - state.at_event);
        Ok(())
    }

    fn release_latch(&mut self, _: AccountId) {
        let mut state = self.state();
        state.releases += 1;
        (state.usage.latched, state.usage.dying_pages) = (false, 0);
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn drain(&mut self, f: &mut dyn FnMut(Event)) {
        let events = std::mem::take(&mut self.state().events);
        for event in events {
            f(event);
        }
        self.state().at_event = allocations();
    }

    fn processes(&self, out: &mut Vec<ProcessSample>) -> Result<(), NotifierError> {
        let mut state = self.state();
        out.clone_from(&state.samples);
        state.usage.latched |= state.kills_during_scan;
        Ok(())
    }

    fn reconcile(&mut self) -> Result<Reconciled, NotifierError> {
        Ok(Reconciled::default())
    }
}

/// A process of the limited user. The fake watch determines its number of pages.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self(Command::new("sleep").arg("120").uid(UID.0).current_dir("/").spawn().unwrap())
    }

    fn sample(&self, pages: u64) -> ProcessSample {
        let mut comm = [0; 16];
        comm[..5].copy_from_slice(b"sleep");
        ProcessSample {
            tgid: self.0.id(),
            uid: UID,
            start_number: Victim::open(self.0.id()).unwrap().identity().start_number,
            anon_pages: pages,
            comm,
            ..ProcessSample::default()
        }
    }

    fn signal(&mut self) -> Option<i32> {
        self.0.try_wait().unwrap().and_then(|status| status.signal())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench {
    oom: OomManager,
    state: Arc<Mutex<State>>,
    processes: Vec<Process>,
}

impl Bench {
    /// Creates a limited user with processes of these sizes, pages; `None` without root.
    fn new(pages: &[u64]) -> Option<Self> {
        Self::with(pages, |builder| builder)
    }

    /// Creates a limited user with processes of these sizes, and configures the builder of the
    /// manager.
    fn with(
        pages: &[u64],
        build: impl FnOnce(OomManagerBuilder) -> OomManagerBuilder,
    ) -> Option<Self> {
        if !support::privileged() {
            return None;
        }
        let processes: Vec<Process> = pages.iter().map(|_| Process::start()).collect();
        let state = Arc::new(Mutex::new(State::default()));
        state.lock().unwrap().samples =
            processes.iter().zip(pages).map(|(process, pages)| process.sample(*pages)).collect();
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let watch = Box::new(FakeWatch { state: state.clone(), fd });
        let builder = OomManager::builder(watch, Reaper::start(1).unwrap());
        let mut oom = build(builder).build().unwrap();
        let limit = Limit::new(HARD * rustix::param::page_size() as u64, None).unwrap();
        oom.set_limit(ACCOUNT, limit, Source::Runtime, Requester::Root).unwrap();
        Some(Self { oom, state, processes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sets the reading of the account. A victim's pages are no longer part of it.
    fn uses(&self, pages: u64) {
        let mut state = self.state();
        (state.usage.pages, state.usage.dying_pages) = (pages, 0);
    }

    fn pid(&self, at: usize) -> u32 {
        self.processes[at].0.id()
    }

    /// Reports that the user has crossed its soft limit.
    fn cross_soft(&mut self, pages: u64) {
        self.uses(pages);
        self.state().events.push(Event::SoftCrossed {
            account: ACCOUNT,
            pages,
            time_ns: monotonic_ns(),
        });
        self.oom.dispatch();
    }

    fn cross_hard(&mut self, pages: u64, killed: Option<Killed>) {
        self.state().usage.pages = pages;
        // A victim can exit before the manager checks for the first time, while its pages are still
        // charged.
        if let Some(killed) = killed {
            self.state().usage.dying_pages = killed.pages;
        }
        let (time_ns, armed_was_stale) = (monotonic_ns(), false);
        let event =
            Event::HardCrossed { account: ACCOUNT, pages, time_ns, killed, armed_was_stale };
        self.state().events.push(event);
        self.oom.dispatch();
    }

    /// Dispatches events until the condition holds; panics with `what` after a timeout.
    fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            assert!(start.elapsed() < PATIENCE, "in {PATIENCE:?} it did not happen that {what}");
            self.oom.dispatch();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_watch_of_these_tests_fulfils_the_contract() {
    let sample = |tgid| ProcessSample { tgid, uid: UID, anon_pages: 5, ..Default::default() };
    let samples = vec![sample(10), sample(20)];
    let member = samples[1].id();
    let usage = Usage { pages: 10, ..Usage::default() };
    let state = Arc::new(Mutex::new(State { samples, usage, ..State::default() }));
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut watch = FakeWatch { state, fd };
    contract::check_latch(&mut watch, ACCOUNT, member);
    contract::check_charge(&mut watch, ACCOUNT, member);
}

#[test]
fn between_the_notifiers_event_and_the_signal_nothing_is_allocated() {
    let Some(mut bench) = Bench::new(&[500, 460]) else { return };
    bench.cross_soft(960);
    assert_eq!(bench.state().armed.map(|armed| armed.pid), Some(bench.pid(0)));
    bench.cross_hard(1001, None);
    assert_eq!(bench.state().before_signal, Some(0));
    bench.until("the victim dies", |bench| bench.processes[0].signal() == Some(9));
}

#[test]
fn the_record_of_a_kill_by_the_daemon_is_complete() {
    let Some(mut bench) = Bench::new(&[300, 500, 201]) else { return };
    bench.cross_soft(960);
    bench.cross_hard(1001, None);
    let why = bench.oom.records().get(1).unwrap().clone();
    assert_eq!((why.trigger, why.killer), (Trigger::Notifier, Some(KilledBy::Daemon)));
    assert_eq!(why.victim.as_ref().unwrap().pid, bench.pid(1));
    assert_eq!(why.victim.as_ref().unwrap().comm, "sleep");
    assert_eq!(why.runner_up.as_ref().unwrap().pid, bench.pid(0));
    assert_eq!((why.considered, why.account), (3, AccountRef::user(UID)));
    assert!(why.decide_micros.is_some());
    bench.uses(501);
    bench.until("its memory is back", |bench| {
        bench.oom.records().get(1).unwrap().outcome != Outcome::Dying
    });
    let Outcome::Reclaimed { bytes_back, .. } = bench.oom.records().get(1).unwrap().outcome else {
        panic!("{:?}", bench.oom.records().get(1));
    };
    assert_eq!(bytes_back, 500 * rustix::param::page_size() as u64);
    assert_eq!(bench.state().releases, 1);
}

#[test]
fn a_kill_by_the_notifier_is_followed_and_put_on_record() {
    let Some(mut bench) = Bench::new(&[600, 401]) else { return };
    bench.cross_soft(960);
    // The notifier killed another process than the one that the daemon had armed.
    bench.processes[1].0.kill().unwrap();
    let sample = bench.state().samples[1];
    let killed = Killed {
        id: sample.id(),
        uid: sample.uid,
        comm: Comm::new(&sample.comm),
        pages: 402,
        by: memory_watch::KilledBy::UnarmedSelf,
    };
    bench.state().usage.latched = true;
    bench.cross_hard(1001, Some(killed));
    let why = bench.oom.records().get(1).unwrap().clone();
    assert_eq!((why.killer, why.decide_micros), (Some(KilledBy::Kernel), Some(0)));
    assert_eq!(why.victim.as_ref().unwrap().pid, bench.pid(1));
    assert_eq!(why.victim.unwrap().rss_bytes, 402 * rustix::param::page_size() as u64);
    assert_eq!(why.runner_up.unwrap().pid, bench.pid(0));
    bench.uses(600);
    bench.until("its memory is back", |bench| bench.state().releases == 1);
    assert_eq!(bench.processes[0].signal(), None);
    assert_eq!(bench.oom.records().kills(), 1);
}

#[test]
fn a_victim_of_the_notifier_that_is_gone_is_recorded_with_its_name() {
    let Some(mut bench) = Bench::new(&[600, 401]) else { return };
    bench.cross_soft(960);
    bench.processes[1].0.kill().unwrap();
    let gone = bench.state().samples.remove(1);
    let killed = Killed {
        id: gone.id(),
        uid: gone.uid,
        comm: Comm::new(b"exited"),
        pages: 402,
        by: memory_watch::KilledBy::UnarmedSelf,
    };
    bench.cross_hard(1001, Some(killed));
    let victim = bench.oom.records().get(1).unwrap().victim.clone().unwrap();
    assert_eq!((victim.pid, victim.comm.as_str()), (gone.tgid, "exited"));
}

#[test]
fn a_crossing_reported_twice_causes_one_kill() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    bench.cross_soft(960);
    bench.cross_hard(1100, None);
    bench.cross_hard(1100, None);
    assert_eq!(bench.oom.records().kills(), 1);
    assert_eq!(
        oom_control::run(&mut bench.oom, Some(ACCOUNT)),
        [1],
        "the one that is dying already"
    );
    bench.until("the victim dies", |bench| bench.processes[0].signal() == Some(9));
    assert_eq!(bench.processes[1].signal(), None);
}

#[test]
fn an_outdated_crossing_causes_no_kill() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    bench.cross_soft(960);
    let (pages, time_ns) = (1001, monotonic_ns());
    let event = Event::HardCrossed {
        account: ACCOUNT,
        pages,
        time_ns,
        killed: None,
        armed_was_stale: false,
    };
    bench.state().events.push(event);
    bench.oom.dispatch();
    assert_eq!(bench.oom.records().kills(), 0);
    bench.oom.clear_limit(ACCOUNT, Requester::Root).unwrap();
    bench.cross_hard(2000, None);
    assert_eq!(bench.oom.records().kills(), 0, "the limit is gone");
}

#[test]
fn an_armed_process_that_is_gone_is_replaced_at_the_last_moment() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    bench.cross_soft(960);
    bench.processes[0].0.kill().unwrap();
    bench.processes[0].0.wait().unwrap();
    bench.state().samples.remove(0);
    bench.cross_hard(1001, None);
    bench.until("the other one dies", |bench| bench.processes[1].signal() == Some(9));
}

#[test]
fn a_kill_by_the_notifier_during_the_choice_prevents_another_one() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    bench.state().kills_during_scan = true;
    bench.cross_hard(1001, None);
    assert!(bench.oom.records().get(1).is_none());
    assert!(bench.processes.iter_mut().all(|it| it.0.try_wait().unwrap().is_none()));
    bench.state().kills_during_scan = false;
    bench.state().usage.latched = false;
    bench.cross_hard(1001, None);
    bench.until("the larger one dies", |bench| bench.processes[0].signal() == Some(9));
}

#[test]
fn a_kill_of_the_only_process_by_the_notifier_is_no_lack_of_a_victim() {
    let Some(mut bench) = Bench::new(&[]) else { return };
    bench.state().kills_during_scan = true;
    bench.cross_hard(1001, None);
    assert!(bench.oom.records().get(1).is_none());
}

#[test]
fn the_lack_of_a_victim_is_reported_once() {
    let Some(mut bench) = Bench::new(&[]) else { return };
    bench.cross_hard(1001, None);
    bench.cross_hard(1001, None);
    let records = bench.oom.records().latest(9, None);
    assert_eq!(records.len(), 1);
    assert!(
        matches!(&records[0].outcome, Outcome::NoVictim { reason } if reason.contains("no process"))
    );
    assert_eq!(oom_control::run(&mut bench.oom, None).len(), 1, "and again on request");
}

#[test]
fn a_latch_without_a_reported_kill_is_released_by_the_timer() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    bench.state().usage.latched = true;
    bench.cross_soft(1001);
    bench.until("the latch is freed", |bench| bench.state().releases == 1);
    bench.until("a process is killed after all", |bench| bench.processes[0].signal() == Some(9));
    let why = bench.oom.records().get(1).unwrap();
    assert_eq!((why.trigger, why.decide_micros), (Trigger::Timer, None));
}

#[test]
fn the_record_of_a_victim_outlives_its_limit() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    bench.cross_soft(960);
    bench.cross_hard(1100, None);
    bench.oom.clear_limit(ACCOUNT, Requester::Root).unwrap();
    bench.until("the record is closed", |bench| {
        matches!(bench.oom.records().get(1).unwrap().outcome, Outcome::Reclaimed { .. })
    });
}

/// Memory of the system in `Bench::has_available`, KiB.
const MACHINE_KIB: u64 = 100_000;

impl Bench {
    /// Sets the available memory of the system, KiB. The soft level is a tenth of the total.
    fn has_available(&mut self, proc: &Path, available_kib: u64) {
        self.has_available_for(proc, available_kib, Thresholds::default());
    }

    fn has_available_for(&mut self, proc: &Path, available_kib: u64, thresholds: Thresholds) {
        write_meminfo(proc, available_kib, 0);
        self.oom.monitor_system(proc, proc, thresholds).unwrap();
        self.oom.dispatch();
    }
}

fn write_meminfo(proc: &Path, available_kib: u64, shmem_kib: u64) {
    let rest = MACHINE_KIB - available_kib - shmem_kib;
    let text = format!(
        "MemTotal: {MACHINE_KIB} kB\nMemAvailable: {available_kib} kB\nAnonPages: {rest} kB\n\
         Shmem: {shmem_kib} kB\n"
    );
    std::fs::write(proc.join("meminfo"), text).unwrap();
}

/// Writes the total time of full stalls and the number of reclaims since boot.
fn write_stalls(proc: &Path, stalled_ms: u64, reclaims: u64) {
    std::fs::create_dir_all(proc.join("pressure")).unwrap();
    let stalled = format!("full avg10=0.00 avg60=0.00 avg300=0.00 total={}\n", stalled_ms * 1000);
    std::fs::write(proc.join("pressure/memory"), stalled).unwrap();
    std::fs::write(proc.join("vmstat"), format!("pgscan_kswapd {reclaims}\n")).unwrap();
}

/// Adds a process of the user that holds a written memfd of this size open; it has few pages.
fn add_holder(bench: &mut Bench, kib: usize) -> usize {
    let memfd = rustix::fs::memfd_create("held", rustix::fs::MemfdFlags::empty()).unwrap();
    let written = rustix::io::write(&memfd, &vec![1u8; kib << 10]);
    assert_eq!(written, Ok(kib << 10));
    let owner = rustix::fs::Uid::from_raw(UID.0);
    rustix::fs::fchown(&memfd, Some(owner), None).unwrap();
    let holder = Process::start();
    let sample = holder.sample(20);
    bench.state().samples.push(sample);
    bench.processes.push(holder);
    bench.processes.len() - 1
}

#[test]
fn the_process_that_holds_a_memfd_is_killed_for_the_machine_first() {
    let build = |builder: OomManagerBuilder| builder.usage_worker(UsageWorker::start().unwrap());
    let Some(mut bench) = Bench::with(&[700, 500, 400], build) else { return };
    let culprit = add_holder(&mut bench, 12_000);
    let proc = tempfile::tempdir().unwrap();
    // 5,100 KiB are missing up to the soft level; the others have 6,400 KiB.
    write_meminfo(proc.path(), 4_900, 60_000);
    bench.oom.monitor_system(proc.path(), proc.path(), Thresholds::default()).unwrap();
    bench.until("it is killed", |bench| bench.oom.records().kills() > 0);
    let victim = bench.oom.records().get(1).unwrap().victim.clone().unwrap();
    assert_eq!(victim.pid, bench.pid(culprit));
    assert!(victim.unmapped_bytes >= 12_000 << 10, "{victim:?}");
    bench.until("it dies", |bench| bench.processes[culprit].signal() == Some(9));
    write_meminfo(proc.path(), 17_000, 48_000);
    for _ in 0..100 {
        bench.oom.dispatch();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bench.oom.records().kills(), 1);
}

#[test]
fn the_process_with_large_page_tables_is_killed_for_the_machine_first() {
    let Some(mut bench) = Bench::new(&[700, 500, 400, 10]) else { return };
    bench.state().samples[3].page_table_bytes = 20 << 20;
    let proc = tempfile::tempdir().unwrap();
    bench.has_available(proc.path(), 4_900);
    let records = bench.oom.records();
    assert_eq!(
        (records.kills(), records.get(1).unwrap().victim.clone().unwrap().pid),
        (1, bench.pid(3))
    );
}

#[test]
fn a_leaseholder_is_killed_for_the_machine_before_processes_of_other_users() {
    let Some(mut bench) = Bench::new(&[3000, 900, 600]) else { return };
    {
        let mut state = bench.state();
        state.samples[1].uid = Uid(62_302);
        state.samples[2].uid = Uid(62_303);
    }
    let holder = bench.state().samples[0].id();
    bench.oom.set_leased(holder, Some(1 << 30));
    let proc = tempfile::tempdir().unwrap();
    bench.has_available(proc.path(), 4_900);
    let records = bench.oom.records();
    assert_eq!(records.kills(), 1);
    assert_eq!(records.get(1).unwrap().victim.clone().unwrap().pid, bench.pid(0));
}

/// Has all programs wait for memory, most of the time, until a window of stalls is over. Returns
/// the number of kills.
fn kills_while_stalled(reclaims: fn(u64) -> u64) -> Option<u64> {
    let mut bench = Bench::new(&[3000, 900, 600])?;
    let proc = tempfile::tempdir().unwrap();
    let thresholds = Thresholds { stall_ms: 200, ..Thresholds::default() };
    write_meminfo(proc.path(), 20_000, 0);
    write_stalls(proc.path(), 0, 0);
    bench.oom.monitor_system(proc.path(), proc.path(), thresholds).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(800) {
        let ms = begun.elapsed().as_millis() as u64;
        write_stalls(proc.path(), ms * 9 / 10, reclaims(ms));
        bench.oom.dispatch();
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(bench.oom.records().kills())
}

#[test]
fn a_container_that_thrashes_below_its_own_limit_costs_no_process_of_the_machine() {
    let Some(killed) = kills_while_stalled(|_| 0) else { return };
    assert_eq!(killed, 0);
    let of_the_machine = kills_while_stalled(|ms| ms);
    assert!(of_the_machine.is_some_and(|kills| kills > 0), "{of_the_machine:?}");
}

#[test]
fn when_too_many_have_died_for_the_machine_only_the_hard_level_kills() {
    let Some(mut bench) = Bench::new(&[1600, 500]) else { return };
    let proc = tempfile::tempdir().unwrap();
    let kills = RateLimit { most: 0, within_ms: 60_000 };
    let thresholds = Thresholds { kills, ..Thresholds::default() };
    bench.has_available_for(proc.path(), 8_000, thresholds);
    assert_eq!(bench.oom.records().kills(), 0, "below the soft level");
    bench.has_available_for(proc.path(), 4_000, thresholds);
    assert_eq!(bench.oom.records().kills(), 1, "below the hard level");
    let why = bench.oom.records().get(1).unwrap();
    assert!(why.rule.contains("more than 0 victims within 60000 ms"), "{:?}", why.rule);
}

#[test]
fn where_all_processes_together_are_too_small_to_end_a_shortage_none_dies() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    let proc = tempfile::tempdir().unwrap();
    // 6,000 KiB are missing up to the soft level; the processes have only 4,400 KiB.
    bench.has_available(proc.path(), 4_000);
    assert_eq!(bench.oom.records().kills(), 0);
    bench.has_available(proc.path(), 4_900);
    assert_eq!(bench.oom.records().kills(), 0, "below the hard level");
    let why = bench.oom.records().get(1).unwrap();
    assert!(why.victim.is_none() && why.trigger.is_of_the_machine(), "{why:?}");
    assert!(matches!(&why.outcome, Outcome::NoVictim { reason } if reason.contains("would not")));
    assert_eq!(bench.oom.records().get(2), None, "once a minute");
    let degraded = |bench: &Bench| oom_control::status(&bench.oom, &[]).degraded.join(" ");
    assert!(degraded(&bench).contains("no process is killed"), "{}", degraded(&bench));
    bench.has_available(proc.path(), 90_000);
    assert_eq!(degraded(&bench), "");
    let floors = Floors::Ignore;
    bench.has_available_for(proc.path(), 4_900, Thresholds { floors, ..Thresholds::default() });
    assert_eq!(bench.oom.records().kills(), 1);
}

#[test]
fn a_limit_is_enforced_above_the_kill_rate_and_the_record_notes_it() {
    let Some(mut bench) = Bench::new(&[600, 500]) else { return };
    let proc = tempfile::tempdir().unwrap();
    let kills = RateLimit { most: 0, within_ms: 60_000 };
    bench.has_available_for(proc.path(), 90_000, Thresholds { kills, ..Thresholds::default() });
    bench.cross_soft(960);
    bench.cross_hard(1100, None);
    bench.until("the victim dies", |bench| bench.processes[0].signal() == Some(9));
    let why = bench.oom.records().get(1).unwrap();
    assert!(why.rule.contains("more than 0 victims within 60000 ms"), "{:?}", why.rule);
}

/// The test process as a client of leases.
struct Leaseholder {
    leases: Leases,
    socket: OwnedFd,
    page: Option<OwnedFd>,
}

impl Leaseholder {
    fn connect(bench: &mut Bench, folder: &Path) -> Self {
        let own = ProcessSample { tgid: std::process::id(), uid: UID, ..ProcessSample::default() };
        bench.state().samples.push(own);
        let closers = owners::client_files::Closers::for_connections();
        let leases = Leases::start(&folder.join("oomd.sock"), closers, &mut bench.oom).unwrap();
        let path = SocketAddrUnix::new(folder.join(LEASE_SOCKET_NAME)).unwrap();
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &path).unwrap();
        let mut client = Self { leases, socket, page: None };
        // The connection is accepted before its first request is served.
        client.leases.dispatch(&mut bench.oom);
        let hello = Request::Hello { version: VERSION, spent: 0, unspent: 0, base: 0 };
        let reply = client.request(bench, hello);
        assert_eq!((reply.status, reply.limited), (Status::Done, true));
        client
    }

    fn request(&mut self, bench: &mut Bench, request: Request) -> Reply {
        send(&self.socket, &request.encode(), SendFlags::empty()).unwrap();
        self.leases.dispatch(&mut bench.oom);
        let mut packet = [0; REPLY_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut packet)];
        recvmsg(&self.socket, &mut slices, &mut files, RecvFlags::DONTWAIT).unwrap();
        for message in files.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                self.page = fds.next();
            }
        }
        Reply::decode(&packet).unwrap()
    }

    fn grow(&mut self, bench: &mut Bench, need: u64, wish: u64) -> Reply {
        self.request(bench, Request::Grow { need, wish, wait_ms: 0 })
    }

    /// Memory that may be taken without a request, bytes.
    fn balance(&self) -> u64 {
        let mut word = [0; 8];
        let at = page::BALANCE as u64;
        rustix::io::pread(self.page.as_ref().unwrap(), &mut word, at).unwrap();
        u64::from_ne_bytes(word)
    }
}

#[test]
fn a_machine_near_its_soft_level_revokes_unused_leases_and_grants_none_that_would_reach_it() {
    let Some(mut bench) = Bench::new(&[10]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = Leaseholder::connect(&mut bench, folder.path());
    bench.has_available(folder.path(), 16_000);
    let page = 4096;
    let plenty = client.grow(&mut bench, page, 100 * page);
    assert_eq!((plenty.status, plenty.granted), (Status::Done, 100 * page));
    assert_eq!(client.balance(), 100 * page);

    bench.has_available(folder.path(), 10_400);
    client.leases.dispatch(&mut bench.oom);
    assert_eq!(client.balance(), 0, "it had not used them");
    let little = client.grow(&mut bench, 50 * page, 100 * page);
    assert_eq!((little.status, little.granted), (Status::Done, 50 * page), "no more than it needs");
    let much = client.grow(&mut bench, 101 * page, 101 * page);
    assert_eq!((much.status, much.granted), (Status::Short, 0), "400 KiB are left");

    bench.has_available(folder.path(), 90_000);
    let again = client.grow(&mut bench, 101 * page, 101 * page);
    assert_eq!((again.status, again.granted), (Status::Done, 101 * page));
    assert_eq!(bench.oom.records().kills(), 0);
}

#[test]
fn near_the_soft_level_idle_memory_is_reclaimed_before_any_kill() {
    let proc = tempfile::tempdir().unwrap();
    let socket = proc.path().join("binderd.sock");
    let reclaimer = Reclaimer::start(&socket, 100);
    let shrinker = Shrinker::start(vec![socket]).unwrap();
    let Some(mut bench) = Bench::with(&[600, 500], |it| it.shrinker(shrinker)) else { return };
    bench.has_available(proc.path(), 16_000);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(reclaimer.idle_pages(), 100, "the soft level is far");
    bench.has_available(proc.path(), 14_000);
    bench.until("idle memory is back", |_| reclaimer.idle_pages() == 0);
    bench.until("it is on the account", |bench| {
        oom_control::status(&bench.oom, &[]).given_back_bytes == 100 * 4096
    });
    assert_eq!(bench.oom.records().kills(), 0);
    assert_eq!(bench.processes[0].signal(), None);
}
