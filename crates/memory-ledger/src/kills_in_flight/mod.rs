//! All kills in flight: from the signal until the victim's memory is back and the next process may
//! be killed.
//!
//! One state machine for all accounts. Its inputs are the signals sent (by the daemon, or by the
//! kernel program, which kills first and reports later), the victims' progress, account readings
//! and time. [`KillsInFlight::poll`] returns the actions that are due.
//!
//! A kill blocks the next one for its account until its memory is back, or until the account's
//! usage without its exiting victims is over the limit and does not fall: no victim's exit delays a
//! kill that is needed even if all victims' memory comes back.
//!
//! Invariants:
//! * at most one kill is awaited per account. Further kills can be in flight for it (the rest of a
//!   group kill, a concurrent kill by the kernel program, kills that no longer block the account),
//!   and no further kill is started while one of them blocks;
//! * the kernel program's latch of an account is held from the first SIGKILL that the account
//!   awaits until no kill blocks the account;
//! * every kill settles, at the latest when its grace period is over.

use crate::account::{AccountId, Reading};
use crate::process::{Process, ProcessId};
use crate::{NS_PER_MS, NS_PER_SECOND};

/// Milliseconds that a victim may take before it counts as stuck, in addition to the time for its
/// size. Measured on a loaded machine: a starved victim took at most 1.8 s to exit once
/// `process_mrelease` had helped; a victim in an uninterruptible sleep never exits.
pub const KILL_GRACE_MS: u64 = 2_000;
/// Milliseconds that a victim may take longer since it was seen running, or since another victim of
/// its account exited: victims of one kill share the CPUs. A fork bomb of 640 took 4 s to exit on
/// two CPUs at half speed, a process with 500 MB of page tables 3.4 s at a quarter ...
pub const EXIT_GRACE_MS: u64 = 500;
/// ... and milliseconds that it may take longer in all. Who delays its exits gains no more.
pub const EXIT_GRACES_MS: u64 = 8_000;
/// Slowest exit that was measured (nice 19 beside a busy loop), bytes per second.
pub const SLOWEST_EXIT_BYTES_PER_SECOND: u64 = 490_000_000;
/// Milliseconds until an account has to show that an emptied victim's memory is back. One reading
/// shows it unless another process shares the victim's memory.
pub const ACCOUNT_SETTLE_MS: u64 = 100;
/// Milliseconds that an account's usage, excluding victims, has to stay over its limit before the
/// next kill may follow. If a victim grew since it was sampled, the difference counts as usage of
/// other processes until it falls; a starved exit shows progress within a few scheduler ticks.
pub const NO_FALL_MS: u64 = 20;
/// Usage counts as falling if it falls by this fraction of the excess over the limit within
/// [`NO_FALL_MS`]. Otherwise a page freed now and then would delay the next kill indefinitely.
const FALL_SHARE: u64 = 16;
/// Milliseconds that a tracer may hold a victim at its exit before the tracer is killed itself. A
/// debugger that only inspects the exit lets the victim go within one millisecond.
pub const HELD_MS: u64 = 200;
/// Milliseconds until an account is read again after its victim has exited and the account does not
/// show it.
const REREAD_MS: u64 = 5;

/// Victims that are looked at for a tracer at once.
const LOOKS: usize = 8;
/// Number of kills that are tracked without an allocation.
const ROOM: usize = 64;

/// Identifies a kill in flight. Tokens start at 1 and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KillToken(pub u64);

/// The process that sent the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The user-space daemon.
    Daemon,
    /// The BPF program, in a page fault. It took the account's latch with the kill.
    KernelProgram,
}

/// The signal that was sent to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGTERM; SIGKILL follows at `until_ns`.
    Terminate {
        /// Time of the SIGKILL, nanoseconds.
        until_ns: u64,
    },
}

/// An account that the victim's memory is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargedAccount {
    /// The account that is charged.
    pub account: AccountId,
    /// Usage at the time of the signal, bytes. `None`: the account does not await this kill,
    /// because it has no limit or because another victim of the same group kill is awaited.
    pub used_bytes: Option<u64>,
}

