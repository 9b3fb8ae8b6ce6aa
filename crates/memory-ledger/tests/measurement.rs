//! Measurements of an account against a model of its actual usage and of the sum of its processes.

use memory_ledger::measurement::{OLDEST_MS, PATIENCE_MS, RUNNING_PATIENCE_MS};
use memory_ledger::{
    AccountId, ControllerUse, Count, Demand, GroupId, Limit, Measurement, Measurements, Need,
    Order, Sum, SumState, SumUpdates, Uid, UsageSource, Victims, controller_use,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const ACCOUNT: AccountId = AccountId::User(Uid(1000));

fn limit() -> Limit {
    Limit::new(400 * MIB, None).unwrap()
}

/// A measurement of proportional set sizes that covers all memory of the account.
fn by_pss(difference_bytes: i64) -> Measurement {
    Measurement {
        account: ACCOUNT,
        difference_bytes,
        unlisted_bytes: 0,
        used_unlisted_bytes: 0,
        unread_bytes: 0,
        source: UsageSource::Pss,
        cost_ns: MS,
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Private memory changes, MiB, signed.
    Grow(i64),
    /// A fork or a mapping: shared memory adds to the sum, MiB.
    Share(u64),
    /// Shared pages are written to (MiB): the sum does not change.
    Copy(u64),
    /// A process ends that had pages which others have as well, MiB.
    Exit(u64),
    /// Files and page tables change, MiB, signed.
    Hold(i64),
    /// Time passes, milliseconds; a running measurement ends.
    Pass(u64),
    /// Time passes, milliseconds; a running measurement does not end.
    Stall(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (-80i64..80).prop_map(Step::Grow),
        3 => (0u64..300).prop_map(Step::Share),
        1 => (0u64..200).prop_map(Step::Copy),
        1 => (0u64..200).prop_map(Step::Exit),
        1 => (-80i64..80).prop_map(Step::Hold),
        6 => (1u64..250).prop_map(Step::Pass),
        1 => (1u64..250).prop_map(Step::Stall),
    ]
}

/// An account, and a daemon that measures it.
#[derive(Default)]
struct World {
    measurements: Measurements,
    now_ns: u64,
    own: u64,
    shared: u64,
    held: u64,
    /// Unconfirmed bytes and correction, as in the notifier.
    unconfirmed: u64,
    correction: i64,
    running: Option<(Order, i64)>,
    /// Time since which the sum, or its unconfirmed part, requires measurements.
    stalled_ms: u64,
    measured_ns: u64,
}

impl World {
    fn actual(&self) -> u64 {
        self.own + self.held
    }

    fn sum(&self) -> Sum {
        Sum {
            summed_bytes: self.own + self.shared,
            unconfirmed_bytes: self.unconfirmed,
            correction_bytes: self.correction,
        }
    }

    fn need(&self) -> Need {
        let controller = ControllerUse::Excluded;
        Need { sum: self.sum(), limit: limit(), controller }
    }

    fn look(&mut self) {
        let (now_ns, need) = (self.now_ns, self.need());
        self.measurements.look(ACCOUNT, need.sum, need.limit, now_ns);
        let mut order = self.measurements.begin(ACCOUNT, need, now_ns);
        if self.measurements.idle_account(now_ns).is_some() {
            assert_eq!(order, None);
            order = self.measurements.begin_idle(ACCOUNT, need, now_ns);
        }
        if let Some(order) = order {
            assert!(self.running.is_none(), "one at a time");
            assert_eq!(order.summed_bytes, self.sum().summed_bytes);
            let actual = i64::try_from(self.actual()).unwrap();
            self.running = Some((order, actual - order.summed_bytes as i64));
        }
    }

    fn end_running(&mut self) {
        let Some((order, difference_bytes)) = self.running.take() else { return };
        let measurement = by_pss(difference_bytes);
        let summed_bytes = self.sum().summed_bytes;
        let correction =
            self.measurements.end(measurement, summed_bytes, limit(), self.now_ns).unwrap();
        assert!(correction.summed_bytes == order.summed_bytes);
        self.correction = correction.bytes;
        self.unconfirmed -= correction.unconfirmed_bytes;
        self.unconfirmed += correction.unlisted_bytes;
        assert!(correction.unlisted_bytes == 0 || correction.bytes >= 0, "{correction:?}");
        let lowest_trigger = limit().soft_bytes() + correction.bytes.min(0).unsigned_abs();
        let far = summed_bytes < limit().soft_bytes();
        assert!(!far || lowest_trigger < limit().hard_bytes(), "{correction:?}");
        self.measured_ns = self.now_ns;
    }

    fn play(&mut self, step: &Step) {
        let moved = |of: u64, mib: i64| of.saturating_add_signed(mib * MIB as i64);
        match *step {
            Step::Grow(mib) => self.own = moved(self.own, mib),
            Step::Share(mib) => {
                self.shared += mib * MIB;
                self.unconfirmed += mib * MIB;
            }
            Step::Copy(mib) => {
                let copied = self.shared.min(mib * MIB);
                self.shared -= copied;
                self.own += copied;
            }
            Step::Exit(mib) => self.shared -= self.shared.min(mib * MIB),
            Step::Hold(mib) => self.held = moved(self.held, mib),
            Step::Pass(ms) => {
                self.now_ns += ms * MS;
                self.stalled_ms = 0;
                self.end_running();
            }
            Step::Stall(ms) => {
                self.now_ns += ms * MS;
                self.stalled_ms += ms;
            }
        }
        self.look();
    }
}

proptest! {
    #[test]
    fn a_fork_causes_no_kill_while_measurements_arrive(
        mib in 1u64..390,
        children in 1u64..20,
        stall_ms in 0..PATIENCE_MS,
    ) {
        let mut world = World { own: mib * MIB, ..World::default() };
        world.look();
        for _ in 0..children {
            world.play(&Step::Share(mib));
            let sum = world.sum();
            prop_assert!(!world.measurements.may_kill(ACCOUNT, sum, limit(), world.now_ns));
        }
        world.play(&Step::Stall(stall_ms));
        let sum = world.sum();
        prop_assert!(!world.measurements.may_kill(ACCOUNT, sum, limit(), world.now_ns));
        world.play(&Step::Pass(1));
        for _ in 0..20 {
            world.play(&Step::Pass(100));
            let sum = world.sum();
            prop_assert!(!world.measurements.may_kill(ACCOUNT, sum, limit(), world.now_ns));
        }
    }

    #[test]
    fn usage_above_the_limit_may_be_enforced_within_a_bounded_time(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::default();
        steps.iter().for_each(|step| world.play(step));
        world.own = world.own.max(limit().hard_bytes() + 10 * MIB);
        world.look();
        let begun_ns = world.now_ns;
        loop {
            let (sum, now_ns) = (world.sum(), world.now_ns);
            if world.measurements.may_kill(ACCOUNT, sum, limit(), now_ns) {
                break;
            }
            let waited = (now_ns - begun_ns) / MS;
            prop_assert!(waited <= OLDEST_MS + PATIENCE_MS, "{sum:?} after {waited} ms");
            world.play(&Step::Pass(10));
        }
    }

    #[test]
    fn usage_within_the_limit_that_stays_so_is_never_enforced_once_measured(
        steps in prop::collection::vec(step(), 0..60),
        mib in 0u64..390,
    ) {
        let mut world = World::default();
        steps.iter().for_each(|step| world.play(step));
        world.own = mib * MIB;
        world.held = 0;
        world.look();
        for _ in 0..20 {
            world.play(&Step::Pass(100));
        }
        let sum = world.sum();
        prop_assert!(!world.measurements.may_kill(ACCOUNT, sum, limit(), world.now_ns), "{sum:?}");
        if sum.summed_bytes >= limit().soft_bytes() {
            let error = sum.used_bytes().abs_diff(world.actual());
            prop_assert!(error <= limit().soft_bytes() / 64, "{sum:?} for {mib} MiB");
        }
    }

    #[test]
    fn far_from_the_limit_shared_pages_are_known_within_a_second(
        steps in prop::collection::vec(step(), 0..60),
        own in 0u64..180,
        shared in 0u64..180,
    ) {
        let mut world = World::default();
        steps.iter().for_each(|step| world.play(step));
        world.play(&Step::Pass(1));
        // A process ends, and others shrink or grow; then a fork.
        (world.own, world.held, world.shared) = (world.own.min(own * MIB), 0, 0);
        world.look();
        world.own = own * MIB;
        world.play(&Step::Share(shared));
        for _ in 0..8 {
            world.play(&Step::Pass(125));
        }
        let (sum, actual) = (world.sum(), world.actual());
        prop_assert!(sum.certain_bytes() <= actual, "{sum:?}");
        prop_assert!(actual - sum.certain_bytes() <= 64 << 10, "{sum:?} for {own} MiB");
        prop_assert!(sum.used_bytes() >= actual, "{sum:?}");
        let lowered = sum.correction_bytes.min(0).unsigned_abs();
        prop_assert!(lowered <= (limit().hard_bytes() - limit().soft_bytes()) / 4, "{sum:?}");
        for _ in 0..3 {
            world.play(&Step::Pass(1_000));
        }
        prop_assert!(world.sum().correction_bytes <= 0, "files that were closed");
        let begun = world.measured_ns;
        for _ in 0..8 {
            world.play(&Step::Pass(1_000));
        }
        prop_assert_eq!(world.measured_ns, begun, "nothing has changed");
    }

    #[test]
    fn without_an_answer_pages_count_in_full_after_a_bounded_time(mib in 210u64..390) {
        let mut world = World { own: mib * MIB, ..World::default() };
        world.play(&Step::Share(mib));
        let sum = world.sum();
        prop_assert!(!world.measurements.may_kill(ACCOUNT, sum, limit(), world.now_ns));
        let deadline = world.measurements.next_deadline_ns();
        prop_assert_eq!(deadline, Some(world.now_ns + RUNNING_PATIENCE_MS * MS));
        world.play(&Step::Stall(RUNNING_PATIENCE_MS));
        prop_assert!(world.measurements.may_kill(ACCOUNT, sum, limit(), world.now_ns));
    }
}

#[test]
fn memory_of_its_own_above_the_limit_needs_no_measurement() {
    let mut measurements = Measurements::default();
    let sum = Sum { summed_bytes: 401 * MIB, ..Sum::default() };
    assert!(measurements.may_kill(ACCOUNT, sum, limit(), 0));
    let shared = Sum { unconfirmed_bytes: 2 * MIB, ..sum };
    assert!(!measurements.may_kill(ACCOUNT, shared, limit(), 0));
    let corrected = Sum { correction_bytes: -2 * MIB as i64, ..sum };
    assert!(!measurements.may_kill(ACCOUNT, corrected, limit(), 0));
}

#[test]
fn an_account_far_below_its_limit_is_not_measured_any_more() {
    let mut world = World { own: 380 * MIB, ..World::default() };
    world.look();
    world.play(&Step::Pass(10));
    assert_eq!(world.measurements.accounts().count(), 1);
    world.own = 100 * MIB;
    world.play(&Step::Pass(300));
    world.play(&Step::Pass(300));
    assert_eq!((world.measurements.accounts().count(), world.correction), (0, 0));
}

#[test]
fn a_kill_waits_for_a_measurement_after_the_last_one_was_discarded() {
    let mut world = World { own: 380 * MIB, held: 150 * MIB, ..World::default() };
    let may_kill = |world: &mut World| {
        world.measurements.may_kill(ACCOUNT, world.sum(), limit(), world.now_ns)
    };
    world.look();
    world.play(&Step::Pass(1));
    assert!(may_kill(&mut world), "as measured");
    world.play(&Step::Stall(100));
    let before = world.running.expect("a measurement is due");
    world.measurements.discard(ACCOUNT, world.now_ns);
    assert!(!may_kill(&mut world));
    let measurement = by_pss(before.1);
    let sum = world.sum().summed_bytes;
    assert_eq!(world.measurements.end(measurement, sum, limit(), world.now_ns), None);
    assert!(!may_kill(&mut world), "it was begun before");
    world.running = None;
    world.look();
    world.play(&Step::Pass(1));
    assert!(may_kill(&mut world), "as measured again");
}

/// A measurement by the controller, from one sum to the next, that returns this difference, MiB.
fn measure_by_controller(
    measurements: &mut Measurements,
    sums: [u64; 2],
    difference: i64,
    now_ns: u64,
) -> Option<i64> {
    let [before, after] = sums.map(|mib| mib * MIB);
    let sum = Sum { summed_bytes: before, ..Sum::default() };
    let controller = ControllerUse::Allowed;
    measurements.search(ACCOUNT);
    let need = Need { sum, limit: limit(), controller };
    let order = measurements.begin(ACCOUNT, need, now_ns).unwrap();
    assert_eq!(order.controller, ControllerUse::Allowed);
    let source = UsageSource::Controller;
    let measurement = Measurement { source, ..by_pss(difference * MIB as i64) };
    let correction = measurements.end(measurement, after, limit(), now_ns);
    correction.map(|it| it.bytes / MIB as i64)
}

#[test]
fn a_search_is_repeated_until_a_measurement_counts() {
    let sum = Sum { summed_bytes: MIB, ..Sum::default() };
    let need = Need { sum, limit: limit(), controller: ControllerUse::Excluded };
    let demand = |measurements: &mut Measurements, now_ns| {
        measurements.begin(ACCOUNT, need, now_ns).map(|order| order.demand)
    };
    let mut measurements = Measurements::default();
    let end = |measurements: &mut Measurements, now_ns| {
        measurements.end(by_pss(0), MIB, limit(), now_ns).is_some()
    };
    measurements.search(ACCOUNT);
    assert_eq!(demand(&mut measurements, 0), Some(Demand::Unseen));
    // A victim's exit.
    measurements.discard(ACCOUNT, 0);
    assert!(!end(&mut measurements, 0));
    assert_eq!(demand(&mut measurements, 0), Some(Demand::Unseen));
    // No room in the worker's queue.
    measurements.cancel(ACCOUNT, 0);
    assert_eq!(measurements.next_deadline_ns(), Some(100 * MS), "the event loop does not spin");
    assert_eq!(demand(&mut measurements, 99 * MS), None);
    assert_eq!(demand(&mut measurements, 1_000 * MS), Some(Demand::Unseen));
    // After a measurement that has ended long ago, too.
    measurements.cancel(ACCOUNT, 1_000 * MS);
    assert_eq!(measurements.next_deadline_ns(), Some(1_100 * MS));
    assert_eq!(demand(&mut measurements, 1_100 * MS), Some(Demand::Unseen));
    // Growth during the measurement.
    measurements.search(ACCOUNT);
    assert!(end(&mut measurements, 1_100 * MS));
    assert_eq!(demand(&mut measurements, 2_000 * MS), Some(Demand::Unseen));
    assert!(end(&mut measurements, 2_000 * MS));
    assert_eq!(demand(&mut measurements, 4_000 * MS), None, "far from the limit");
}

#[test]
fn the_controllers_charge_corrects_the_sum_less_later_charges() {
    let mut measurements = Measurements::default();
    assert_eq!(measure_by_controller(&mut measurements, [380, 380], -100, 0), Some(-100));
    assert_eq!(measurements.source(ACCOUNT), UsageSource::Controller);
    let later = 1_000 * MS;
    assert_eq!(measure_by_controller(&mut measurements, [380, 383], 20, later), Some(17));
}

#[test]
fn a_charge_that_was_read_while_the_sum_moved_is_replaced_by_proportional_set_sizes() {
    for after in [300, 390] {
        let mut measurements = Measurements::default();
        assert_eq!(measure_by_controller(&mut measurements, [380, after], 50, 0), None);
        assert_eq!(measurements.next_deadline_ns(), Some(0), "at once");
        let sum = Sum { summed_bytes: 380 * MIB, ..Sum::default() };
        let controller = ControllerUse::Allowed;
        let need = Need { sum, limit: limit(), controller };
        let order = measurements.begin(ACCOUNT, need, 0).unwrap();
        assert_eq!(order.controller, ControllerUse::Excluded);
        assert!(measurements.end(by_pss(0), 390 * MIB, limit(), 0).is_some());
        // The next measurement may use the controller again.
        measure_by_controller(&mut measurements, [380, 380], 0, 1_000 * MS);
    }
}

#[test]
fn the_controller_measures_users_whose_sums_are_comparable_with_its_charge() {
    let sum = SumState { updates: SumUpdates::Immediate, victims: Victims::None };
    let count = Count::default();
    assert_eq!(controller_use(ACCOUNT, count, sum), ControllerUse::Allowed);
    let scanned = SumState { updates: SumUpdates::Periodic, ..sum };
    let dying = SumState { victims: Victims::Dying, ..sum };
    let group = GroupId::new(0).unwrap();
    let excluded = [
        controller_use(AccountId::Group(group), count, sum),
        controller_use(ACCOUNT, Count::of(["anon", "file"]), sum),
        controller_use(ACCOUNT, count, scanned),
        controller_use(ACCOUNT, count, dying),
    ];
    assert_eq!(excluded, [ControllerUse::Excluded; 4]);
}

#[test]
fn pages_of_a_fork_in_progress_stay_unconfirmed_for_a_bounded_time() {
    let mut measurements = Measurements::default();
    let sum = Sum { summed_bytes: 600 * MIB, unconfirmed_bytes: 300 * MIB, correction_bytes: 0 };
    let mut now_ns = 0;
    let may_kill = |measurements: &mut Measurements, unlisted_bytes, now_ns| {
        assert!(!measurements.may_kill(ACCOUNT, sum, limit(), now_ns));
        let controller = ControllerUse::Excluded;
        let need = Need { sum, limit: limit(), controller };
        measurements.begin(ACCOUNT, need, now_ns).unwrap();
        let measurement = Measurement { unlisted_bytes, ..by_pss(0) };
        let end = measurements.end(measurement, 600 * MIB, limit(), now_ns).unwrap();
        assert_eq!(end.unconfirmed_bytes, sum.unconfirmed_bytes);
        let sum = Sum { unconfirmed_bytes: end.unlisted_bytes, ..sum };
        measurements.may_kill(ACCOUNT, sum, limit(), now_ns)
    };
    while now_ns < PATIENCE_MS * MS {
        assert!(!may_kill(&mut measurements, 250 * MIB, now_ns));
        now_ns += 250 * MS;
    }
    assert!(measurements.may_kill(ACCOUNT, sum, limit(), now_ns));
    let mut measurements = Measurements::default();
    assert!(may_kill(&mut measurements, 0, now_ns), "all of them were measured");
}

#[test]
fn each_crossing_waits_for_itself() {
    let mut measurements = Measurements::default();
    let sum = |summed_mib: u64| Sum {
        summed_bytes: summed_mib * MIB,
        unconfirmed_bytes: 300 * MIB,
        correction_bytes: 0,
    };
    let controller = ControllerUse::Excluded;
    let need = |sum| Need { sum, limit: limit(), controller };
    assert!(!measurements.may_kill(ACCOUNT, sum(600), limit(), 0));
    measurements.begin(ACCOUNT, need(sum(600)), 0).unwrap();
    // Some of its processes have ended; their memory is being freed.
    assert!(measurements.begin(ACCOUNT, need(sum(100)), 900 * MS).is_none());
    let measurement = Measurement { unlisted_bytes: 300 * MIB, ..by_pss(0) };
    measurements.end(measurement, 600 * MIB, limit(), 900 * MS).unwrap();
    let again_ns = (RUNNING_PATIENCE_MS + 1_000) * MS;
    assert!(!measurements.may_kill(ACCOUNT, sum(600), limit(), again_ns));
}

#[test]
fn a_wait_ends_with_a_measurement_within_the_limit() {
    let mut measurements = Measurements::default();
    let sum = Sum { summed_bytes: 600 * MIB, unconfirmed_bytes: 300 * MIB, correction_bytes: 0 };
    assert!(!measurements.may_kill(ACCOUNT, sum, limit(), 0));
    let controller = ControllerUse::Excluded;
    let need = Need { sum, limit: limit(), controller };
    measurements.begin(ACCOUNT, need, 0).unwrap();
    // Most of the memory belongs to processes that were not read.
    let unlisted_bytes = 200 * MIB;
    let measurement = Measurement { unlisted_bytes, ..by_pss(-250 * MIB as i64) };
    measurements.end(measurement, 600 * MIB, limit(), MS).unwrap();
    let later = 2 * PATIENCE_MS * MS;
    let sum = Sum { correction_bytes: -150 * MIB as i64, ..sum };
    assert!(!measurements.may_kill(ACCOUNT, sum, limit(), later), "another crossing");
    assert!(measurements.may_kill(ACCOUNT, sum, limit(), later + PATIENCE_MS * MS));
}

#[test]
fn a_kill_waits_for_memory_of_exited_processes_while_it_falls() {
    // Memory of no process, MiB, every 400 ms.
    let last_wait = |unlisted: &[u64], used_of: fn(u64) -> u64| {
        let mut measurements = Measurements::default();
        let waits = unlisted.iter().enumerate().take_while(|(at, mib)| {
            let now_ns = *at as u64 * 400 * MS;
            let unlisted_bytes = **mib * MIB;
            let summed_bytes = 300 * MIB + unlisted_bytes;
            let sum = Sum { summed_bytes, unconfirmed_bytes: unlisted_bytes, correction_bytes: 0 };
            if measurements.may_kill(ACCOUNT, sum, limit(), now_ns) {
                return false;
            }
            let controller = ControllerUse::Excluded;
            let need = Need { sum, limit: limit(), controller };
            measurements.begin(ACCOUNT, need, now_ns).unwrap();
            let used_unlisted_bytes = used_of(unlisted_bytes);
            let measurement = Measurement { unlisted_bytes, used_unlisted_bytes, ..by_pss(0) };
            let end = measurements.end(measurement, summed_bytes, limit(), now_ns).unwrap();
            end.unlisted_bytes == unlisted_bytes
        });
        waits.count()
    };
    let falling = [800, 700, 600, 500, 450, 380, 330, 280, 240, 200];
    assert_eq!(last_wait(&falling, |_| 0), 10);
    assert_eq!(last_wait(&[800, 790, 780, 770, 760, 750], |_| 0), 3, "it hardly falls");
    assert_eq!(last_wait(&[800, 600, 600, 600, 600, 600], |_| 0), 4, "it falls no more");
    assert_eq!(last_wait(&falling, |bytes| bytes), 3, "other processes use it");
}

#[test]
fn after_a_kill_the_next_one_waits_for_a_measurement_of_what_was_added_meanwhile() {
    let sum = |summed: u64, unconfirmed: u64, correction: i64| Sum {
        summed_bytes: summed * MIB,
        unconfirmed_bytes: unconfirmed * MIB,
        correction_bytes: correction * MIB as i64,
    };
    let mut measurements = Measurements::default();
    let crossed = sum(900, 800, 0);
    assert!(!measurements.may_kill(ACCOUNT, crossed, limit(), 0));
    let (limit, controller) = (limit(), ControllerUse::Excluded);
    measurements.begin(ACCOUNT, Need { sum: crossed, limit, controller }, 0).unwrap();
    // Processes map 800 MiB of shared memory during the measurement.
    let measurement = Measurement { unlisted_bytes: 10 * MIB, ..by_pss(-480 * MIB as i64) };
    measurements.end(measurement, 1700 * MIB, limit, 1020 * MS).unwrap();
    assert!(measurements.may_kill(ACCOUNT, sum(1700, 810, -480), limit, 1021 * MS), "420 MiB");
    let without_victim = sum(1600, 810, -480);
    assert!(!measurements.may_kill(ACCOUNT, without_victim, limit, 1050 * MS));
    assert!(!measurements.may_kill(ACCOUNT, without_victim, limit, 2019 * MS));
    assert!(measurements.may_kill(ACCOUNT, without_victim, limit, 2020 * MS), "not measured");
}

#[test]
fn a_kill_waits_while_the_shared_memory_of_many_exiting_processes_is_freed() {
    // Fifty processes with 880 MiB of one file: freed by 2 % in each second.
    let mut measurements = Measurements::default();
    let killed = (0..40u64).find(|step| {
        let (now_ns, unlisted_bytes) = (step * 400 * MS, (44_000 - step * 352) * MIB);
        let summed_bytes = 300 * MIB + unlisted_bytes;
        let sum = Sum { summed_bytes, unconfirmed_bytes: unlisted_bytes, correction_bytes: 0 };
        if measurements.may_kill(ACCOUNT, sum, limit(), now_ns) {
            return true;
        }
        let (limit, controller) = (limit(), ControllerUse::Excluded);
        measurements.begin(ACCOUNT, Need { sum, limit, controller }, now_ns).unwrap();
        let measurement = Measurement { unlisted_bytes, ..by_pss(0) };
        measurements.end(measurement, summed_bytes, limit, now_ns).unwrap();
        false
    });
    assert_eq!(killed, None);
}

#[test]
fn accounts_far_from_their_limits_are_measured_in_turn_within_a_budget() {
    const ACCOUNTS: u32 = 20;
    const COST_NS: u64 = 2 * MS;
    let account = |uid: u32| AccountId::User(Uid(1000 + uid));
    let mut measurements = Measurements::default();
    measurements.set_listing_ns(MS);
    let (mut counts, mut now_ns) = ([0u32; ACCOUNTS as usize], 0);
    // Each forks all the time.
    let mut unconfirmed_bytes = MIB;
    while now_ns < 60_000 * MS {
        unconfirmed_bytes += MIB / 100;
        let sum = Sum { summed_bytes: 200 * MIB, unconfirmed_bytes, correction_bytes: 0 };
        let need = Need { sum, limit: limit(), controller: ControllerUse::Excluded };
        for uid in 0..ACCOUNTS {
            measurements.look(account(uid), sum, limit(), now_ns);
        }
        assert_eq!(measurements.accounts().count(), 0, "none is near its limit");
        while let Some(account) = measurements.idle_account(now_ns) {
            let order = measurements.begin_idle(account, need, now_ns).unwrap();
            assert_eq!(measurements.idle_account(now_ns), None, "one at a time");
            let AccountId::User(uid) = order.account else { panic!() };
            counts[(uid.0 - 1000) as usize] += 1;
            let cost_ns = COST_NS;
            let measurement = Measurement { account, cost_ns, ..by_pss(-(MIB as i64)) };
            measurements.end(measurement, sum.summed_bytes, limit(), now_ns).unwrap();
        }
        now_ns += 25 * MS;
    }
    let total: u32 = counts.iter().sum();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most - least <= 1, "{counts:?}");
    let cpu_ns = u64::from(total) * (COST_NS + MS);
    assert!(cpu_ns <= now_ns / 100 + COST_NS + MS && cpu_ns >= now_ns / 200, "{cpu_ns}");
    // A measurement that cannot begin, and an account that is gone, hold nobody up for long.
    let sum = Sum { summed_bytes: 200 * MIB, unconfirmed_bytes: 9 * MIB, correction_bytes: 0 };
    let need = Need { sum, limit: limit(), controller: ControllerUse::Excluded };
    let next_ns = measurements.next_deadline_ns().unwrap_or(now_ns).max(now_ns);
    measurements.look(account(0), sum, limit(), next_ns);
    let next_ns = measurements.next_deadline_ns().unwrap();
    let first = measurements.idle_account(next_ns).unwrap();
    measurements.begin_idle(first, need, next_ns).unwrap();
    measurements.cancel(first, next_ns);
    let next_ns = measurements.next_deadline_ns().unwrap().max(next_ns + 100 * MS);
    let second = measurements.idle_account(next_ns).unwrap();
    measurements.begin_idle(second, need, next_ns).unwrap();
    assert_eq!(measurements.idle_account(next_ns + 500 * MS), None);
    measurements.forget(second);
    assert!(measurements.idle_account(next_ns + 500 * MS).is_some());
}

#[test]
fn a_process_that_was_not_read_makes_no_memory_doubtful() {
    let end_with = |sum: Sum, measurement: Measurement| {
        let mut measurements = Measurements::default();
        measurements.follow(ACCOUNT);
        let need = Need { sum, limit: limit(), controller: ControllerUse::Excluded };
        measurements.begin(ACCOUNT, need, MS).unwrap();
        measurements.end(measurement, sum.summed_bytes, limit(), 2 * MS).unwrap()
    };
    let unread = Measurement {
        unlisted_bytes: 300 * MIB,
        unread_bytes: 300 * MIB,
        ..by_pss(-6 * MIB as i64)
    };
    let summed_bytes = 380 * MIB;
    let forked = Sum { summed_bytes, unconfirmed_bytes: 10 * MIB, correction_bytes: 0 };
    let end = end_with(forked, unread);
    assert_eq!((end.bytes, end.unlisted_bytes), (-6 * MIB as i64, 4 * MIB));
    // What was shared by an earlier measurement, and counts in full again.
    let shared = Sum { summed_bytes, unconfirmed_bytes: 0, correction_bytes: -50 * MIB as i64 };
    let end = end_with(shared, unread);
    assert_eq!((end.bytes, end.unlisted_bytes), (-6 * MIB as i64, 44 * MIB));
    // A fork in progress is doubtful in full.
    let in_progress = Measurement { unread_bytes: 290 * MIB, ..unread };
    let end = end_with(forked, in_progress);
    assert_eq!(end.unlisted_bytes, 10 * MIB);
}
