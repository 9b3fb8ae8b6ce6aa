//! Structs that the BPF programs and the daemon exchange: the same as in `bpf/shared.h`, field by
//! field. [`super::Notifier::load`] compares their sizes with the loaded maps.
//!
//! In the maps, which outlive a daemon when they are pinned, an account is one number, which is
//! encoded here.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use memory_ledger::{AccountId, CgroupId, Comm, Count, GroupId, ProcessId, Uid};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::watch::{Event, Killed, KilledBy, Parent, ProcessSample};

/// Maximum number of CPUs whose counters the programs can read.
pub const MAX_CPUS: usize = 1024;
/// Number of slots that are allocated at a time.
pub const CHUNK_SLOTS: u32 = 64;
/// Number of bits of [`UidFilter`].
pub const FILTER_BITS: usize = 65_536;

/// The key of the first cgroup's account.
const FIRST_CGROUP: u32 = 0xfffe_0000;
/// The key of the first group's account. The one after the last group's is [`Uid::NONE`].
const FIRST_GROUP: u32 = 0xffff_0000;

// No uid that can have an account is the key of a group or cgroup.
const _: () = assert!(Uid::LAST_LIMITABLE.0 < FIRST_CGROUP);

/// An account as one number: a user's is its uid, groups and cgroups have ranges above
/// [`Uid::LAST_LIMITABLE`].
pub fn key_of_account(account: AccountId) -> u32 {
    match account {
        AccountId::User(uid) => uid.0,
        AccountId::Group(id) => FIRST_GROUP + u32::from(id.get()),
        AccountId::Cgroup(id) => FIRST_CGROUP + u32::from(id.0),
    }
}

/// The account of a map key.
pub fn account_of_key(key: u32) -> AccountId {
    let low = key as u16;
    match key {
        FIRST_CGROUP..FIRST_GROUP => AccountId::Cgroup(CgroupId(low)),
        FIRST_GROUP.. => GroupId::new(low).map_or(AccountId::User(Uid::NONE), AccountId::Group),
        _ => AccountId::User(Uid(key)),
    }
}

/// Kinds of memory as a bit mask, with the bit numbers of the members of `rss_stat`.
pub fn bits_of_count(count: Count) -> u32 {
    let members = [count.file, count.anon, count.swap, count.shmem];
    (0..).zip(members).map(|(member, counts)| u32::from(counts) << member).sum()
}

fn count_of_bits(bits: u32) -> Count {
    let counts = |member: u32| bits >> member & 1 == 1;
    Count { file: counts(0), anon: counts(1), swap: counts(2), shmem: counts(3) }
}

/// `struct account`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Account {
    pub owner: u64,
    pub pages: [i64; 4],
    pub seen: [i64; 4],
    pub marked: [i64; 2],
    pub tgid: u32,
    pub round: u32,
}

impl Account {
    /// Index of the slot that it is charged to.
    pub fn slot(&self) -> u32 {
        self.owner as u32
    }

    /// Pages charged to a slot that counts these kinds.
    pub fn charged(&self, count: Count) -> i64 {
        let bits = bits_of_count(count);
        let counts = |member: usize| bits >> member & 1 == 1;
        (0..self.pages.len())
            .filter(|member| counts(*member))
            .map(|member| self.pages[member])
            .sum()
    }
}

/// `struct armed`.
#[repr(C)]
pub struct Armed {
    pub tgid: AtomicU32,
    pub unused: u32,
    pub start_number: AtomicU64,
}

/// `struct slot`: memory shared with the programs, hence only atomics.
#[repr(C)]
pub struct Slot {
    pub soft_pages: AtomicU64,
    pub hard_pages: AtomicU64,
    pub clear_pages: AtomicU64,
    pub key: AtomicU32,
    pub spare_unarmed: AtomicU32,
    pub armed_index: AtomicU32,
    pub exact: AtomicU32,
    pub armed: [Armed; 2],
    pub memo: AtomicU64,
    pub index: AtomicU32,
    pub counted: AtomicU32,
    pub correction: AtomicI64,
    pub unused_line: [u64; 4],
    pub pages: AtomicI64,
    pub peak_pages: AtomicI64,
    pub dying_pages: AtomicI64,
    pub events: AtomicU64,
    pub zone: AtomicU32,
    pub latch: AtomicU32,
    pub reported: AtomicU32,
    pub unused_word: u32,
    pub largest_mm: AtomicU64,
    pub largest_score: AtomicI64,
    pub victim_mm: AtomicU64,
    pub soft_crossings: AtomicU64,
    pub hard_crossings: AtomicU64,
    pub kills: AtomicU64,
    pub lost: AtomicU64,
    pub unconfirmed: AtomicI64,
    pub near_ns: AtomicU64,
    pub unused_tail: u64,
}

impl Slot {
    /// The kinds of memory that are charged to it.
    pub fn counts(&self) -> Count {
        count_of_bits(self.counted.load(Relaxed))
    }

    /// The account of the slot.
    pub fn account(&self) -> AccountId {
        account_of_key(self.key.load(Relaxed))
    }
}

/// `struct scan`, shared like [`Slot`].
#[repr(C)]
pub struct Scan {
    pub round: AtomicU32,
    pub mark: AtomicU32,
    pub processes: AtomicU64,
    pub added: AtomicU64,
    pub drift_pages: AtomicU64,
    pub uncounted: AtomicU64,
    pub beat_ns: AtomicU64,
    pub changes: AtomicU64,
}