/// A signal that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewKill {
    /// The process that the signal was sent to.
    pub victim: ProcessId,
    /// Memory of the victim, bytes. Determines its grace period.
    pub bytes: u64,
    /// The process or program that sent the signal.
    pub sender: Sender,
    /// The signal that was sent.
    pub signal: Signal,
    /// Time of the signal, nanoseconds.
    pub at_ns: u64,
    /// The user or group that the victim is charged to.
    pub payer: ChargedAccount,
    /// The cgroup with the limit that the kill enforces.
    pub cgroup: Option<ChargedAccount>,
}

/// Action of the daemon on an account's latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchAction {
    /// Leave the latch unchanged.
    Keep,
    /// Take the latch, so that the kernel program does not kill meanwhile.
    Take,
}

/// State of an account's latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latch {
    /// The kernel program may kill.
    Free,
    /// The kernel program may not kill.
    Taken,
}

/// How the wait for a victim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The victim's memory is back; the next process may be killed if that was not enough.
    Back {
        /// Bytes by which the account fell; its other processes may have grown meanwhile.
        bytes_back: u64,
        /// From the signal until the memory was back, nanoseconds.
        took_ns: u64,
    },
    /// The grace period is over.
    Stuck {
        /// From the signal until the grace period was over, nanoseconds.
        took_ns: u64,
    },
}

/// An action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time; boxing would allocate at each kill")]
pub enum Action {
    /// The SIGTERM timeout has expired: send SIGKILL. The kill counts as signalled already.
    KillNow {
        /// The kill that is escalated.
        token: KillToken,
        /// The account that the latch belongs to.
        account: AccountId,
        /// Action on the latch after the signal.
        latch: LatchAction,
    },
    /// A kill has ended and is not in flight any more.
    Settled {
        /// The kill, as it was in flight.
        kill: InFlightKill,
        /// How the wait ended.
        settled: Settled,
    },
    /// A tracer has held the victim at its exit for [`HELD_MS`].
    TracerHolds {
        /// The kill with the victim that is held.
        token: KillToken,
        /// The user or group that the victim is charged to.
        account: AccountId,
    },
    /// No kill blocks an account any more: its limit is to be enforced again, with the next victim
    /// armed before the latch is released.
    AccountFree {
        /// The account that is no longer blocked.
        account: AccountId,
        /// [`Latch::Taken`]: the latch is to be released.
        latch: Latch,
        /// Id of the decision that the last kill belonged to.
        record: Option<u64>,
    },
}

/// State of an account's wait for a victim's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Does not wait: see [`ChargedAccount::used_bytes`].
    Nothing,
    /// Waits for the victim's memory.
    Memory {
        used_bytes: u64,
        reading: Reading,
    },
    Over(Settled),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChargedKill {
    account: AccountId,
    wait: Wait,
    blocking: Blocking,
}

/// Whether the next kill for the account has to wait for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocking {
    Blocks,
    /// The kill did not help in time.
    Passed,
}

impl ChargedKill {
    fn is_awaited(&self) -> bool {
        self.blocking == Blocking::Blocks && matches!(self.wait, Wait::Memory { .. })
    }

    /// Without the notifier each reading is a scan of all processes.
    fn is_reading_due(&self, now_ns: u64) -> bool {
        let Wait::Memory { reading, .. } = self.wait else { return false };
        now_ns.saturating_sub(reading.at_ns) >= NO_FALL_MS * NS_PER_MS
    }
}

/// Usage of an account without its victims, while that is over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess {
    account: AccountId,
    /// Bytes above the limit at `since_ns`.
    bytes: u64,
    /// Time since which the excess has not fallen, nanoseconds.
    since_ns: u64,
}

/// Whether a tracer holds a victim at its exit (`PTRACE_O_TRACEEXIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    No,
    Since(u64),
    /// [`Action::TracerHolds`] was reported.
    Reported,
}

/// A victim that has been signalled, and its memory is not back yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightKill {
    /// Unique id of the kill.
    pub token: KillToken,
    /// The process that was signalled.
    pub victim: ProcessId,
    /// Memory of the victim, bytes.
    pub bytes: u64,
    /// Id of the decision that the kill belongs to. Of a group kill only the first victim has it.
    pub record: Option<u64>,
    signal: Signal,
    signalled_ns: u64,
    /// Time when the victim's memory was released from outside (`process_mrelease`), nanoseconds.
    released_ns: Option<u64>,
    /// Time when the victim had exited, nanoseconds.
    gone_ns: Option<u64>,
    held: Held,
    /// When it was looked at for a tracer, nanoseconds; 0: never.
    looked_ns: u64,
    /// When it was seen running, or another victim of its payer exited, nanoseconds; 0: never.
    progress_ns: u64,
    payer: ChargedKill,
    cgroup: Option<ChargedKill>,
}

