//! Coordinates the detectors, the executor and kills in flight.
//!
//! A detector decides, the executor kills, and [`KillsInFlight`](memory_ledger::KillsInFlight)
//! determines when the next kill may follow. Checks are triggered by the notifier, by a timer that
//! scans without relying on events, by system memory pressure, and by requests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use control::RequestId;
use control::oomd::{HeldMemory, LimitLevel, Trigger, Why};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::cgroup::owner_of;
use memory_ledger::{
    AccountId, Action, Cause, CgroupId, Change, KillToken, KillsInFlight, Latch, Limit, NoVictim,
    Phase, Process, ProcessId, Refusal, Requester, Source, Thresholds, Uid,
};
use memory_watch::{Event, Inherited, NotifierError, ProcessSample, Watch};
use reclaim::Reaper;

use super::accounts::{Accounts, after_seconds};
use super::cgroup_limits::{CgroupLimits, Listing};
use super::default_limits::DefaultLimits;
use super::earlier_daemon::SavedLimit;
use super::executor::Executor;
use super::kill_plan::{Decision, KillPlan, Purpose, Unarmed, no_victim_record, observed_record};
use super::reconfigure::FirstGrace;
use super::scan_timer::{ScanTimer, Urgency};
use super::shared_state::{ProcessSnapshot, SharedState};
use super::system_monitor::{SystemLook, SystemMonitor};
use super::usage_monitor::UsageMonitor;
use super::user_backstop::UserBackstop;
use super::user_limits::{Alert, Crossing, UserLimits};
use crate::config::Enforcement;
use crate::config::ordinary_users;
use crate::names::GroupMembers;
use crate::oom::control::to_ref;
use crate::records::Records;
use crate::shrink::PerCpuLists;
use crate::shrink::{Relief, Shrinker};
use crate::usage::UsageWorker;
use crate::victim_details::VictimDetails;

/// Attempts with another victim if the chosen one has exited.
const TRIES: u32 = 3;
/// Preallocated capacity for the events of one wake-up.
const EVENTS: usize = 1024;

/// The error of setting or clearing a limit.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The requester lacks the permission.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The watch failed.
    #[error(transparent)]
    Watch(#[from] NotifierError),
}

/// What happens to limits when the daemon exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterExit {
    /// They end with the daemon.
    #[default]
    EndLimits,
    /// They stay in force, as far as the kernel can enforce them.
    KeepLimits,
}

/// The parts of an [`OomManager`].
pub struct OomManagerBuilder {
    watch: Box<dyn Watch>,
    reaper: Reaper,
    records: Records,
    shrinker: Option<Shrinker>,
    per_cpu_lists: Option<PerCpuLists>,
    usage: Option<UsageWorker>,
    details: VictimDetails,
    ordinary: RangeInclusive<Uid>,
    cgroup_root: Option<PathBuf>,
    after_exit: AfterExit,
    filed_limits: Vec<SavedLimit>,
}

impl OomManagerBuilder {
    /// Takes over these limits of the daemon before this one, where the kernel has none.
    pub fn filed_limits(self, filed_limits: Vec<SavedLimit>) -> Self {
        Self { filed_limits, ..self }
    }

    /// Continues with these decisions; the default is none.
    pub fn records(self, records: Records) -> Self {
        Self { records, ..self }
    }

    /// Requests idle memory from other daemons before any process is killed.
    pub fn shrinker(self, shrinker: Shrinker) -> Self {
        Self { shrinker: Some(shrinker), ..self }
    }

    /// Makes memory available as soon as a victim has freed it. By default the kernel does so in
    /// its own time.
    pub fn per_cpu_lists(self, lists: PerCpuLists) -> Self {
        Self { per_cpu_lists: Some(lists), ..self }
    }

    /// Measures actual usage. By default the sum of its processes is used for each account.
    pub fn usage_worker(self, worker: UsageWorker) -> Self {
        Self { usage: Some(worker), ..self }
    }

    /// Reads the details of victims. By default records are without them.
    pub fn victim_details(self, details: VictimDetails) -> Self {
        Self { details, ..self }
    }

