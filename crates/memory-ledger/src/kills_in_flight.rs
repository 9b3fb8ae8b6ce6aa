//! All kills in flight: from the signal until the victim's memory is back and the next process may
//! be killed.
//!
//! One state machine for all accounts. Its inputs are signals that were sent (by the daemon, or by
//! the kernel program, which kills first and is heard of later), the victims' progress, account
//! readings and time. What has to be done comes out of [`KillsInFlight::poll`].
//!
//! Invariants:
//! * at most one kill is awaited per account. Further kills can be in flight for it (the rest of a
//!   group kill, a kill by the kernel program in the same moment), and none more is started;
//! * the kernel program's latch of an account is held from the first SIGKILL that the account
//!   awaits until the account's last kill has settled;
//! * every kill settles, at the latest when its grace is over.

use crate::account::Reading;
use crate::account_id::AccountId;
use crate::process::{Process, ProcessId};

/// How long a victim may take before it counts as stuck, besides the time for its size,
/// milliseconds. Measured on a loaded machine: a starved victim was gone after 1.8 s at the worst
/// once `process_mrelease` had helped; one in an uninterruptible sleep never goes.
pub const KILL_GRACE_MS: u64 = 2_000;
/// The slowest exit that was measured (nice 19 beside a busy loop), bytes a second.
pub const SLOWEST_EXIT_BYTES_PER_SECOND: u64 = 490_000_000;
/// How long an account may take to show that an emptied victim's memory is back, milliseconds.
/// It is there within one reading unless another process shares the victim's memory.
pub const ACCOUNT_SETTLE_MS: u64 = 100;
/// How soon an account is read again when its victim is gone and it does not show it, milliseconds.
const REREAD_MS: u64 = 5;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;
/// Kills that are tracked without an allocation.
const ROOM: usize = 64;

/// Names a kill in flight. Tokens are given out from 1 on and never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KillToken(pub u64);

/// The process that sent the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The daemon.
    Daemon,
    /// The kernel program, in a page fault. It took the account's latch with the kill.
    KernelProgram,
}

/// The signal that the victim has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGTERM; SIGKILL follows at `until_ns`.
    Terminate {
        /// Nanoseconds.
        until_ns: u64,
    },
}

/// An account that a victim counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargedAccount {
    /// The account.
    pub account: AccountId,
    /// What it held at the signal, bytes. `None`: it does not await this kill, because it has no
    /// limit or because the victim is one of a group of which another one is awaited.
    pub used_bytes: Option<u64>,
}

/// A signal that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewKill {
    /// Its receiver.
    pub victim: ProcessId,
    /// Memory of the victim, bytes. Its grace follows from that.
    pub bytes: u64,
    /// Its sender.
    pub sender: Sender,
    /// Which signal.
    pub signal: Signal,
    /// When it was sent, nanoseconds.
    pub at_ns: u64,
    /// The user or group that pays for the victim.
    pub payer: ChargedAccount,
    /// The cgroup whose limit the kill is for.
    pub cgroup: Option<ChargedAccount>,
}

/// What the daemon has to do about an account's latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchAction {
    /// Nothing.
    Keep,
    /// Take it, so that the kernel program kills nobody meanwhile.
    Take,
}

/// Whether an account's latch is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latch {
    /// The kernel program may kill.
    Free,
    /// It may not.
    Taken,
}

/// How the wait for a victim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Its memory is back; the next process may be killed where that was not enough.
    Back {
        /// Bytes by which the account fell; its other processes may have grown meanwhile.
        bytes_back: u64,
        /// From the signal until the memory was back, nanoseconds.
        took_ns: u64,
    },
    /// Its grace is over.
    Stuck {
        /// From the signal until the grace was over, nanoseconds.
        took_ns: u64,
    },
}

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The time to end by itself is over: send SIGKILL. The kill counts as signalled already.
    KillNow {
        /// The kill.
        token: KillToken,
        /// The account whose latch is concerned.
        account: AccountId,
        /// What to do about it after the signal.
        latch: LatchAction,
    },
    /// A kill has ended and is not in flight any more.
    Settled {
        /// The kill.
        kill: InFlightKill,
        /// How it ended.
        settled: Settled,
    },
    /// No kill is in flight for an account any more: its limit is to be enforced anew, with the
    /// next victim armed before the latch is released.
    AccountFree {
        /// The account.
        account: AccountId,
        /// Taken: it is to be released.
        latch: Latch,
        /// The decision that the last kill belonged to.
        record: Option<u64>,
    },
}