impl InFlightKill {
    /// The user or group that the victim is charged to.
    pub fn payer(&self) -> AccountId {
        self.payer.account
    }

    /// The cgroup with the limit that the victim was killed for.
    pub fn cgroup(&self) -> Option<AccountId> {
        self.cgroup.map(|charge| charge.account)
    }

    /// SIGTERM was sent, and the victim may still exit by itself.
    pub fn is_terminating(&self) -> bool {
        matches!(self.signal, Signal::Terminate { .. })
    }

    /// End of the grace period, nanoseconds.
    pub fn deadline_ns(&self) -> u64 {
        let for_size =
            u128::from(self.bytes) * NS_PER_SECOND / u128::from(SLOWEST_EXIT_BYTES_PER_SECOND);
        let grace = u128::from(KILL_GRACE_MS * NS_PER_MS) + for_size;
        let alone_ns = self.signalled_ns.saturating_add(u64::try_from(grace).unwrap_or(u64::MAX));
        let longest_ns = alone_ns.saturating_add(EXIT_GRACES_MS * NS_PER_MS);
        (self.progress_ns + EXIT_GRACE_MS * NS_PER_MS).clamp(alone_ns, longest_ns)
    }

    fn is_for(&self, account: AccountId) -> bool {
        self.charges().any(|charge| charge.account == account)
    }

    /// The next kill for the account does not wait for this victim any more: killing it did not
    /// help.
    pub fn has_passed(&self, account: AccountId) -> bool {
        self.is_for(account) && !self.blocks(account)
    }

    fn blocks(&self, account: AccountId) -> bool {
        let blocks = |it: &ChargedKill| it.account == account && it.blocking == Blocking::Blocks;
        self.charges().any(blocks)
    }

    /// Bytes that the victim's exit may still free: 0 once it has exited, or if it is held at its
    /// exit with its private memory released.
    fn left_bytes(&self) -> u64 {
        let emptied = self.held != Held::No && self.released_ns.is_some();
        if self.gone_ns.is_some() || emptied { 0 } else { self.bytes }
    }

    /// The victim has exited.
    pub fn is_gone(&self) -> bool {
        self.gone_ns.is_some()
    }

    fn charges(&self) -> impl Iterator<Item = &ChargedKill> {
        std::iter::once(&self.payer).chain(&self.cgroup)
    }

    /// The account waits for this victim's memory.
    pub fn awaits(&self, account: AccountId) -> bool {
        self.charges().any(|charge| charge.account == account && charge.is_awaited())
    }

    /// Time when the victim's tracer is to be checked, nanoseconds.
    fn tracer_due_ns(&self) -> Option<u64> {
        match self.held {
            Held::Since(since_ns) if self.gone_ns.is_none() => {
                Some(since_ns.saturating_add(HELD_MS * NS_PER_MS))
            }
            _ => None,
        }
    }