    /// The uids of ordinary users.
    pub fn ordinary_users(self, ordinary: RangeInclusive<Uid>) -> Self {
        Self { ordinary, ..self }
    }

    /// The root directory of the cgroup hierarchy; by default it is detected.
    pub fn cgroup_root(self, root: &Path) -> Self {
        Self { cgroup_root: Some(root.to_owned()), ..self }
    }

    /// What happens to limits when the daemon exits.
    pub fn after_exit(self, after_exit: AfterExit) -> Self {
        Self { after_exit, ..self }
    }

    /// Builds the manager. No limit is in force yet.
    pub fn build(mut self) -> io::Result<OomManager> {
        let executor = Executor::new(self.reaper, self.watch.events_fd())?;
        if self.after_exit == AfterExit::KeepLimits {
            self.watch.leave_behind();
        }
        let mut snapshot = ProcessSnapshot::new();
        if let Some(root) = &self.cgroup_root {
            snapshot.cgroups.set_root(root);
        }
        let state = SharedState {
            accounts: Accounts::new(self.watch),
            usage: UsageMonitor::new(self.usage),
            snapshot,
            kills: KillsInFlight::default(),
            details: self.details,
        };
        Ok(OomManager {
            state,
            user_limits: UserLimits::default(),
            cgroup_limits: CgroupLimits::new(self.ordinary.clone()),
            system_monitor: SystemMonitor::default(),
            default_limits: DefaultLimits::new(self.ordinary),
            backstop: UserBackstop::default(),
            executor,
            records: self.records,
            relief: Relief::new(self.shrinker, self.per_cpu_lists),
            timer: ScanTimer::default(),
            events: Vec::with_capacity(EVENTS),
            filed_limits: self.filed_limits.into_iter().map(Inherited::from).collect(),
        })
    }
}

/// Coordinates the detectors, the executor and kills in flight.
pub struct OomManager {
    pub(super) state: SharedState,
    pub(super) user_limits: UserLimits,
    pub(super) cgroup_limits: CgroupLimits,
    pub(super) system_monitor: SystemMonitor,
    pub(super) default_limits: DefaultLimits,
    pub(super) backstop: UserBackstop,
    pub(super) executor: Executor,
    pub(super) records: Records,
    pub(super) relief: Relief,
    timer: ScanTimer,
    /// Buffer of events, kept to avoid allocations.
    events: Vec<Event>,
    /// Limits of the daemon before this one, by its file.
    pub(super) filed_limits: Vec<Inherited>,
}

impl OomManager {
    /// A builder with the required parts: a source of readings and events, and reaper threads.
    pub fn builder(watch: Box<dyn Watch>, reaper: Reaper) -> OomManagerBuilder {
        OomManagerBuilder {
            watch,
            reaper,
            records: Records::default(),
            shrinker: None,
            per_cpu_lists: None,
            usage: None,
            details: VictimDetails::default(),
            ordinary: ordinary_users::ORDINARY,
            cgroup_root: None,
            after_exit: AfterExit::default(),
            filed_limits: Vec::new(),
        }
    }

    /// The accounts of users and groups.
    pub fn accounts(&self) -> &Accounts {
        &self.state.accounts
    }

    /// Mutable access to the accounts, as readings need it.
    pub fn accounts_mut(&mut self) -> &mut Accounts {
        &mut self.state.accounts
    }

    /// The latest decisions and the counters.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Mutable access to the records.
    pub fn records_mut(&mut self) -> &mut Records {
        &mut self.records
    }

    /// All processes that the watch lists; empty if they cannot be listed.
    pub fn list_processes(&mut self) -> &[ProcessSample] {
        let SharedState { accounts, snapshot, .. } = &mut self.state;
        if let Err(error) = snapshot.list(accounts.watch()) {
            tracing::warn!("cannot list processes: {error}");
        }
        snapshot.samples()
    }

    /// Replaces the report of a daemon on memory that it holds for users' processes.
    pub fn set_held_memory(&mut self, connection: RequestId, report: Vec<HeldMemory>) {
        let changed = self.state.snapshot.held_memory.replace(connection, report);
        self.measure_users(changed);
    }