/// What an account waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing: see [`ChargedAccount::used_bytes`].
    Nothing,
    /// The victim's memory.
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
}

/// A victim that has been signalled and whose memory is not back yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightKill {
    /// Its name.
    pub token: KillToken,
    /// The victim.
    pub victim: ProcessId,
    /// Memory of the victim, bytes.
    pub bytes: u64,
    /// The decision that it belongs to. Of a group kill only the first victim has it.
    pub record: Option<u64>,
    signal: Signal,
    signalled_ns: u64,
    /// Since when its memory counts as released from outside (`process_mrelease`), nanoseconds.
    released_ns: Option<u64>,
    /// Since when it is gone, nanoseconds.
    gone_ns: Option<u64>,
    payer: ChargedKill,
    cgroup: Option<ChargedKill>,
}

impl InFlightKill {
    /// The user or group that pays for the victim.
    pub fn payer(&self) -> AccountId {
        self.payer.account
    }

    /// The cgroup whose limit the victim was killed for.
    pub fn cgroup(&self) -> Option<AccountId> {
        self.cgroup.map(|charge| charge.account)
    }

    /// The victim was asked to end, and may still do so by itself.
    pub fn is_asked(&self) -> bool {
        matches!(self.signal, Signal::Terminate { .. })
    }

    /// When its grace is over, nanoseconds.
    pub fn deadline_ns(&self) -> u64 {
        let for_size =
            u128::from(self.bytes) * NS_PER_SECOND / u128::from(SLOWEST_EXIT_BYTES_PER_SECOND);
        let grace = u128::from(KILL_GRACE_MS * NS_PER_MS) + for_size;
        self.signalled_ns.saturating_add(u64::try_from(grace).unwrap_or(u64::MAX))
    }

    fn is_for(&self, account: AccountId) -> bool {
        self.charges().any(|charge| charge.account == account)
    }

    fn charges(&self) -> impl Iterator<Item = &ChargedKill> {
        std::iter::once(&self.payer).chain(&self.cgroup)
    }

    /// The account waits for this victim's memory.
    pub fn awaits(&self, account: AccountId) -> bool {
        let waits = |it: &ChargedKill| matches!(it.wait, Wait::Memory { .. });
        self.charges().any(|charge| charge.account == account && waits(charge))
    }

    fn has_let_go(&self) -> bool {
        self.released_ns.is_some() || self.gone_ns.is_some()
    }

    /// The grace is over and the victim is still there.
    fn is_overdue(&self, now_ns: u64) -> bool {
        self.gone_ns.is_none() && !self.is_asked() && now_ns >= self.deadline_ns()
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
        // The cgroup that the victim was killed for knows better what came back.
        let settled = self.cgroup.as_ref().and_then(over).or_else(|| over(&self.payer));
        settled.or_else(|| self.settle_without_account(now_ns))
    }

    fn settle_charge(&self, charge: &mut ChargedKill, now_ns: u64) {
        let Wait::Memory { used_bytes, reading } = charge.wait else { return };
        let took_ns = now_ns.saturating_sub(self.signalled_ns);
        if self.is_back(used_bytes, &reading, now_ns) {
            let bytes_back = used_bytes.saturating_sub(reading.used_bytes);
            charge.wait = Wait::Over(Settled::Back { bytes_back, took_ns });
        } else if self.is_overdue(now_ns) {
            charge.wait = Wait::Over(Settled::Stuck { took_ns });
        }
    }

    /// The account was read after the victim lost its memory, and shows it. What others allocate
    /// meanwhile can hide the fall, so once the victim is gone the wait has a bound.
    fn is_back(&self, used_bytes: u64, reading: &Reading, now_ns: u64) -> bool {
        let fell = reading.used_bytes <= used_bytes.saturating_sub(self.bytes / 2);
        let shown = reading.dying_bytes == 0 || fell;
        let fresh = |since: Option<u64>| since.is_some_and(|since| reading.at_ns >= since);
        let settled_long = self
            .gone_ns
            .is_some_and(|gone| now_ns.saturating_sub(gone) >= ACCOUNT_SETTLE_MS * NS_PER_MS);
        (fresh(self.gone_ns) && (shown || settled_long)) || (fresh(self.released_ns) && shown)
    }