    fn is_slow(&self, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.signalled_ns);
        !self.is_terminating() && age_ns >= NO_FALL_MS * NS_PER_MS
    }

    fn may_be_held(&self) -> bool {
        self.gone_ns.is_none() && self.held == Held::No && !self.is_terminating()
    }

    fn has_let_go(&self) -> bool {
        self.released_ns.is_some() || self.gone_ns.is_some()
    }

    /// The grace period is over and the victim has not exited.
    fn is_overdue(&self, now_ns: u64) -> bool {
        self.gone_ns.is_none() && !self.is_terminating() && now_ns >= self.deadline_ns()
    }

    fn settle(&mut self, now_ns: u64) -> Option<Settled> {
        let kill = *self;
        kill.settle_charge(&mut self.payer, now_ns);
        if let Some(cgroup) = &mut self.cgroup {
            kill.settle_charge(cgroup, now_ns);
        }
        if self.charges().any(|charge| matches!(charge.wait, Wait::Memory { .. })) {
            return None;
        }
        let over = |charge: &ChargedKill| match charge.wait {
            Wait::Over(settled) => Some(settled),
            Wait::Nothing | Wait::Memory { .. } => None,
        };
        // The account of the cgroup that the victim was killed for measures the freed bytes more
        // exactly.
        let settled = self.cgroup.as_ref().and_then(over).or_else(|| over(&self.payer));
        settled.or_else(|| self.settle_without_account(now_ns))
    }

    fn settle_charge(&self, charge: &mut ChargedKill, now_ns: u64) {
        let Wait::Memory { used_bytes, reading } = charge.wait else { return };
        let took_ns = now_ns.saturating_sub(self.signalled_ns);
        let back = match charge.blocking {
            Blocking::Blocks => self.is_back(used_bytes, &reading, now_ns),
            // The account is not read for this kill any more.
            Blocking::Passed => self.gone_ns.is_some(),
        };
        if back {
            let bytes_back = used_bytes.saturating_sub(reading.used_bytes);
            charge.wait = Wait::Over(Settled::Back { bytes_back, took_ns });
        } else if self.is_overdue(now_ns) {
            charge.wait = Wait::Over(Settled::Stuck { took_ns });
        }
    }

    /// The account was read after the victim lost its memory, and shows the decrease. Allocations
    /// by other processes can hide it, so the wait is bounded once the victim has exited.
    fn is_back(&self, used_bytes: u64, reading: &Reading, now_ns: u64) -> bool {
        let fell = reading.used_bytes <= used_bytes.saturating_sub(self.bytes / 2);
        let shown = reading.dying_bytes == 0 || fell;
        let fresh = |since: Option<u64>| since.is_some_and(|since| reading.at_ns >= since);
        let settled_long = self
            .gone_ns
            .is_some_and(|gone| now_ns.saturating_sub(gone) >= ACCOUNT_SETTLE_MS * NS_PER_MS);
        (fresh(self.gone_ns) && (shown || settled_long)) || (fresh(self.released_ns) && shown)
    }

    /// If no account shows the decrease, the kill settles once the victim has lost its memory.
    fn settle_without_account(&self, now_ns: u64) -> Option<Settled> {
        let took_ns = now_ns.saturating_sub(self.signalled_ns);
        // A victim that is held at its exit is still visible as alive to other processes.
        if self.gone_ns.is_some() || (self.released_ns.is_some() && self.held == Held::No) {
            return Some(Settled::Back { bytes_back: self.bytes, took_ns });
        }
        self.is_overdue(now_ns).then_some(Settled::Stuck { took_ns })
    }
}

/// All kills in flight.
#[derive(Clone, Debug)]
pub struct KillsInFlight {
    kills: Vec<InFlightKill>,
    last_token: u64,
    /// Accounts with a latch that is taken for a kill in flight.
    latched: Vec<AccountId>,
    /// Accounts with a latch that one scan saw taken though no kill is in flight for them.
    orphaned_latches: Vec<AccountId>,
    /// Victims that did not exit; never selected again.
    stuck: Vec<ProcessId>,
    /// Accounts that are over their limit even if all victims' memory comes back.
    excesses: Vec<Excess>,
    /// Accounts that became free and were not reported yet, with the decision id of the last kill.
    free: Vec<(AccountId, Option<u64>)>,
    /// The time of the latest [`KillsInFlight::poll`].
    polled_ns: u64,
    /// When the next victims may be looked at for a tracer.
    next_look_ns: u64,
}

impl Default for KillsInFlight {
    fn default() -> Self {
        Self {
            kills: Vec::with_capacity(ROOM),
            last_token: 0,
            latched: Vec::with_capacity(ROOM),
            orphaned_latches: Vec::new(),
            stuck: Vec::new(),
            excesses: Vec::with_capacity(ROOM),
            free: Vec::with_capacity(ROOM),
            polled_ns: 0,
            next_look_ns: 0,
        }
    }
}

impl KillsInFlight {
    /// All kills in flight, in no particular order.
    pub fn all(&self) -> &[InFlightKill] {
        &self.kills
    }

    /// No kill is in flight.
    pub fn is_empty(&self) -> bool {
        self.kills.is_empty()
    }