    /// Drops the reports of daemons whose connections have ended.
    pub fn drop_lost_reports(&mut self, is_connected: impl Fn(RequestId) -> bool) {
        let changed = self.state.snapshot.held_memory.retain(is_connected);
        self.measure_users(changed);
    }

    fn measure_users(&mut self, users: Vec<Uid>) {
        for uid in users {
            let account = self.accounts().ledger().groups().account_of(uid);
            self.state.usage.search(account);
        }
    }

    /// Sets the total memory leased to a process, bytes; `None`: it has no lease. While the process
    /// stays within its lease, other processes of its account are killed first.
    pub fn set_leased(&mut self, id: ProcessId, bytes: Option<u64>) {
        self.state.snapshot.set_leased(id, bytes);
    }

    /// What can be leased before the system reaches its soft level, bytes. `None`: that level is
    /// far, or the system is not monitored.
    pub fn system_room(&self) -> Option<u64> {
        self.system_monitor.room()
    }

    /// Accounts that have crossed their soft limit since the last call, or all accounts if the
    /// system is near its soft level: their unused leases are to be taken back.
    pub fn take_pressed(&mut self) -> BTreeSet<AccountId> {
        self.relief.take_pressed()
    }

    /// Starts monitoring the system by the files in these directories. Returns the degradation if
    /// the kernel has no pressure stall information.
    pub fn monitor_system(
        &mut self,
        proc: &Path,
        sys: &Path,
        thresholds: Thresholds,
    ) -> Result<Option<String>, headroom_linux::machine_memory::ReadError> {
        let lost = self.system_monitor.start(proc, sys, thresholds)?;
        self.executor.rate.set_limit(thresholds.kills);
        Ok(lost)
    }

    /// Sets the limit of a user or group. If it is exceeded already, it is enforced at once.
    pub fn set_limit(
        &mut self,
        account: AccountId,
        limit: Limit,
        source: Source,
        requester: Requester,
    ) -> Result<(), ChangeError> {
        let change = self.accounts().ledger().plan_set(account, limit, source, requester)?;
        Ok(self.apply_limit(change)?)
    }

    /// Clears the limit of a user or group, or only the layer that the user itself set.
    pub fn clear_limit(
        &mut self,
        account: AccountId,
        requester: Requester,
    ) -> Result<(), ChangeError> {
        let change = self.accounts().ledger().plan_clear(account, requester)?;
        Ok(self.apply_limit(change)?)
    }

    /// Applies a change of limits. If it lowers the limit in force below the usage, that stays in
    /// force for `grace_s` seconds, and the user is notified.
    pub fn apply_with_grace(
        &mut self,
        change: Change,
        grace_s: u32,
        requester: Requester,
    ) -> Result<(), NotifierError> {
        self.state.accounts.refresh_if_polling();
        self.state.accounts.read(change.account);
        let until_ns = after_seconds(grace_s);
        let ledger = self.accounts().ledger();
        let change = ledger.with_grace(change, (grace_s > 0).then_some(until_ns), requester);
        let before = ledger.account(change.account).and_then(|it| it.layers().grace());
        let (account, grace) = (change.account, change.layers().grace());
        self.apply_limit(change)?;
        if grace.is_some() && grace != before {
            self.warn_of_grace(account);
        }
        Ok(())
    }

    /// Notifies an account's users of the limit that will be in force after its grace, if it has
    /// one.
    pub(super) fn warn_of_grace(&mut self, account: AccountId) {
        let warning = self.state.accounts.lowered_limit(account);
        warning.into_iter().for_each(|warning| self.records.near_limit(warning));
    }

