//! State and timers between watch, ledger and victims.
//!
//! * [`limits`](self::limits): a limit comes, changes, goes;
//! * [`inherit`](self::inherit): what a daemon that was killed has left;
//! * [`charge`](self::charge): what an account holds, and how large its processes are by that;
//! * [`arm`](self::arm): above the soft limit a victim is kept ready;
//! * [`strike`](self::strike): at the hard limit it dies, by the notifier's hand or ours;
//! * [`herd`](self::herd), [`bomb`](self::bomb): who dies with it;
//! * [`aftermath`](self::aftermath): until its memory is back and the next one may die.
//!
//! * [`reconfigure`](self::reconfigure): a new configuration while everything runs;
//! * [`newcomers`](self::newcomers): ordinary users come and go;
//! * [`promises`](self::promises): what the coordinator of leases reads and tells;
//! * [`machine`](self::machine): without any limit, when the machine itself runs short;
//! * [`cgroups`](self::cgroups), [`cgroup_strike`](self::cgroup_strike): limits of cgroups and sessions.
//!
//! Four things make the killer look: the notifier, a timer that trusts nothing and scans, the machine's
//! own state, a request.

mod aftermath;
mod arm;
mod bomb;
mod cgroup_strike;
mod cgroups;
mod charge;
mod herd;
mod inherit;
mod limits;
mod machine;
mod newcomers;
mod promises;
mod reconfigure;
mod strike;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use control::oomd::{Status, Trigger, UserLimit};
use memory_ledger::{
    Account, AccountId, Comm, Growth, KillRate, Ledger, Margin, Phase, Process, ProcessId, Reading,
    Rules, Sake, Uid,
};
use memory_watch::{Backend, Event, ProcessSample, Watch};
use reclaim::Reaper;
use rustix::event::epoll;

use crate::account_ref::to_ref;
use crate::clock::{NS_PER_MS, monotonic_ns, until};
use crate::own_words::OwnWords;
use crate::records::Records;
use crate::shrink::Shrinker;
use crate::stances::Stances;
use crate::tell::teller::Near;
use aftermath::Dying;
use arm::Armed;
use cgroups::CgroupWatch;
use machine::MachineWatch;
use newcomers::Newcomers;
use strike::Crossing;

/// How often is scanned while a user is above its soft limit, milliseconds: the interval of the
/// published timer.
const ALERT_SCAN_MS: u64 = 200;
/// How often otherwise, milliseconds: half the time over which growth counts.
const CALM_SCAN_MS: u64 = 2_000;
/// With very many processes less often: calm scans take a thousandth of one CPU at the most.
const CALM_SCAN_SHARE: u64 = 1_000;
/// Room made beforehand, processes: a scan in need should not have to allocate.
const PROCESSES: usize = 8192;
/// Room made beforehand, events of one wake-up.
const EVENTS: usize = 1024;

/// epoll's words; victims have numbers of their own, from 1 on.
const WATCH: u64 = 0;
const REAPER: u64 = u64::MAX;

/// The heart of the daemon.
pub struct Killer {
    watch: Box<dyn Watch>,
    reaper: Reaper,
    epoll: OwnedFd,
    ledger: Ledger,
    records: Records,
    armed: BTreeMap<AccountId, Armed>,
    machine: Option<MachineWatch>,
    cgroups: CgroupWatch,
    margin: Option<Margin>,
    shrinker: Option<Shrinker>,
    stances: Stances,
    own_words: OwnWords,
    growth: Growth,
    kill_rate: KillRate,
    /// Of whose sake it was said that too many die, while they do.
    too_many: BTreeSet<Sake>,
    dying: Vec<Dying>,
    /// The number of the latest victim.
    last_token: u64,
    newcomers: Newcomers,
    /// Users over their limit of whom nobody can be killed: said once.
    helpless: BTreeSet<AccountId>,
    /// Users whose latch was taken at the last scan though we know of no victim.
    odd_latches: BTreeSet<AccountId>,
    protected: Vec<u32>,
    /// Whom how much was promised, bytes.
    entitled: BTreeMap<ProcessId, u64>,
    /// Users that have crossed their soft limit and whose leases were not cut yet.
    pressed: BTreeSet<AccountId>,
    page_bytes: u64,
    next_scan_ns: u64,
    // Kept for their room.
    events: Vec<Event>,
    samples: Vec<ProcessSample>,
    processes: Vec<Process>,
}