    /// The kill with this token.
    pub fn get(&self, token: KillToken) -> Option<&InFlightKill> {
        self.kills.iter().find(|kill| kill.token == token)
    }

    /// No kill blocks this account: a process may be killed for it. The caller has to check that
    /// the kernel program's latch is free as well.
    pub fn may_kill(&self, account: AccountId) -> bool {
        !self.kills.iter().any(|kill| kill.blocks(account))
    }

    /// No kill blocks this account, or only ones whose SIGKILL can follow at once.
    pub fn may_enforce(&self, account: AccountId) -> bool {
        let mut blocking = self.kills.iter().filter(|kill| kill.blocks(account));
        blocking.all(|kill| kill.is_terminating() && kill.gone_ns.is_none())
    }

    /// SIGTERM was sent to this process, and SIGKILL was not.
    pub fn is_terminating(&self, victim: ProcessId) -> bool {
        let mut kills = self.kills.iter();
        kills.any(|kill| kill.victim == victim && kill.is_terminating() && kill.gone_ns.is_none())
    }

    /// A victim in flight for this account did not help in time. Kill preferences that a user sets
    /// for its own processes are ignored meanwhile: otherwise the user could choose victims that
    /// never help.
    pub fn has_unhelpful(&self, account: AccountId) -> bool {
        self.kills.iter().any(|kill| kill.has_passed(account))
    }

    /// A process may be killed because the system runs short: the memory that each earlier victim
    /// frees has to be seen first.
    pub fn may_kill_for_system(&self) -> bool {
        !self.kills.iter().any(|kill| kill.left_bytes() > 0)
    }

    /// The process is a victim in flight.
    pub fn contains(&self, victim: ProcessId) -> bool {
        self.kills.iter().any(|kill| kill.victim == victim)
    }

    /// Id of the latest decision with a kill in flight for this account.
    pub fn record_for(&self, account: AccountId) -> Option<u64> {
        let of_it = self.kills.iter().filter(|kill| kill.is_for(account));
        of_it.filter_map(|kill| kill.record).max()
    }

    /// Memory of the victim that the account awaits, bytes.
    pub fn awaited_bytes(&self, account: AccountId) -> u64 {
        let awaited = self.kills.iter().find(|kill| kill.awaits(account));
        awaited.map_or(0, |kill| kill.bytes)
    }

    /// Victims that did not exit; never to be selected again.
    pub fn stuck(&self) -> &[ProcessId] {
        &self.stuck
    }

    /// Removes stuck victims that are not in `processes` any more.
    pub fn forget_gone(&mut self, processes: &[Process]) {
        self.stuck.retain(|id| processes.iter().any(|process| process.id == *id));
    }

    /// Records a signal that was sent. An account that awaits another kill already does not await
    /// this one.
    pub fn signalled(&mut self, new: NewKill) -> (KillToken, LatchAction) {
        self.last_token += 1;
        let concerned = [Some(new.payer.account), new.cgroup.map(|charge| charge.account)];
        self.excesses.retain(|excess| !concerned.contains(&Some(excess.account)));
        let token = KillToken(self.last_token);
        let wait = |charge: ChargedAccount| {
            let taken = self.kills.iter().any(|kill| kill.awaits(charge.account));
            let wait = match charge.used_bytes {
                Some(used_bytes) if !taken => {
                    Wait::Memory { used_bytes, reading: Reading::default() }
                }
                _ => Wait::Nothing,
            };
            ChargedKill { account: charge.account, wait, blocking: Blocking::Blocks }
        };
        self.kills.push(InFlightKill {
            token,
            victim: new.victim,
            bytes: new.bytes,
            record: None,
            signal: new.signal,
            signalled_ns: new.at_ns,
            released_ns: None,
            gone_ns: None,
            held: Held::No,
            looked_ns: 0,
            progress_ns: 0,
            payer: wait(new.payer),
            cgroup: new.cgroup.map(wait),
        });
        if new.payer.used_bytes.is_none() || new.signal != Signal::Kill {
            return (token, LatchAction::Keep);
        }
        let latch = match (self.hold_latch(new.payer.account), new.sender) {
            (LatchAction::Take, Sender::Daemon) => LatchAction::Take,
            _ => LatchAction::Keep,
        };
        (token, latch)
    }