    /// Applies a change of limits.
    pub(super) fn apply_limit(&mut self, change: Change) -> Result<(), NotifierError> {
        let account = change.account;
        let limit = change.limit();
        let SharedState { accounts, usage, snapshot, kills, .. } = &mut self.state;
        if limit.is_none() {
            self.backstop.follow(account, None);
            self.user_limits.forget(account);
            usage.forget(account);
            kills.forget_account(account);
            return accounts.apply(change, snapshot.rules());
        }
        let first = accounts.ledger().accounts().is_empty();
        accounts.apply(change, snapshot.rules())?;
        self.backstop.follow(account, limit);
        // The memory that the account holds already may be shared, or may be missing in its sum.
        usage.search(account);
        if first {
            self.timer.scan_now();
        }
        self.user_limits.forget_no_victim(account);
        match self.state.accounts.read(account) {
            Some(Phase::Broken) => {
                self.enforce_limit(account, Alert::by(Trigger::LimitSet));
            }
            _ => self.rearm(account),
        }
        Ok(())
    }

    /// Handles everything that is due. Must be called when the fd is readable, or when the deadline
    /// has passed.
    pub fn dispatch(&mut self) {
        self.take_events();
        self.follow_kills();
        self.measure();
        self.check_system();
        self.check_cgroups();
        self.apply_default_limits(None);
        if self.needs_scans() && self.timer.is_due() {
            self.scan();
        }
    }