    /// Where no account shows it, an empty victim is as good as none.
    fn settle_without_account(&self, now_ns: u64) -> Option<Settled> {
        let took_ns = now_ns.saturating_sub(self.signalled_ns);
        if self.has_let_go() {
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
    /// Accounts whose latch is taken for a kill in flight.
    latched: Vec<AccountId>,
    /// Accounts whose latch was seen taken once though no kill is in flight for them.
    orphaned_latches: Vec<AccountId>,
    /// Victims that did not go; never chosen again.
    stuck: Vec<ProcessId>,
    /// Accounts that became free and were not reported yet, with the decision of the last kill.
    free: Vec<(AccountId, Option<u64>)>,
    /// The time of the latest [`KillsInFlight::poll`].
    polled_ns: u64,
}

impl Default for KillsInFlight {
    fn default() -> Self {
        Self {
            kills: Vec::with_capacity(ROOM),
            last_token: 0,
            latched: Vec::with_capacity(ROOM),
            orphaned_latches: Vec::new(),
            stuck: Vec::new(),
            free: Vec::with_capacity(ROOM),
            polled_ns: 0,
        }
    }
}

impl KillsInFlight {
    /// All, in any order.
    pub fn all(&self) -> &[InFlightKill] {
        &self.kills
    }

    /// No kill is in flight.
    pub fn is_empty(&self) -> bool {
        self.kills.is_empty()
    }

    /// One by its name.
    pub fn get(&self, token: KillToken) -> Option<&InFlightKill> {
        self.kills.iter().find(|kill| kill.token == token)
    }

    /// No kill is in flight for this account: a process may be killed for it. That the kernel
    /// program's latch is free as well is for the caller to look at.
    pub fn may_kill(&self, account: AccountId) -> bool {
        !self.kills.iter().any(|kill| kill.is_for(account))
    }

    /// A process may be killed because the system runs short: what each victim gives back has to
    /// be seen first.
    pub fn may_kill_for_system(&self) -> bool {
        self.is_empty()
    }

    /// The process is a victim in flight.
    pub fn contains(&self, victim: ProcessId) -> bool {
        self.kills.iter().any(|kill| kill.victim == victim)
    }

    /// The latest decision of which a kill is in flight for this account.
    pub fn record_for(&self, account: AccountId) -> Option<u64> {
        let of_it = self.kills.iter().filter(|kill| kill.is_for(account));
        of_it.filter_map(|kill| kill.record).max()
    }

    /// Memory of the victim that an account awaits, bytes.
    pub fn awaited_bytes(&self, account: AccountId) -> u64 {
        let awaited = self.kills.iter().find(|kill| kill.awaits(account));
        awaited.map_or(0, |kill| kill.bytes)
    }

    /// Victims that did not go; never to be chosen again.
    pub fn stuck(&self) -> &[ProcessId] {
        &self.stuck
    }

    /// Forgets stuck victims that are not among the living any more.
    pub fn forget_gone(&mut self, processes: &[Process]) {
        self.stuck.retain(|id| processes.iter().any(|process| process.id == *id));
    }

    /// A signal was sent. An account that awaits another kill already does not await this one.
    pub fn signalled(&mut self, new: NewKill) -> (KillToken, LatchAction) {
        self.last_token += 1;
        let token = KillToken(self.last_token);
        let wait = |charge: ChargedAccount| {
            let taken = self.kills.iter().any(|kill| kill.awaits(charge.account));
            let wait = match charge.used_bytes {
                Some(used_bytes) if !taken => {
                    Wait::Memory { used_bytes, reading: Reading::default() }
                }
                _ => Wait::Nothing,
            };
            ChargedKill { account: charge.account, wait }
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

    /// The latch is to be held from now on. [`LatchAction::Take`]: it was not before.
    fn hold_latch(&mut self, account: AccountId) -> LatchAction {
        if self.latched.contains(&account) {
            return LatchAction::Keep;
        }
        self.latched.push(account);
        LatchAction::Take
    }

    /// The decision that a kill belongs to.
    pub fn set_record(&mut self, token: KillToken, record: u64) {
        if let Some(kill) = self.find(token) {
            kill.record = Some(record);
        }
    }

    fn find(&mut self, token: KillToken) -> Option<&mut InFlightKill> {
        self.kills.iter_mut().find(|kill| kill.token == token)
    }

    /// A victim's memory was released from outside though it is not gone. Not all kinds can be, so
    /// that counts only as far as the account shows it.
    pub fn released(&mut self, token: KillToken, now_ns: u64) {
        if let Some(kill) = self.find(token) {
            kill.released_ns.get_or_insert(now_ns);
        }
    }

    /// A victim is gone.
    pub fn gone(&mut self, token: KillToken, now_ns: u64) {
        if let Some(kill) = self.find(token) {
            kill.gone_ns.get_or_insert(now_ns);
        }
    }

    /// There is no time left for those that were asked to end.
    pub fn end_grace(&mut self) {
        for kill in &mut self.kills {
            if let Signal::Terminate { until_ns } = &mut kill.signal {
                *until_ns = 0;
            }
        }
    }

    /// Accounts whose reading decides whether a victim's memory is back: the victim has let go of
    /// it. A cgroup comes after the payer, for its reading can cost a look at all processes.
    pub fn accounts_to_read(&self) -> Vec<AccountId> {
        let empty = self.kills.iter().filter(|kill| kill.has_let_go());
        let awaiting = |it: &&ChargedKill| matches!(it.wait, Wait::Memory { .. });
        empty.filter_map(|kill| Some(kill.charges().find(awaiting)?.account)).collect()
    }

    /// An account was read.
    pub fn read(&mut self, account: AccountId, latest: Reading) {
        for kill in &mut self.kills {
            for charge in std::iter::once(&mut kill.payer).chain(&mut kill.cgroup) {
                if let Wait::Memory { reading, .. } = &mut charge.wait
                    && charge.account == account
                {
                    *reading = latest;
                }
            }
        }
    }

    /// An account's limit is gone, and with it its readings and its latch. Its kills stay in
    /// flight, but nothing awaits them.
    pub fn forget_account(&mut self, account: AccountId) {
        for kill in &mut self.kills {
            for charge in std::iter::once(&mut kill.payer).chain(&mut kill.cgroup) {
                if charge.account == account {
                    charge.wait = Wait::Nothing;
                }
            }
        }
        self.latched.retain(|latched| *latched != account);
        self.orphaned_latches.retain(|orphaned| *orphaned != account);
    }

    /// An account's latch, as seen by a scan. `true`: it is to be released, for it was seen taken
    /// twice while no kill is in flight: the event of a kill by the kernel program was lost. One
    /// that is merely on its way has arrived by the second scan.
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

    /// What has to be done now; to be called until there is nothing more.
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
        self.poll_asked(now_ns).or_else(|| self.poll_settled(now_ns))
    }

    fn poll_asked(&mut self, now_ns: u64) -> Option<Action> {
        let expired = |kill: &&mut InFlightKill| {
            let Signal::Terminate { until_ns } = kill.signal else { return false };
            now_ns >= until_ns && kill.gone_ns.is_none()
        };
        let kill = self.kills.iter_mut().find(expired)?;
        kill.signal = Signal::Kill;
        kill.signalled_ns = now_ns;
        let (token, payer) = (kill.token, kill.payer);
        let latch = match payer.wait {
            Wait::Memory { .. } => self.hold_latch(payer.account),
            Wait::Nothing | Wait::Over(_) => LatchAction::Keep,
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
        // The last one of a group opens the way.
        let account = kill.payer.account;
        if !self.kills.iter().any(|other| other.payer.account == account) {
            self.free.push((account, kill.record));
        }
        Some(Action::Settled { kill, settled })
    }

    /// When [`poll`](Self::poll) or a reading is due though nothing happens, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let due = |kill: &InFlightKill| match kill.signal {
            _ if kill.has_let_go() => self.polled_ns.saturating_add(REREAD_MS * NS_PER_MS),
            Signal::Terminate { until_ns } => until_ns,
            Signal::Kill => kill.deadline_ns(),
        };
        self.kills.iter().map(due).min()
    }
}