    /// Holds the latch from now on. Returns [`LatchAction::Take`] if it was not held before.
    fn hold_latch(&mut self, account: AccountId) -> LatchAction {
        if self.latched.contains(&account) {
            return LatchAction::Keep;
        }
        self.latched.push(account);
        LatchAction::Take
    }

    /// Sets the id of the decision that a kill belongs to.
    pub fn set_record(&mut self, token: KillToken, record: u64) {
        if let Some(kill) = self.find(token) {
            kill.record = Some(record);
        }
    }

    fn find(&mut self, token: KillToken) -> Option<&mut InFlightKill> {
        self.kills.iter_mut().find(|kill| kill.token == token)
    }

    /// Records that a victim's memory was released from outside though it has not exited. Some
    /// kinds of memory cannot be, so the release counts only as far as the account shows it.
    pub fn released(&mut self, token: KillToken, now_ns: u64) {
        if let Some(kill) = self.find(token) {
            kill.released_ns.get_or_insert(now_ns);
        }
    }

    /// Records that a victim has exited.
    pub fn gone(&mut self, token: KillToken, now_ns: u64) {
        let Some(kill) = self.find(token).filter(|kill| kill.gone_ns.is_none()) else { return };
        kill.gone_ns = Some(now_ns);
        let payer = kill.payer();
        for fellow in self.kills.iter_mut().filter(|kill| kill.payer() == payer) {
            fellow.progress_ns = now_ns;
        }
    }

    /// Records that a victim is not stuck: it runs, or would if it got a CPU.
    pub fn runs(&mut self, token: KillToken, now_ns: u64) {
        if let Some(kill) = self.find(token) {
            kill.progress_ns = now_ns;
        }
    }

    /// Records that a tracer holds a victim at its exit.
    pub fn held(&mut self, token: KillToken, now_ns: u64) {
        if let Some(kill) = self.find(token)
            && kill.held == Held::No
        {
            kill.held = Held::Since(now_ns);
        }
    }

    /// Ends the SIGTERM timeout of the victims of an account that exceeds its hard limit. Returns
    /// whether there is such a victim.
    pub fn end_grace_of(&mut self, account: AccountId) -> bool {
        let mut is_ended = false;
        for kill in self.kills.iter_mut().filter(|kill| kill.is_for(account)) {
            if let Signal::Terminate { until_ns } = &mut kill.signal {
                *until_ns = 0;
                is_ended = true;
            }
        }
        is_ended
    }

    /// Whether a kill of this victim is in flight: then the kernel program's kill is no new one. If
    /// only SIGTERM was sent before, SIGKILL has followed, with the latch that the program took.
    pub fn joins(&mut self, victim: ProcessId, at_ns: u64) -> bool {
        let Some(kill) = self.kills.iter_mut().find(|kill| kill.victim == victim) else {
            return false;
        };
        if kill.is_terminating() {
            (kill.signal, kill.signalled_ns) = (Signal::Kill, at_ns);
            let payer = kill.payer.account;
            self.hold_latch(payer);
        }
        true
    }

    /// Ends the SIGTERM timeout of all victims at once.
    pub fn end_grace(&mut self) {
        for kill in &mut self.kills {
            if let Signal::Terminate { until_ns } = &mut kill.signal {
                *until_ns = 0;
            }
        }
    }

    /// Accounts with a reading that decides whether the next kill may follow: the victim has
    /// released its memory, or exits slowly. For a victim that exits quickly the cgroup is returned
    /// only after the payer's wait is over, because its reading can require a scan of all
    /// processes.
    pub fn accounts_to_read(&self, now_ns: u64) -> Vec<AccountId> {
        let mut accounts = Vec::new();
        for kill in &self.kills {
            let awaited = kill.charges().filter(|charge| charge.is_awaited());
            if kill.is_slow(now_ns) {
                let let_go = kill.has_let_go();
                let due = awaited.filter(|charge| let_go || charge.is_reading_due(now_ns));
                accounts.extend(due.map(|charge| charge.account));
            } else if kill.has_let_go() {
                accounts.extend(awaited.map(|charge| charge.account).take(1));
            }
        }
        accounts
    }

    /// A user or group awaits memory that its victim has released: its account may be wrong.
    pub fn is_in_doubt(&self) -> bool {
        self.kills.iter().any(|kill| kill.has_let_go() && kill.payer.is_awaited())
    }