    pub(super) fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        self.state.accounts.watch_mut().drain(&mut |event| events.push(event));
        // Kills that can be carried out at once take precedence over all other work.
        for event in &events {
            if let Event::HardCrossed { account, pages, time_ns, killed: None, .. } = *event
                && self.user_limits.is_armed(account)
            {
                let crossing = self.crossing(pages, time_ns);
                let trigger = Trigger::Notifier;
                self.enforce_limit(account, Alert { trigger, crossing: Some(crossing) });
            }
        }
        for event in &events {
            self.take_event(*event);
        }
        self.events = events;
    }

    /// Corrects accounts by finished measurements, enforces their limits, and starts the
    /// measurements that are due.
    fn measure(&mut self) {
        if let Some(held) = self.state.usage.take_held_files() {
            self.state.snapshot.set_open_files(held);
        }
        let SharedState { accounts, usage, snapshot, .. } = &mut self.state;
        for account in usage.apply_measurements(accounts, snapshot) {
            let crossing = self.user_limits.take_unconfirmed(account);
            match self.state.accounts.read(account) {
                Some(Phase::Broken) => {
                    self.enforce_limit(account, Alert::by(crossing.unwrap_or(Trigger::Timer)));
                }
                _ => {
                    if crossing.is_some() {
                        self.records.count_refuted_crossing();
                    }
                    self.rearm(account);
                }
            }
        }
        let SharedState { accounts, usage, snapshot, kills, .. } = &mut self.state;
        let due = usage.due_measurements(accounts, kills);
        if due.is_empty() {
            return;
        }
        let begun_ns = monotonic_ns();
        if let Err(error) = snapshot.list(accounts.watch()) {
            tracing::warn!("cannot list processes: {error}; accounts count in full");
            usage.cancel_orders(&due);
            return;
        }
        usage.send_orders(due, accounts, snapshot, kills);
        usage.set_listing_ns(monotonic_ns() - begun_ns);
    }

    /// Readable when a measurement has ended: [`dispatch`](Self::dispatch) is due.
    pub fn measured_fd(&self) -> Option<BorrowedFd<'_>> {
        self.state.usage.events_fd()
    }

    fn crossing(&self, pages: u64, time_ns: u64) -> Crossing {
        Crossing { bytes: pages * self.state.accounts.page_bytes(), time_ns }
    }

    fn take_event(&mut self, event: Event) {
        self.state.usage.follow(event.account());
        tracing::debug!(?event, "event of the notifier");
        match event {
            Event::SoftCrossed { account, .. } => {
                self.relief.shrink();
                self.relief.press([account]);
                self.state.accounts.read(account);
                self.warn(account, LimitLevel::Soft);
                self.rearm(account);
                self.signal_at_soft(account);
            }
            Event::SoftCleared { account, .. } => {
                self.state.accounts.read(account);
                self.rearm(account);
            }
            Event::HardCrossed { account, pages, time_ns, killed: None, .. } => {
                let crossing = self.crossing(pages, time_ns);
                let trigger = Trigger::Notifier;
                self.enforce_limit(account, Alert { trigger, crossing: Some(crossing) });
            }
            Event::HardCrossed { account, pages, time_ns, killed: Some(killed), .. } => {
                let crossing = self.crossing(pages, time_ns);
                let state = &mut self.state;
                let plan = self.user_limits.plan_of_kernel(account, killed, crossing, state);
                if let Some(plan) = plan {
                    self.execute(plan);
                }
            }
        }
    }

    /// Arms a victim for an account near its limit, and disarms any other account.
    pub(super) fn rearm(&mut self, account: AccountId) {
        if !self.state.accounts.is_near(account) {
            self.user_limits.disarm(account, &mut self.state);
            self.user_limits.forget_no_victim(account);
            return;
        }
        self.timer.scan_soon();
        if let Err(why) = self.user_limits.arm(account, &mut self.state) {
            tracing::debug!(%account, "no victim to arm: {why}");
        }
    }

    /// Sends SIGTERM to the armed victim of an account above its soft limit, if its limit says so.
    fn signal_at_soft(&mut self, account: AccountId) {
        let Some(plan) = self.user_limits.plan_at_soft(account, &mut self.state) else { return };
        if self.observes() {
            self.observe(plan);
        } else {
            self.execute(plan);
        }
    }

    /// Kills a process of the account if its limit is exceeded and no kill is in flight for it.
    /// Returns the id of the decision, which may be that no process can be killed. The reading of a
    /// cgroup must be fresh.
    pub(super) fn enforce_limit(&mut self, account: AccountId, alert: Alert) -> Option<u64> {
        for _ in 0..TRIES {
            let decision = match account {
                AccountId::Cgroup(id) => {
                    self.cgroup_limits.plan(id, alert.trigger, &mut self.state)
                }
                AccountId::User(_) | AccountId::Group(_) => {
                    self.user_limits.plan(account, alert, &mut self.state)
                }
            };
            match decision {
                Decision::Nothing => return None,
                Decision::Retry => {}
                Decision::Kill(plan) if self.observes() => return self.observe(plan),
                Decision::Kill(plan) => {
                    if let Some(record) = self.execute(plan) {
                        return Some(record);
                    }
                }
                Decision::NoVictim(why) => {
                    return match account {
                        AccountId::Cgroup(id) => {
                            self.record_no_victim_in_cgroup(id, alert.trigger, &why)
                        }
                        AccountId::User(_) | AccountId::Group(_) => {
                            self.record_no_victim(account, alert.trigger, &why)
                        }
                    };
                }
            }
        }
        None
    }

    /// Records that no process can be killed; once, until something changes.
    fn record_no_victim(
        &mut self,
        account: AccountId,
        trigger: Trigger,
        why: &Unarmed,
    ) -> Option<u64> {
        if !self.user_limits.is_news(account) {
            return None;
        }
        let SharedState { accounts, snapshot, .. } = &self.state;
        let considered = snapshot.processes().iter().filter(|it| it.account == account).count();
        let it = accounts.ledger().account(account)?;
        Some(self.records.add(Why {
            group: accounts.group_name(account),
            considered: considered as u32,
            rule: Cause::Growing.to_string(),
            ..no_victim_record(it, trigger, why.to_string())
        }))
    }

    /// Whether kills are only observed.
    fn observes(&self) -> bool {
        self.state.accounts.enforcement() == Enforcement::Observe
    }

    /// Records a kill that is not carried out; once, until the shortage is over.
    fn observe(&mut self, plan: KillPlan) -> Option<u64> {
        let is_news = match &plan.purpose {
            Purpose::Limit(account) => self.user_limits.is_news(*account),
            Purpose::Cgroup(scope) => self.cgroup_limits.is_news(scope.id),
            Purpose::System => true,
        };
        is_news.then(|| self.records.add(observed_record(plan)))
    }

    /// Carries out a kill. `None`: the victim could not be signalled, or the kernel program has
    /// killed meanwhile.
    fn execute(&mut self, plan: KillPlan) -> Option<u64> {
        let payer = plan.payer.account;
        if !matches!(plan.purpose, Purpose::Limit(_)) {
            // No victim is armed for it: the thread reads while this one sends the signal.
            self.state.details.request(&plan.choice.victim);
        }
        let victims = plan.choice.victims();
        let bytes = victims.map(Process::freed_bytes).fold(0, u64::saturating_add);
        let record = self.executor.execute(plan, &mut self.state, &mut self.records)?;
        self.user_limits.forget_no_victim(payer);
        self.system_monitor.credit(bytes);
        Some(record)
    }

    /// Advances the state of all victims and acts on the results.
    fn follow_kills(&mut self) {
        self.executor.step(&mut self.state.kills);
        if self.awaits_account() {
            self.state.accounts.refresh_if_polling();
        }
        self.read_awaited();
        self.act_on_kills();
        // If an account does not show yet that the memory is back, its reading may be wrong.
        if self.state.kills.is_in_doubt() {
            self.state.accounts.reconcile();
        }
        self.read_awaited();
        self.act_on_kills();
    }

    fn awaits_account(&self) -> bool {
        let to_read = self.state.kills.accounts_to_read(monotonic_ns());
        to_read.iter().any(|account| !matches!(account, AccountId::Cgroup(_)))
    }

    /// Reads the accounts whose usage shows whether a victim's memory is back.
    fn read_awaited(&mut self) {
        for account in self.state.kills.accounts_to_read(monotonic_ns()) {
            if let AccountId::Cgroup(id) = account {
                self.cgroup_limits.read_awaited(id, &mut self.state);
                continue;
            }
            self.state.accounts.read(account);
            match self.state.accounts.ledger().account(account) {
                Some(it) => {
                    let limit_bytes = it.limit().hard_bytes();
                    self.state.kills.read(account, it.reading(), limit_bytes);
                }
                None => self.state.kills.forget_account(account),
            }
        }
    }

    fn act_on_kills(&mut self) {
        while let Some(action) = self.state.kills.poll(monotonic_ns()) {
            match action {
                Action::KillNow { token, latch, .. } => {
                    self.executor.kill_after_grace(token, latch, &mut self.state);
                }
                Action::Settled { kill, settled } => {
                    if self.system_monitor.has_killed() {
                        self.relief.collect_freed();
                    }
                    let outcome = self.executor.finish(&kill, settled);
                    self.state.snapshot.held_memory.exclude(kill.victim.pid);
                    if let Some(record) = kill.record {
                        self.records.describe(record, |victim| {
                            self.state.details.late(kill.victim, &victim.comm)
                        });
                        self.records.finish(record, outcome);
                    }
                    if kill.cgroup().is_some() {
                        self.cgroup_limits.look_soon();
                    }
                }
                Action::TracerHolds { token, account } => self.kill_tracer(token, account),
                Action::AccountFree { account: AccountId::Cgroup(_), .. } => {
                    self.cgroup_limits.look_soon();
                }
                Action::AccountFree { account, latch, record } => {
                    self.free_account(account, latch, record);
                }
            }
        }
    }

    /// Kills the tracer that prevents a victim from exiting.
    fn kill_tracer(&mut self, token: KillToken, account: AccountId) {
        let Some(victim) = self.state.kills.get(token).map(|kill| kill.victim) else { return };
        self.state.accounts.refresh_if_polling();
        if let Some(plan) = self.user_limits.plan_for_tracer(victim, account, &mut self.state) {
            self.execute(plan);
        }
    }

    /// Handles an account whose victims have exited, are stuck, or did not help. Another kill may
    /// be needed.
    fn free_account(&mut self, account: AccountId, latch: Latch, record: Option<u64>) {
        // The memory of the other members of a group is back as well: an old reading could cause an
        // unnecessary kill.
        self.state.accounts.refresh_if_polling();
        self.state.accounts.read(account);
        self.state.usage.on_victim_gone(account, &self.state.accounts);
        // Armed before the latch is released, so that the kernel program has the right victim.
        self.rearm(account);
        if latch == Latch::Taken {
            self.state.accounts.watch_mut().release_latch(account);
        }
        let trigger = record.and_then(|record| self.records.get(record)).map(|why| why.trigger);
        let of_hard_limit =
            |trigger: &Trigger| !trigger.is_of_the_machine() && *trigger != Trigger::SoftLimit;
        let trigger = trigger.filter(of_hard_limit);
        self.enforce_limit(account, Alert::by(trigger.unwrap_or(Trigger::Timer)));
    }

    fn check_system(&mut self) {
        if !self.state.kills.may_kill_for_system() {
            self.system_monitor.extend_credit();
        }
        let Some(look) = self.system_monitor.look() else { return };
        if look.near {
            self.relief.shrink();
            self.relief.press(self.state.accounts.ids());
        }
        let may_kill = self.search_files(look);
        let Some(trigger) = look.trigger.filter(|_| may_kill) else { return };
        if !trigger.pressure.can_wait() {
            self.state.kills.end_grace();
            self.act_on_kills();
        }
        if !self.state.kills.may_kill_for_system() || self.executor.rate.should_wait(&trigger) {
            return;
        }
        match self.system_monitor.plan(&trigger, &mut self.state) {
            Decision::Kill(plan) if self.observes() => {
                if self.system_monitor.is_first_plan() {
                    self.observe(plan);
                }
            }
            Decision::Kill(plan) => {
                if self.execute(plan).is_some() {
                    self.system_monitor.on_killed();
                }
            }
            Decision::NoVictim(why) => {
                if let Some(record) = self.system_monitor.no_victim_record(&trigger, &why) {
                    self.records.add(record);
                }
            }
            Decision::Nothing | Decision::Retry => {}
        }
    }

    /// Searches for memory files that processes hold open, if the system may be short of memory
    /// because of them. Returns whether a process may be killed before the search has ended.
    fn search_files(&mut self, look: SystemLook) -> bool {
        let SharedState { accounts, usage, snapshot, .. } = &mut self.state;
        if look.much_shared {
            usage.search_files(accounts, snapshot);
            return usage.knows_files();
        }
        usage.end_file_search();
        snapshot.set_open_files(BTreeMap::new());
        true
    }

    pub(super) fn check_cgroups(&mut self) {
        let begun_ns = monotonic_ns();
        if !self.cgroup_limits.begin_look(begun_ns, &self.state) {
            return;
        }
        let mut listing = Listing::Needed;
        for id in self.cgroup_limits.ids() {
            let look = self.cgroup_limits.read(id, &mut listing, &mut self.state);
            let Some(look) = look else { continue };
            if look.crossed {
                self.relief.shrink();
                if let Some(near) = self.cgroup_limits.near_limit(id) {
                    self.records.near_limit(near);
                }
            }
            if look.phase == Phase::Broken {
                self.enforce_limit(AccountId::Cgroup(id), Alert::by(Trigger::Timer));
            } else {
                self.cgroup_limits.forget_no_victim(id);
            }
        }
        self.cgroup_limits.end_look(begun_ns);
    }

    fn record_no_victim_in_cgroup(
        &mut self,
        id: CgroupId,
        trigger: Trigger,
        why: &Unarmed,
    ) -> Option<u64> {
        if !self.cgroup_limits.is_news(id) {
            return None;
        }
        let reason = match why {
            Unarmed::NoVictim(NoVictim::NoProcess) => {
                "there is no process in the cgroup".to_owned()
            }
            why => why.to_string(),
        };
        let it = self.cgroup_limits.get(id)?;
        let owner = owner_of(it.path()).map_or(AccountId::Cgroup(id), AccountId::User);
        Some(self.records.add(Why {
            account: to_ref(owner),
            cgroup: Some(it.path().to_owned()),
            considered: self.state.snapshot.processes().len() as u32,
            ..no_victim_record(it.account(), trigger, reason)
        }))
    }

    /// Applies the default limit to users that are new, and removes it from those that are gone.
    /// `grace`: of users that were there before the daemon.
    pub(super) fn apply_default_limits(&mut self, grace: Option<&FirstGrace>) {
        for change in self.default_limits.due_changes(&mut self.state) {
            let Some(uid) = change.account.user() else { continue };
            let applied = match grace {
                Some(grace) => grace.apply(self, change),
                None => self.apply_limit(change),
            };
            self.default_limits.on_applied(uid, applied);
        }
    }

    /// Collects users that have a process, if they are needed.
    pub fn collect_owners(&mut self, members: GroupMembers) {
        self.default_limits.collect_owners(members);
    }

    /// Users that were found to have a process since the last call, each of them once.
    pub fn take_owners(&mut self) -> Vec<Uid> {
        self.default_limits.take_owners()
    }

    fn needs_scans(&self) -> bool {
        self.system_monitor.thresholds().is_some()
            || !self.accounts().ledger().accounts().is_empty()
            || !self.cgroup_limits.ids().is_empty()
    }

    /// Scans all processes and accounts without relying on reported events.
    fn scan(&mut self) {
        let begun_ns = monotonic_ns();
        // Growth is the difference between two scans of all processes.
        self.state.refresh_processes();
        let SharedState { accounts, snapshot, kills, .. } = &mut self.state;
        if !snapshot.processes().is_empty() {
            kills.forget_gone(snapshot.processes());
        }
        snapshot.forget_gone();
        if !accounts.ledger().accounts().is_empty() {
            accounts.reconcile();
        }
        self.take_events();
        for account in self.state.accounts.ids() {
            let phase = self.state.accounts.read(account);
            if self.state.accounts.crosses_warning(account) {
                self.warn(account, LimitLevel::Warn);
            }
            self.end_grace(account);
            if phase > Some(Phase::Within) {
                self.state.usage.follow(account);
            }
            self.free_orphaned_latch(account);
            let enforced = match phase {
                Some(Phase::Broken) => self.enforce_limit(account, Alert::by(Trigger::Timer)),
                _ => None,
            };
            // While a kill waits for a measurement, the processes change as well.
            if enforced.is_none() {
                self.rearm(account);
                self.signal_at_soft(account);
            }
        }
        let accounts = &self.state.accounts;
        let near = accounts.ids().into_iter().any(|account| accounts.is_near(account));
        if near {
            self.relief.shrink();
        }
        self.timer.scanned(begun_ns, if near { Urgency::Alert } else { Urgency::Calm });
    }

    fn warn(&mut self, account: AccountId, level: LimitLevel) {
        if let Some(near) = self.state.accounts.near_limit(account, level) {
            self.records.near_limit(near);
        }
    }

    /// Puts a lowered limit in force whose grace is over, or that the usage has come below.
    fn end_grace(&mut self, account: AccountId) {
        let over = self.accounts().ledger().plan_end_of_grace(account, monotonic_ns());
        if let Some(change) = over
            && let Err(error) = self.apply_limit(change)
        {
            tracing::error!(%account, "cannot put the lowered limit in force: {error}");
        }
    }

    /// Releases a latch whose kill by the kernel program was not reported, since an event can be
    /// lost.
    fn free_orphaned_latch(&mut self, account: AccountId) {
        let SharedState { accounts, kills, .. } = &mut self.state;
        if kills.is_orphaned(account, accounts.latch(account)) {
            tracing::warn!(%account, "the event of a kill by the notifier was lost");
            accounts.watch_mut().release_latch(account);
        }
    }

    /// When [`dispatch`](Self::dispatch) is due even if the fd is not readable.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let kills = &self.state.kills;
        let deadlines = [
            self.needs_scans().then(|| self.timer.next_scan_ns()),
            self.default_limits.next_deadline_ns(),
            self.system_monitor.next_deadline_ns(),
            self.cgroup_limits.next_deadline_ns(),
            kills.next_deadline_ns(),
            self.state.usage.next_deadline_ns(&self.state.accounts),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Readable when there is something to [`dispatch`](OomManager::dispatch).
impl AsFd for OomManager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.executor.as_fd()
    }
}