impl Killer {
    /// Nobody is limited yet.
    pub fn new(watch: Box<dyn Watch>, reaper: Reaper) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd, word| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(word), epoll::EventFlags::IN)
        };
        add(watch.events_fd(), WATCH)?;
        add(reaper.as_fd(), REAPER)?;
        Ok(Self {
            watch,
            reaper,
            epoll,
            ledger: Ledger::default(),
            records: Records::default(),
            armed: BTreeMap::new(),
            machine: None,
            cgroups: CgroupWatch::new(),
            margin: None,
            shrinker: None,
            stances: Stances::new(Rules::default()),
            own_words: OwnWords::default(),
            growth: Growth::with_room(PROCESSES),
            kill_rate: KillRate::default(),
            too_many: BTreeSet::new(),
            dying: Vec::new(),
            last_token: 0,
            newcomers: Newcomers::new(),
            helpless: BTreeSet::new(),
            odd_latches: BTreeSet::new(),
            protected: vec![std::process::id()],
            entitled: BTreeMap::new(),
            pressed: BTreeSet::new(),
            page_bytes: rustix::param::page_size() as u64,
            next_scan_ns: 0,
            events: Vec::with_capacity(EVENTS),
            samples: Vec::with_capacity(PROCESSES),
            processes: Vec::with_capacity(PROCESSES),
        })
    }

    /// What an administrator says of processes. To be called before limits are set.
    pub fn obey(&mut self, rules: Rules) {
        self.stances = Stances::new(rules);
    }

    /// Whoever holds idle memory is asked for it from now on, when a user nears its limit or the machine its end.
    pub fn shrink_first(&mut self, shrinker: Shrinker) {
        self.shrinker = Some(shrinker);
    }

    fn shrink(&self) {
        self.shrinker.iter().for_each(Shrinker::shrink);
    }

    /// Soft limits that nobody sets leave this margin from now on; without one, a tenth.
    pub fn set_margin(&mut self, margin: Option<Margin>) {
        self.margin = margin;
    }

    /// The soft limit for a hard one for which none is set, where a margin was measured.
    pub fn soft_bytes(&self, hard_bytes: u64) -> Option<u64> {
        self.margin.map(|margin| margin.soft_bytes(hard_bytes))
    }

    /// What watches memory.
    pub fn watch(&self) -> &dyn Watch {
        self.watch.as_ref()
    }

    /// Goes on with the decisions that are remembered. To be called first.
    pub fn remember(&mut self, records: Records) {
        self.records = records;
    }

    /// Limits stay in force when the daemon ends, as far as the kernel can enforce them.
    pub fn leave_limits_behind(&mut self) {
        self.watch.leave_behind();
    }

    /// The decisions so far.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The same, for whoever adds to them.
    pub fn records_mut(&mut self) -> &mut Records {
        &mut self.records
    }

    /// The accounts.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The killer's part of the daemon's status.
    pub fn status(&self, degraded: &[String]) -> Status {
        let notifier = match self.watch.backend() {
            Backend::Bpf => "bpf",
            Backend::ProcPolling => "proc",
        };
        let limited_users = self.ledger.accounts().len() as u32;
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            notifier: notifier.to_owned(),
            attached: limited_users > 0,
            limited_users,
            limited_cgroups: self.cgroups.accounts.all().len() as u32,
            kills: self.records.kills(),
            given_back_bytes: self.shrinker.as_ref().map_or(0, Shrinker::given_bytes),
            leaseholders: 0,
            refused: 0,
            degraded: degraded
                .iter()
                .cloned()
                .chain(self.newcomers.lost())
                .chain(self.cgroups.lost())
                .collect(),
        }
    }

    /// The same for people, in a line.
    pub fn in_a_line(&self) -> String {
        let (users, kills) = (self.ledger.accounts().len(), self.records.kills());
        let how = match self.watch.backend() {
            Backend::Bpf => "BPF notifier",
            Backend::ProcPolling => "reading /proc",
        };
        format!("{how}, users with a limit: {users}, kills since start: {kills}")
    }

    /// Limits with fresh accounts, of one or of all.
    pub fn limits(&mut self, only: Option<AccountId>) -> Vec<UserLimit> {
        for account in self.accounts() {
            self.read(account);
        }
        let wanted = |account: &&Account| only.is_none_or(|only| account.id == only);
        let peak = |id| self.watch.usage(id).map_or(0, |it| it.peak_pages * self.page_bytes);
        let describe = |account: &Account| UserLimit {
            account: to_ref(account.id),
            group: self.group_name(account.id),
            cgroup: None,
            members: self.members(account.id),
            counts: account.limit().count().unusual_names(),
            hard_bytes: account.limit().hard_bytes(),
            soft_bytes: account.limit().soft_bytes(),
            used_bytes: account.reading().used_bytes,
            dying_bytes: account.reading().dying_bytes,
            peak_bytes: peak(account.id),
            leased_bytes: 0,
            leaseholders: 0,
            source: account.source().as_str().to_owned(),
        };
        self.ledger.accounts().iter().filter(wanted).map(describe).collect()
    }

    /// The account that this user's processes are charged to, if there is one: its group's, or its own.
    pub fn account_of(&self, user: Uid) -> AccountId {
        self.ledger.groups().account_of(user)
    }

    /// It has a limit.
    pub fn is_limited(&self, account: AccountId) -> bool {
        match account {
            AccountId::User(_) | AccountId::Group(_) => self.ledger.account(account).is_some(),
            AccountId::Cgroup(id) => self.cgroups.accounts.get(id).is_some(),
        }
    }

    /// What a group is called; `None` for a user.
    pub fn group_name(&self, account: AccountId) -> Option<String> {
        self.ledger.groups().get(account).map(|group| group.name.clone())
    }

    /// The uids of a group; none of a user.
    fn members(&self, account: AccountId) -> Vec<u32> {
        let group = self.ledger.groups().get(account);
        group.map_or(Vec::new(), |group| group.uids.iter().map(|user| user.0).collect())
    }

    fn accounts(&self) -> Vec<AccountId> {
        self.ledger.accounts().iter().map(|account| account.id).collect()
    }

    /// Takes over the watch's present view of a user.
    fn read(&mut self, account: AccountId) -> Option<Phase> {
        let usage = self.watch.usage(account)?;
        let reading = Reading {
            used_bytes: usage.pages * self.page_bytes,
            dying_bytes: usage.dying_pages * self.page_bytes,
            at_ns: monotonic_ns(),
        };
        self.ledger.read(account, reading)
    }

    /// Looks at all processes, into `self.processes`. On failure the list is empty.
    fn look_at_processes(&mut self) {
        self.processes.clear();
        if let Err(error) = self.watch.processes(&mut self.samples) {
            tracing::warn!(
                "cannot list processes: {error}; nobody can be chosen until it works again"
            );
            return;
        }
        let (page_bytes, ledger) = (self.page_bytes, &self.ledger);
        let convert = |sample: &ProcessSample| {
            let account = charge::account_of(ledger, sample);
            let (rss_bytes, swap_bytes) = charge::sizes(ledger, account, sample, page_bytes);
            Process {
                id: ProcessId { pid: sample.tgid, start_time: sample.start_time_ns },
                uid: sample.uid,
                account,
                rss_bytes,
                swap_bytes,
                comm: Comm::new(&sample.comm),
                // The watch leaves kernel threads out.
                kernel_thread: false,
                exiting: sample.exiting,
                parent_pid: sample.parent_tgid,
                group: sample.group,
                session_leader: sample.session_leader,
                oom_score_adj: sample.oom_score_adj,
                ..Process::default()
            }
        };
        self.processes.extend(self.samples.iter().map(convert));
        for process in &mut self.processes {
            process.exiting |= self.dying.iter().any(|dying| dying.id == process.id);
        }
        let now_ns = monotonic_ns();
        self.stances.apply(&mut self.processes, now_ns);
        self.growth.look(&mut self.processes, now_ns);
        self.spare_the_entitled();
    }

    fn correct_accounts(&mut self) {
        if let Err(error) = self.watch.reconcile() {
            tracing::warn!("cannot correct the accounts: {error}; trying again with the next scan");
        }
    }

    /// Does all that is due. To be called when the fd is readable or the deadline has passed.
    pub fn dispatch(&mut self) {
        self.take_events();
        let Self { reaper, dying, .. } = self;
        reaper.drain(|token, done| {
            if let Some(dying) = dying.iter_mut().find(|dying| dying.token == token) {
                dying.helped(done);
            }
        });
        self.advance();
        self.look_at_machine();
        self.look_at_cgroups();
        self.look_for_newcomers();
        if self.needs_scans() && monotonic_ns() >= self.next_scan_ns {
            self.scan();
        }
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        self.watch.drain(&mut |event| events.push(event));
        // Who can be killed at once is killed before anything else is looked at.
        for event in &events {
            if let Event::HardCrossed { account, pages, time_ns, killed: None, .. } = *event
                && self.armed.contains_key(&account)
            {
                let crossing = Crossing { bytes: pages * self.page_bytes, time_ns };
                self.strike(account, Trigger::Notifier, Some(crossing));
            }
        }
        for event in &events {
            self.take_event(*event);
        }
        self.events = events;
    }

    fn take_event(&mut self, event: Event) {
        tracing::debug!(?event, "the notifier says");
        match event {
            Event::SoftCrossed { account, .. } => {
                self.shrink();
                self.pressed.insert(account);
                self.read(account);
                self.warn(account);
                self.arm_or_disarm(account);
            }
            Event::SoftCleared { account, .. } => {
                self.read(account);
                self.arm_or_disarm(account);
            }
            Event::HardCrossed { account, pages, time_ns, killed, .. } => {
                let crossing = Crossing { bytes: pages * self.page_bytes, time_ns };
                match killed {
                    Some(killed) => self.adopt(account, killed, crossing),
                    None => drop(self.strike(account, Trigger::Notifier, Some(crossing))),
                }
            }
        }
    }

    fn warn(&mut self, account: AccountId) {
        let Some(limited) = self.ledger.account(account) else { return };
        let (used, hard) = (limited.reading().used_bytes, limited.limit().hard_bytes());
        let members = match (account, self.ledger.groups().get(account)) {
            (_, Some(group)) => group.uids.clone(),
            (account, None) => account.user().into_iter().collect(),
        };
        let group = self.group_name(account);
        self.records.near_limit(Near {
            account,
            group,
            cgroup: None,
            members,
            used_bytes: used,
            hard_bytes: hard,
        });
    }

    fn scan_soon(&mut self) {
        let soon = monotonic_ns() + ALERT_SCAN_MS * NS_PER_MS;
        self.next_scan_ns = self.next_scan_ns.min(soon);
    }

    fn needs_scans(&self) -> bool {
        self.machine.is_some()
            || !self.ledger.accounts().is_empty()
            || !self.cgroups.accounts.all().is_empty()
    }

    /// The timer's look: trusts nothing that was heard.
    fn scan(&mut self) {
        let begun_ns = monotonic_ns();
        // Who grows is only known if everybody was looked at before.
        self.look_at_processes();
        self.forget_stuck();
        self.own_words.forget_gone(&self.processes);
        if !self.ledger.accounts().is_empty() {
            self.correct_accounts();
        }
        self.take_events();
        for account in self.accounts() {
            let phase = self.read(account);
            self.free_odd_latch(account);
            match phase {
                Some(Phase::Broken) => drop(self.strike(account, Trigger::Timer, None)),
                _ => self.arm_or_disarm(account),
            }
            if self.ledger.account(account).is_some_and(|it| !it.stuck().is_empty()) {
                self.forget_gone(account);
            }
        }
        let alert = self.accounts().into_iter().any(|account| self.is_near(account));
        let took_ns = monotonic_ns() - begun_ns;
        let pause_ns = if alert {
            self.shrink();
            ALERT_SCAN_MS * NS_PER_MS
        } else {
            (CALM_SCAN_MS * NS_PER_MS).max(took_ns * CALM_SCAN_SHARE)
        };
        self.next_scan_ns = monotonic_ns() + pause_ns;
    }

    /// Of the machine and of cgroups.
    fn forget_stuck(&mut self) {
        let processes = &self.processes;
        if processes.is_empty() {
            return;
        }
        if let Some(watch) = &mut self.machine {
            watch.stuck.retain(|id| processes.iter().any(|process| process.id == *id));
        }
        self.cgroups.accounts.forget_gone(processes);
    }

    fn forget_gone(&mut self, account: AccountId) {
        self.look_at_processes();
        if let Some(limited) = self.ledger.account_mut(account)
            && !self.processes.is_empty()
        {
            limited.forget_gone(&self.processes);
        }
    }

    /// When [`dispatch`](Killer::dispatch) is due though the fd is not readable.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let scan = self.needs_scans().then_some(self.next_scan_ns);
        let newcomers = self.newcomers.deadline_ns();
        let (machine, cgroups) = (self.machine_deadline_ns(), self.cgroups_deadline_ns());
        let deadlines = [scan, newcomers, machine, cgroups, self.aftermath_deadline_ns()];
        deadlines.into_iter().flatten().min()
    }

    /// Works until all these decisions have ended, or `patience_ns` is over. Nobody else's limit
    /// waits meanwhile, only the control socket does.
    pub fn settle(&mut self, records: &[u64], patience_ns: u64) {
        let end = monotonic_ns() + patience_ns;
        while self.dying.iter().any(|d| d.record.is_some_and(|record| records.contains(&record)))
            && monotonic_ns() < end
        {
            let deadline = self.next_deadline_ns().map_or(end, |deadline| deadline.min(end));
            let mut ready = [MaybeUninit::uninit(); 1];
            if let Err(errno) = epoll::wait(&self.epoll, &mut ready, Some(&until(deadline)))
                && errno != rustix::io::Errno::INTR
            {
                tracing::error!("epoll: {errno}; not waiting for the victims");
                return;
            }
            self.dispatch();
        }
    }
}

/// Readable when there is something to [`dispatch`](Killer::dispatch).
impl AsFd for Killer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