    /// Records a reading of an account.
    pub fn read(&mut self, account: AccountId, latest: Reading, limit_bytes: u64) {
        for kill in &mut self.kills {
            for charge in std::iter::once(&mut kill.payer).chain(&mut kill.cgroup) {
                if let Wait::Memory { reading, .. } = &mut charge.wait
                    && charge.account == account
                    && charge.blocking == Blocking::Blocks
                {
                    *reading = latest;
                }
            }
        }
        self.follow_excess(account, latest, limit_bytes);
    }

    /// Lets the next kill pass once the account is over its limit even if all victims' memory comes
    /// back.
    fn follow_excess(&mut self, account: AccountId, latest: Reading, limit_bytes: u64) {
        let others_bytes = latest.used_bytes.saturating_sub(self.left_bytes(account, &latest));
        let bytes = others_bytes.saturating_sub(limit_bytes);
        let known = self.excesses.iter().position(|excess| excess.account == account);
        if bytes == 0 || self.may_kill(account) {
            self.excesses.retain(|excess| excess.account != account);
            return;
        }
        let fresh = Excess { account, bytes, since_ns: latest.at_ns };
        let Some(excess) = known.map(|at| &mut self.excesses[at]) else {
            self.excesses.push(fresh);
            return;
        };
        if bytes < excess.bytes - excess.bytes / FALL_SHARE {
            *excess = fresh;
        } else if latest.at_ns.saturating_sub(excess.since_ns) >= NO_FALL_MS * NS_PER_MS {
            self.excesses.retain(|excess| excess.account != account);
            self.pass(account);
        }
    }

    /// Bytes that the exits of the account's victims may still free.
    fn left_bytes(&self, account: AccountId, latest: &Reading) -> u64 {
        let blocking = self.kills.iter().filter(|kill| kill.blocks(account));
        let sampled = blocking.map(InFlightKill::left_bytes).fold(0, u64::saturating_add);
        // The account counts the awaited victim exactly; it may have grown since it was sampled.
        let awaited = self.kills.iter().find(|kill| kill.awaits(account));
        let counted =
            awaited.filter(|kill| kill.left_bytes() > 0).map_or(0, |_| latest.dying_bytes);
        sampled.max(counted)
    }

    fn pass(&mut self, account: AccountId) {
        let record = self.record_for(account);
        for kill in &mut self.kills {
            for charge in std::iter::once(&mut kill.payer).chain(&mut kill.cgroup) {
                if charge.account == account {
                    charge.blocking = Blocking::Passed;
                }
            }
        }
        self.free.push((account, record));
    }

    /// Removes an account that has no limit any more, with its readings and its latch. Its kills
    /// stay in flight, but no account awaits them.
    pub fn forget_account(&mut self, account: AccountId) {
        for kill in &mut self.kills {
            for charge in std::iter::once(&mut kill.payer).chain(&mut kill.cgroup) {
                if charge.account == account {
                    charge.wait = Wait::Nothing;
                }
            }
        }
        self.excesses.retain(|excess| excess.account != account);
        self.latched.retain(|latched| *latched != account);
        self.orphaned_latches.retain(|orphaned| *orphaned != account);
    }

    /// Checks an account's latch as seen by a scan. Returns `true` if the latch has to be released:
    /// two scans saw it taken while no kill is in flight, so the event of a kill by the kernel
    /// program was lost. An event that is merely delayed has arrived by the second scan.
    pub fn is_orphaned(&mut self, account: AccountId, seen: Latch) -> bool {
        let before = self.orphaned_latches.iter().position(|orphaned| *orphaned == account);
        let orphaned = seen == Latch::Taken && self.may_kill(account);
        match before {
            Some(at) => {
                self.orphaned_latches.swap_remove(at);
                orphaned
            }
            None => {
                if orphaned {
                    self.orphaned_latches.push(account);
                }
                false
            }
        }
    }