/// `struct uid_filter`, shared like [`Slot`].
#[repr(C)]
pub struct UidFilter {
    bits: [AtomicU64; FILTER_BITS / 64],
}

impl UidFilter {
    /// Sets the bit of a uid.
    pub fn add(&self, uid: Uid) {
        let bit = uid.0 as usize % FILTER_BITS;
        self.bits[bit / 64].fetch_or(1 << (bit % 64), Relaxed);
    }
}

/// `struct event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
pub struct WireEvent {
    kind: u32,
    key: u32,
    pages: u64,
    time_ns: u64,
    killed_by: u32,
    killed_tgid: u32,
    killed_start_number: u64,
    killed_pages: u64,
    stale: u32,
    killed_uid: u32,
    killed_comm: [u8; 16],
}

impl WireEvent {
    /// Returns `None` for a kind that this version does not define (never sent by its own
    /// programs).
    pub fn decode(&self) -> Option<Event> {
        let Self { key, time_ns, .. } = *self;
        let account = account_of_key(key);
        // A sum with a correction may be below 0 for a moment.
        let pages = (self.pages as i64).max(0) as u64;
        let by = match self.killed_by {
            1 => Some(KilledBy::ArmedSelf),
            2 => Some(KilledBy::ArmedOther),
            3 => Some(KilledBy::UnarmedSelf),
            4 => Some(KilledBy::UnarmedOther),
            _ => None,
        };
        let killed = by.map(|by| Killed {
            id: ProcessId { pid: self.killed_tgid, start_time: self.killed_start_number },
            uid: Uid(self.killed_uid),
            comm: Comm::new(&self.killed_comm),
            pages: self.killed_pages,
            by,
        });
        match self.kind {
            1 => Some(Event::SoftCrossed { account, pages, time_ns }),
            2 => Some(Event::SoftCleared { account, pages, time_ns }),
            3 => Some(Event::HardCrossed {
                account,
                pages,
                time_ns,
                killed,
                armed_was_stale: self.stale != 0,
            }),
            _ => None,
        }
    }
}

/// `struct sample`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
pub struct WireSample {
    mm: u64,
    start_number: u64,
    pages: [i64; 4],
    tgid: u32,
    parent_tgid: u32,
    uid: u32,
    oom_score_adj: i16,
    state: u16,
    comm: [u8; 16],
    group: u32,
    namespace_owner: u32,
    page_table_bytes: u64,
}

impl WireSample {
    const EXITING: u16 = 1;
    const SESSION_LEADER: u16 = 2;
    const COPY: u16 = 4;

    fn is(&self, bit: u16) -> bool {
        self.state & bit != 0
    }

    pub fn decode(&self) -> ProcessSample {
        let pages = |member: usize| u64::try_from(self.pages[member]).unwrap_or(0);
        ProcessSample {
            tgid: self.tgid,
            parent: Parent { tgid: self.parent_tgid, is_copied: self.is(Self::COPY) },
            uid: Uid(self.uid),
            namespace_owner: Uid(self.namespace_owner),
            start_number: self.start_number,
            file_pages: pages(0),
            anon_pages: pages(1),
            swap_pages: pages(2),
            shmem_pages: pages(3),
            comm: self.comm,
            oom_score_adj: self.oom_score_adj,
            exiting: self.is(Self::EXITING),
            session_leader: self.is(Self::SESSION_LEADER),
            group: self.group,
            mm_id: self.mm,
            page_table_bytes: self.page_table_bytes,
        }
    }
}

/// `struct cpu_layout` without its scratch space.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CpuLayout {
    pub base: u64,
    pub offset: [u64; MAX_CPUS],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_the_key_that_pinned_maps_of_earlier_daemons_have() {
        let group = |id| AccountId::Group(GroupId::new(id).unwrap());
        let keys = [
            (AccountId::User(Uid(1000)), 1000),
            (AccountId::User(Uid::LAST_LIMITABLE), 0xfffd_ffff),
            (AccountId::Cgroup(CgroupId(0)), 0xfffe_0000),
            (AccountId::Cgroup(CgroupId(0xffff)), 0xfffe_ffff),
            (group(0), 0xffff_0000),
            (group(0xfffe), 0xffff_fffe),
            (AccountId::User(Uid::NONE), 0xffff_ffff),
        ];
        for (account, key) in keys {
            assert_eq!((key_of_account(account), account_of_key(key)), (key, account));
        }
    }

    #[test]
    fn usage_below_zero_is_reported_as_none() {
        let mut event = WireEvent::read_from_bytes(&[0; size_of::<WireEvent>()]).unwrap();
        (event.kind, event.pages) = (2, -3_i64 as u64);
        let decoded = event.decode();
        assert!(matches!(decoded, Some(Event::SoftCleared { pages: 0, .. })), "{decoded:?}");
        event.pages = 3;
        let decoded = event.decode();
        assert!(matches!(decoded, Some(Event::SoftCleared { pages: 3, .. })), "{decoded:?}");
    }

    #[test]
    fn kinds_of_memory_have_the_bits_of_rss_stat() {
        let bits = |names: &[&str]| bits_of_count(Count::of(names.iter().copied()));
        assert_eq!((bits(&["file"]), bits(&["anon"])), (1, 2));
        assert_eq!((bits(&["swap"]), bits(&["shmem"])), (4, 8));
        assert_eq!(bits_of_count(Count::default()), 14);
        for bits in 0..16 {
            assert_eq!(bits_of_count(count_of_bits(bits)), bits);
        }
    }
}