    /// Victims that exit slowly and that no tracer is known to hold, with their pids: whether they
    /// run or are held is to be found out. A few at a time, in turns, since each look reads files.
    pub fn to_look_at(&mut self, now_ns: u64) -> Vec<(KillToken, u32)> {
        if now_ns < self.next_look_ns {
            return Vec::new();
        }
        let slow = |kill: &&mut InFlightKill| kill.may_be_held() && kill.is_slow(now_ns);
        let mut slow: Vec<&mut InFlightKill> = self.kills.iter_mut().filter(slow).collect();
        slow.sort_unstable_by_key(|kill| kill.looked_ns);
        slow.truncate(LOOKS);
        if !slow.is_empty() {
            self.next_look_ns = now_ns + NO_FALL_MS * NS_PER_MS;
        }
        let look = |kill: &mut InFlightKill| {
            kill.looked_ns = now_ns;
            (kill.token, kill.victim.pid)
        };
        slow.into_iter().map(look).collect()
    }

    /// The processes that were signalled, sorted.
    pub fn victims(&self) -> Vec<ProcessId> {
        let mut victims: Vec<ProcessId> = self.kills.iter().map(|kill| kill.victim).collect();
        victims.sort_unstable();
        victims
    }

    /// Returns the next action that is due; to be called until it returns `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<Action> {
        self.polled_ns = now_ns;
        if let Some((account, record)) = self.free.pop() {
            let held = self.latched.iter().position(|latched| *latched == account);
            let latch = match held {
                Some(at) => {
                    self.latched.swap_remove(at);
                    Latch::Taken
                }
                None => Latch::Free,
            };
            return Some(Action::AccountFree { account, latch, record });
        }
        let now = self.poll_terminating(now_ns).or_else(|| self.poll_held(now_ns));
        now.or_else(|| self.poll_settled(now_ns))
    }

    fn poll_held(&mut self, now_ns: u64) -> Option<Action> {
        let kill = self
            .kills
            .iter_mut()
            .find(|kill| kill.tracer_due_ns().is_some_and(|due| due <= now_ns))?;
        kill.held = Held::Reported;
        Some(Action::TracerHolds { token: kill.token, account: kill.payer.account })
    }

    fn poll_terminating(&mut self, now_ns: u64) -> Option<Action> {
        let expired = |kill: &&mut InFlightKill| {
            let Signal::Terminate { until_ns } = kill.signal else { return false };
            now_ns >= until_ns && kill.gone_ns.is_none()
        };
        let kill = self.kills.iter_mut().find(expired)?;
        kill.signal = Signal::Kill;
        kill.signalled_ns = now_ns;
        let (token, payer) = (kill.token, kill.payer);
        let latch = match payer.wait {
            Wait::Memory { .. } if payer.blocking == Blocking::Blocks => {
                self.hold_latch(payer.account)
            }
            _ => LatchAction::Keep,
        };
        Some(Action::KillNow { token, account: payer.account, latch })
    }

    fn poll_settled(&mut self, now_ns: u64) -> Option<Action> {
        let mut kills = self.kills.iter_mut().enumerate();
        let (at, settled) = kills.find_map(|(at, kill)| Some((at, kill.settle(now_ns)?)))?;
        let kill = self.kills.swap_remove(at);
        if matches!(settled, Settled::Stuck { .. }) {
            self.stuck.push(kill.victim);
        }
        // The last kill of a group unblocks the account, unless it is unblocked already.
        let account = kill.payer.account;
        let blocks = |other: &InFlightKill| {
            other.payer.account == account && other.payer.blocking == Blocking::Blocks
        };
        if blocks(&kill) && !self.kills.iter().any(blocks) {
            self.free.push((account, kill.record));
        }
        Some(Action::Settled { kill, settled })
    }

    /// Time when [`poll`](Self::poll) or a reading is due even without an event, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let after = |ms: u64| self.polled_ns.saturating_add(ms * NS_PER_MS);
        let due = |kill: &InFlightKill| {
            let awaited = kill.charges().any(ChargedKill::is_awaited);
            let due_ns = match kill.signal {
                Signal::Terminate { until_ns } => until_ns,
                Signal::Kill if awaited && kill.has_let_go() => after(REREAD_MS),
                Signal::Kill if awaited || kill.may_be_held() => {
                    after(NO_FALL_MS).min(kill.deadline_ns())
                }
                Signal::Kill => kill.deadline_ns(),
            };
            kill.tracer_due_ns().map_or(due_ns, |tracer_ns| tracer_ns.min(due_ns))
        };
        self.kills.iter().map(due).min()
    }
}
