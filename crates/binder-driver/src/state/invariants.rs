//! Independent checks of the driver's state: everything that is stored redundantly, or that must
//! have a reason to exist, is recomputed from scratch. For states that were read back, and for
//! tests and simulators.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::buffer::{HeldObject, OnewayShare};
use crate::driver::{
    AccountId, DeathId, Driver, FreezeId, FreezeNotificationId, NodeId, ProcessId, ThreadId,
    TransactionId,
};
use crate::notifications::death::DeathState;
use crate::objects::Strength;
use crate::process::account::{Account, RECORD_BYTES};
use crate::process::thread::Thread;
use crate::transaction::Kind;
use crate::transaction::oneway::{QueuedUpdate, UpdateKey};
use crate::write_read::held::ReplyComplete;
use crate::write_read::queue::{QueueId, WorkId};
use crate::write_read::wake::WorkScope;
use crate::write_read::work::Work;

/// Expected counts of each node, and whether its one-way slot is in use.
#[derive(Debug, Default, PartialEq, Eq)]
struct NodeAccount {
    internal_strong: u32,
    refs: u32,
    local_strong: u32,
    local_weak: u32,
    oneway_slots: u32,
}

/// Resources that are charged to an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Charges {
    opens: usize,
    objects: usize,
    queued_bytes: u64,
    touched_pages: u64,
    untaken_bytes: u64,
    taken_buffers: u64,
}

impl Charges {
    fn of(account: &Account) -> Self {
        let &Account { opens, objects, queued_bytes, touched_pages, untaken_bytes, .. } = account;
        let taken_buffers = account.taken_buffers;
        Self { opens, objects, queued_bytes, touched_pages, untaken_bytes, taken_buffers }
    }
}

/// How often each key occurs.
struct Tally<K>(BTreeMap<K, usize>);

impl<K: Ord> Tally<K> {
    fn of(keys: impl Iterator<Item = K>) -> Self {
        let mut counts = BTreeMap::new();
        keys.for_each(|key| *counts.entry(key).or_default() += 1);
        Self(counts)
    }

    fn count(&self, key: K) -> usize {
        self.0.get(&key).copied().unwrap_or(0)
    }
}

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

impl Driver {
    /// Checks every invariant; the error names the first that is violated.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        let queued = self.check_queues()?;
        self.check_threads()?;
        self.check_wakes()?;
        self.check_buffers()?;
        self.check_transactions(&queued)?;
        self.check_nodes()?;
        self.check_refs()?;
        self.check_deaths(&queued)?;
        self.check_freezes(&queued)?;
        self.check_accounts()
    }

    /// Each account is charged exactly for its opens and its messages.
    fn check_accounts(&self) -> Result<(), String> {
        let charges = self.charges();
        for (id, account) in self.accounts.iter() {
            let owner = account.owner;
            let counted = charges.get(&id).copied().unwrap_or_default();
            let kept = Charges::of(account);
            ensure!(kept == counted, "{owner:?} keeps {kept:?}, counted {counted:?}");
            let is_used = account.opens > 0 || account.queued_bytes > 0;
            ensure!(is_used, "the account of {owner:?} is unused");
            ensure!(self.accounts_by_owner.get(&owner) == Some(&id), "{owner:?} is lost");
        }
        let mut untaken: BTreeMap<ProcessId, u64> = BTreeMap::new();
        for buffer in self.buffers.values().filter(|buffer| buffer.queued_for.is_some()) {
            *untaken.entry(buffer.process).or_default() += buffer.layout.total;
        }
        for (id, process) in self.processes.iter() {
            let counted = untaken.get(&id).copied().unwrap_or(0);
            let kept = process.untaken_bytes;
            ensure!(kept == counted, "{id:?} keeps {kept} untaken bytes, counted {counted}");
        }
        let accounts = self.accounts.len();
        ensure!(accounts == self.accounts_by_owner.len(), "an owner is listed twice");
        Ok(())
    }

    fn charges(&self) -> BTreeMap<AccountId, Charges> {
        let mut all: BTreeMap<AccountId, Charges> = BTreeMap::new();
        for open in self.processes.values() {
            let charges = all.entry(open.account).or_default();
            charges.opens += 1;
            charges.objects +=
                open.nodes.len() + open.refs.len() + open.deaths + open.freeze_notifications;
            let touched = open.area.as_ref().map_or(0, |area| area.pages.touched());
            charges.touched_pages += u64::from(touched);
        }
        for buffer in self.buffers.values() {
            let bytes = buffer.layout.total;
            let receiver = all.entry(self.processes[buffer.process].account).or_default();
            match buffer.queued_for {
                Some(sender) => {
                    receiver.untaken_bytes += bytes;
                    all.entry(sender).or_default().queued_bytes += bytes + RECORD_BYTES;
                }
                None => receiver.taken_buffers += 1,
            }
        }
        all
    }

    /// Once all wake-ups were handled, no parked thread may have work to take.
    #[doc(hidden)]
    pub fn check_all_woken(&self) -> Result<(), String> {
        for (id, thread) in self.threads.iter() {
            let Some(parked) = thread.parked else { continue };
            let forgotten = parked.woken || self.has_work(id, parked.scope);
            ensure!(!forgotten, "{id:?} sleeps over its work");
        }
        Ok(())
    }

    /// Only devices are left.
    #[doc(hidden)]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
            && self.threads.is_empty()
            && self.nodes.is_empty()
            && self.refs.is_empty()
            && self.transactions.is_empty()
            && self.buffers.is_empty()
            && self.deaths.is_empty()
            && self.freezes.is_empty()
            && self.accounts.is_empty()
            && self.freeze_notifications.is_empty()
            && self.idle_pages.len() == 0
            && self.queues.totals() == (0, 0)
            && self.contexts.values().all(|context| context.opens == 0)
    }

    /// Each queue has one owner, and each item is in the state that its owner has recorded; returns
    /// all items.
    fn check_queues(&self) -> Result<BTreeMap<Item, Vec<WorkId>>, String> {
        let threads = self.threads.values().map(|thread| thread.todo);
        let processes = self.processes.values().map(|process| process.todo);
        let nodes = self.nodes.values().filter_map(|node| node.oneway_todo);
        let queues: Vec<QueueId> = threads.chain(processes).chain(nodes).collect();
        let distinct: BTreeSet<_> = queues.iter().collect();
        ensure!(distinct.len() == queues.len(), "a queue has two owners");
        let mut items: BTreeMap<Item, Vec<WorkId>> = BTreeMap::new();
        let mut count = 0;
        for &queue in &queues {
            let mut here = 0;
            for (id, work) in self.queues.iter(queue) {
                items.entry(Item::of(work)).or_default().push(id);
                here += 1;
            }
            ensure!(here == self.queues.len(queue), "queue counts {}", self.queues.len(queue));
            count += here;
        }
        let totals = (queues.len(), count);
        ensure!(totals == self.queues.totals(), "{totals:?} but {:?}", self.queues.totals());
        Ok(items)
    }

    fn check_threads(&self) -> Result<(), String> {
        let listed: usize = self.processes.values().map(|process| process.threads.len()).sum();
        ensure!(listed == self.threads.len(), "{listed} of {} threads listed", self.threads.len());
        for (id, thread) in self.threads.iter() {
            let work = || self.queues.iter(thread.todo).map(|(_, work)| work);
            let errors = work().filter(|w| matches!(w, Work::ReturnError(_) | Work::Error(_)));
            ensure!(errors.count() == thread.return_error.into(), "return errors of {id:?}");
            let errors = work().filter(|w| matches!(w, Work::ReplyError(_))).count();
            ensure!(errors == thread.reply_error.into(), "reply errors of {id:?}");
            let mut seen = BTreeSet::new();
            for call in self.stack_of(id) {
                ensure!(seen.insert(call), "the stack of {id:?} has a loop");
                let entry = self.transactions.get(call);
                let member = entry.is_some_and(|t| t.from == Some(id) || t.to_thread == Some(id));
                ensure!(member, "the stack of {id:?} holds a foreign call {call:?}");
            }
        }
        for (id, process) in self.processes.iter() {
            let opens = self.contexts.get(process.context).map(|context| context.opens);
            ensure!(opens > Some(0), "{id:?} has no context");
        }
        Ok(())
    }

    /// Every parked reader that has work is woken, and work of a process wakes one of the readers
    /// that would take it.
    fn check_wakes(&self) -> Result<(), String> {
        let all_idle = self.processes.iter();
        let all_idle = all_idle.flat_map(|(id, open)| open.idle.iter().map(move |&t| (id, t)));
        let idle = Tally::of(all_idle);
        for (id, thread) in self.threads.iter() {
            let Some(parked) = thread.parked else { continue };
            ensure!(thread.fd_delivery.is_none(), "{id:?} is parked with a file delivery");
            let own = self.has_work(id, WorkScope::Thread);
            ensure!(parked.woken || !own, "{id:?} is parked with work of its own");
            let holds = matches!(thread.reply_complete, ReplyComplete::Held { .. });
            ensure!(!holds || thread.is_listed_as_holding, "{id:?} holds without a bound");
            let idle = idle.count((thread.process, id));
            let expected = parked.scope == WorkScope::Process && !parked.woken;
            ensure!(idle == usize::from(expected), "{id:?} is listed idle {idle} times");
        }
        let listed = Tally::of(self.holding.iter().copied());
        let is_listed = |thread: &Thread| usize::from(thread.is_listed_as_holding);
        let wrong = self.threads.iter().find(|&(id, thread)| listed.count(id) != is_listed(thread));
        ensure!(wrong.is_none(), "{wrong:?} is listed as holding");
        let slots = self.buffers.values().filter(|buffer| buffer.holds_oneway_slot);
        let slots = Tally::of(slots.map(|buffer| buffer.process));
        for (id, process) in self.processes.iter() {
            ensure!(slots.count(id) == process.oneway_slots, "one-way slots of {id:?}");
            let known = process.idle.iter().all(|&thread| self.threads.contains_key(thread));
            ensure!(known, "{id:?} lists a stale thread as idle");
            let woken = process
                .threads
                .values()
                .any(|&thread| self.threads[thread].parked.is_some_and(|parked| parked.woken));
            let waiting = !self.queues.is_empty(process.todo) && !process.idle.is_empty();
            ensure!(woken || !waiting, "{id:?} has work and idle threads, none of them woken");
        }
        Ok(())
    }

    fn check_buffers(&self) -> Result<(), String> {
        let mut listed = 0;
        for (id, process) in self.processes.iter() {
            let Some(area) = &process.area else { continue };
            area.ranges.check().map_err(|error| format!("{id:?}: {error}"))?;
            let mut oneway = 0;
            let mut shares: BTreeMap<u32, OnewayShare> = BTreeMap::new();
            for (offset, len, buffer) in area.ranges.live() {
                let entry = self.buffers.get(buffer).ok_or("a range without its buffer")?;
                let here = entry.process == id && entry.offset == offset;
                ensure!(here, "{buffer:?} is not where it thinks");
                ensure!(entry.layout.total.max(8) == len.into(), "{buffer:?} has {len} bytes");
                ensure!(entry.delivered || entry.transaction.is_some(), "{buffer:?} leaks");
                ensure!(!entry.delivered || entry.files.is_empty(), "{buffer:?} kept its files");
                if entry.oneway {
                    oneway += len;
                    let share = shares.entry(entry.sender_pid).or_default();
                    share.buffers += 1;
                    share.bytes += len;
                }
                listed += 1;
            }
            let half = area.ranges.size() / 2;
            let free = area.free_oneway;
            ensure!(
                u64::from(free) + u64::from(oneway) == u64::from(half),
                "{id:?}: {free} + {oneway} async of {half}"
            );
            ensure!(shares == area.oneway_shares, "{id:?}: senders of one-way calls");
        }
        let areas = self.processes.iter().filter_map(|(id, p)| Some((id, &p.area.as_ref()?.pages)));
        let bytes = self.page_bytes();
        self.idle_pages.check(areas, |id, page| {
            let area = self.processes[id].area.as_ref();
            area.is_some_and(|area| area.ranges.covers(page * bytes..(page + 1) * bytes))
        })?;
        ensure!(listed == self.buffers.len(), "{listed} of {} buffers listed", self.buffers.len());
        Ok(())
    }

    fn check_transactions(&self, queued: &BTreeMap<Item, Vec<WorkId>>) -> Result<(), String> {
        let mut on_stacks: BTreeMap<TransactionId, BTreeSet<ThreadId>> = BTreeMap::new();
        for id in self.threads.keys() {
            for call in self.stack_of(id) {
                on_stacks.entry(call).or_default().insert(id);
            }
        }
        let mut below: BTreeSet<TransactionId> = BTreeSet::new();
        below.extend(self.transactions.values().filter_map(|t| t.from_parent));
        let deliveries = self.threads.values().filter_map(|thread| thread.fd_delivery.as_ref());
        let deliveries = Tally::of(deliveries.map(|delivery| delivery.transaction));
        for (id, entry) in self.transactions.iter() {
            let in_queues = queued.get(&Item::Transaction(id)).map_or(0, Vec::len);
            let in_queues = in_queues + deliveries.count(id);
            let stacks = on_stacks.get(&id);
            let on = |thread: ThreadId| stacks.is_some_and(|s| s.contains(&thread));
            ensure!(in_queues <= 1, "{id:?} is queued {in_queues} times");
            if let Some(from) = entry.from {
                ensure!(entry.kind == Kind::Call && on(from), "{id:?} lost its caller's stack");
            }
            if entry.kind != Kind::Call {
                ensure!(in_queues == 1, "{} {id:?} is nowhere", entry.kind);
            } else if in_queues == 0 {
                let served = entry.to_thread.is_some_and(on);
                let unwinding = entry.to_thread.is_none() && below.contains(&id);
                ensure!(served || unwinding, "call {id:?} will never end");
            }
            if let Some(buffer) = entry.buffer {
                let back = self.buffers.get(buffer).and_then(|buffer| buffer.transaction);
                ensure!(back == Some(id), "{id:?} and its buffer disagree");
            }
            ensure!(entry.buffer.is_some() || in_queues == 0, "{id:?} lost its buffer");
        }
        for (id, buffer) in self.buffers.iter() {
            let Some(transaction) = buffer.transaction else { continue };
            let back = self.transactions.get(transaction).and_then(|t| t.buffer);
            ensure!(back == Some(id), "{id:?} and its transaction disagree");
        }
        let known = |item: &Item| match item {
            Item::Transaction(id) => self.transactions.contains_key(*id),
            Item::Node(id) => self.nodes.contains_key(*id),
            Item::Death(id) => self.deaths.contains_key(*id),
            Item::FreezeNotification(id) => self.freeze_notifications.contains_key(*id),
            Item::Word => true,
        };
        ensure!(queued.keys().all(known), "a queue holds a stale item");
        Ok(())
    }

    fn node_accounts(&self) -> Result<BTreeMap<NodeId, NodeAccount>, String> {
        let mut accounts: BTreeMap<NodeId, NodeAccount> = BTreeMap::new();
        for reference in self.refs.values() {
            let account = accounts.entry(reference.node).or_default();
            account.refs += 1;
            account.internal_strong += u32::from(reference.strong > 0);
        }
        for (id, buffer) in self.buffers.iter() {
            for object in &buffer.held {
                if let HeldObject::Node { node, strength } = *object {
                    let account = accounts.entry(node).or_default();
                    account.local_strong += u32::from(strength == Strength::Strong);
                    account.local_weak += u32::from(strength == Strength::Weak);
                }
            }
            let Some(node) = buffer.target else { continue };
            let owner = self.nodes.get(node).map(|node| node.owner);
            ensure!(owner == Some(Some(buffer.process)), "the target of {id:?} is gone");
            let account = accounts.entry(node).or_default();
            account.local_strong += 1;
            account.oneway_slots += u32::from(buffer.holds_oneway_slot);
        }
        for manager in self.contexts.values().filter_map(|context| context.manager) {
            let account = accounts.entry(manager).or_default();
            account.local_strong += 1;
            account.local_weak += 1;
        }
        for (id, node) in self.nodes.iter() {
            let account = accounts.entry(id).or_default();
            account.local_strong += u32::from(node.pending_strong);
            account.local_weak += u32::from(node.pending_weak);
        }
        Ok(accounts)
    }

    fn check_nodes(&self) -> Result<(), String> {
        let accounts = self.node_accounts()?;
        ensure!(accounts.len() == self.nodes.len(), "a reference to a removed node");
        for (id, node) in self.nodes.iter() {
            let kept = NodeAccount {
                internal_strong: node.internal_strong,
                refs: node.ref_count,
                local_strong: node.local_strong,
                local_weak: node.local_weak,
                oneway_slots: node.has_oneway.into(),
            };
            ensure!(kept == accounts[&id], "{id:?} keeps {kept:?}, counted {:?}", accounts[&id]);
            let waiting = node.oneway_todo.is_some_and(|queue| !self.queues.is_empty(queue));
            let mut updates: BTreeMap<UpdateKey, VecDeque<QueuedUpdate>> = BTreeMap::new();
            for (item, work) in node.oneway_todo.iter().flat_map(|&queue| self.queues.iter(queue)) {
                let Work::Transaction(transaction) = work else { continue };
                if let Some(key) = self.update_key(transaction) {
                    let update = QueuedUpdate { work: item, transaction };
                    updates.entry(key).or_default().push_back(update);
                }
            }
            ensure!(updates == node.updates, "the index of {id:?}'s one-way calls");
            ensure!(node.has_oneway || !waiting, "{id:?} has one-ways that nothing starts");
            let linked = std::iter::successors(node.first_ref, |&at| {
                self.refs.get(at).and_then(|reference| reference.next_of_node)
            });
            // One more than expected shows that the list is longer, or never ends.
            let linked = linked.take(node.ref_count as usize + 1).collect::<Vec<_>>();
            ensure!(linked.len() == node.ref_count as usize, "the list of {id:?}'s references");
            let mut previous = None;
            for &at in &linked {
                let entry = self.refs.get(at).map(|entry| (entry.node, entry.previous_of_node));
                ensure!(entry == Some((id, previous)), "{at:?} in the list of {id:?}'s references");
                previous = Some(at);
            }
            let used = node.ref_count > 0 || node.local_weak > 0 || node.local_strong > 0;
            let Some(owner) = node.owner else {
                ensure!(node.ref_count > 0, "dead {id:?} leaks");
                ensure!(node.work.is_none(), "dead {id:?} is queued");
                continue;
            };
            let listed = self.processes.get(owner).and_then(|owner| owner.nodes.get(&node.ptr));
            ensure!(listed == Some(&id), "{id:?} is not listed by its owner");
            let notified = node.has_strong || node.has_weak;
            ensure!(used || (notified && node.work.is_some()), "{id:?} leaks");
            let strong = node.internal_strong > 0 || node.local_strong > 0;
            let must_notify = (node.has_strong && !strong) || (node.has_weak && !used);
            ensure!(!must_notify || node.work.is_some(), "the owner is never notified of {id:?}");
        }
        let listed: usize = self.processes.values().map(|process| process.nodes.len()).sum();
        let owned = self.nodes.values().filter(|node| node.owner.is_some()).count();
        ensure!(listed == owned, "{listed} nodes listed, {owned} owned");
        Ok(())
    }

    fn check_refs(&self) -> Result<(), String> {
        let mut listed = 0;
        for (id, process) in self.processes.iter() {
            process.refs.check().map_err(|error| format!("{id:?}: {error}"))?;
            listed += process.refs.len();
        }
        ensure!(listed == self.refs.len(), "{listed} of {} refs listed", self.refs.len());
        for (id, entry) in self.refs.iter() {
            ensure!(entry.strong > 0 || entry.weak > 0, "{id:?} leaks");
            let process = &self.processes[entry.process];
            let found = process.refs.get(entry.handle);
            ensure!(found == Some(id), "{id:?} is not under its handle");
            ensure!(process.refs.of_node(entry.node) == Some(id), "{id:?} is not under its node");
            ensure!(self.nodes[entry.node].owner != Some(entry.process), "{id:?} to its own node");
        }
        Ok(())
    }

    fn check_deaths(&self, queued: &BTreeMap<Item, Vec<WorkId>>) -> Result<(), String> {
        use DeathState::*;
        let registered: BTreeSet<_> = self.refs.values().filter_map(|entry| entry.death).collect();
        for (id, death) in self.deaths.iter() {
            let items = queued.get(&Item::Death(id)).map_or(&[][..], Vec::as_slice);
            let work = Vec::from_iter(death.work);
            ensure!(items == work, "{id:?} ({:?}) is queued as {items:?}", death.state);
            let process = &self.processes[death.process];
            let sent = process.delivered_deaths.contains(death.cookie, id);
            ensure!(sent == death.delivered, "{id:?} and its process disagree");
            let alive = match death.state {
                Armed => registered.contains(&id) && !sent && work.is_empty(),
                Dead => registered.contains(&id) && (sent ^ !work.is_empty()),
                DeadAndClear => !registered.contains(&id) && (sent ^ !work.is_empty()),
                Clear => !registered.contains(&id) && !sent && !work.is_empty(),
            };
            ensure!(alive, "{id:?} is {:?} without a reason", death.state);
        }
        let counted = Tally::of(self.deaths.values().map(|death| death.process));
        for (id, process) in self.processes.iter() {
            ensure!(counted.count(id) == process.deaths, "{id:?} counts {} deaths", process.deaths);
        }
        for entry in self.refs.values() {
            // Watchers of a dead node were notified, and the notification stays registered whether
            // it was acknowledged or not.
            let Some(death) = entry.death.and_then(|id| self.deaths.get(id)) else { continue };
            let dead = self.nodes[entry.node].owner.is_none();
            ensure!(dead || death.state == Armed, "a death was announced of a living node");
        }
        Ok(())
    }

    fn check_freezes(&self, queued: &BTreeMap<Item, Vec<WorkId>>) -> Result<(), String> {
        let outstanding = Tally::of(self.transactions.values().filter_map(|entry| entry.to));
        let requested = Tally::of(self.freeze_notifications.values().map(|entry| entry.process));
        let mut waits: BTreeMap<ProcessId, BTreeSet<FreezeId>> = BTreeMap::new();
        for (wait, entry) in self.freezes.iter() {
            for &target in &entry.targets {
                waits.entry(target).or_default().insert(wait);
            }
        }
        let mut watchers: BTreeMap<ProcessId, BTreeSet<FreezeNotificationId>> = BTreeMap::new();
        for (watcher, entry) in self.freeze_notifications.iter() {
            if let Some(owner) = entry.owner {
                watchers.entry(owner).or_default().insert(watcher);
            }
        }
        for (id, process) in self.processes.iter() {
            let (freezer, outstanding) = (&process.freezer, outstanding.count(id));
            let kept = freezer.outstanding;
            ensure!(kept == outstanding, "{id:?} keeps {kept} outstanding, counted {outstanding}");
            let waits = waits.remove(&id).unwrap_or_default();
            ensure!(waits == freezer.waits, "{id:?} does not know who waits for it");
            let watchers = watchers.remove(&id).unwrap_or_default();
            ensure!(watchers == freezer.watchers, "{id:?} does not know its watchers");
            let (requested, kept) = (requested.count(id), process.freeze_notifications);
            ensure!(requested == kept, "{id:?} keeps {kept} notifications, counted {requested}");
        }
        let alive = |id: &ProcessId| self.processes.contains_key(*id);
        for (id, wait) in self.freezes.iter() {
            ensure!(alive(&wait.caller) && wait.targets.iter().all(alive), "{id:?} is stale");
        }
        let registered: BTreeSet<_> = self.refs.values().filter_map(|entry| entry.freeze).collect();
        for (id, entry) in self.freeze_notifications.iter() {
            let items = queued.get(&Item::FreezeNotification(id)).map_or(&[][..], Vec::as_slice);
            ensure!(items == Vec::from_iter(entry.work), "{id:?} is queued as {items:?}");
            let listed = &self.processes[entry.process].sent_freeze_notifications;
            ensure!(listed.contains(entry.cookie, id) == entry.sent, "{id:?} sent or not");
            ensure!(entry.clear != registered.contains(&id), "{id:?} is not where it belongs");
            ensure!(!entry.sent || entry.work.is_none(), "{id:?} is sent and queued");
            ensure!(entry.sent || !entry.resend, "{id:?} follows nothing");
            ensure!(!entry.clear || entry.sent || entry.work.is_some(), "{id:?} leaks");
            ensure!(!entry.clear || entry.owner.is_none(), "{id:?} is withdrawn and watches");
            let owner = entry.owner.map(|owner| &self.processes[owner].freezer);
            let pending = entry.work.is_some() || entry.resend;
            let notified = owner.is_none_or(|f| pending || entry.is_frozen == f.announced);
            ensure!(notified, "{id:?} missed a change");
        }
        Ok(())
    }
}

/// A queued item that has an object behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Transaction(TransactionId),
    Node(NodeId),
    Death(DeathId),
    FreezeNotification(FreezeNotificationId),
    Word,
}

impl Item {
    fn of(work: Work) -> Self {
        match work {
            Work::Transaction(id) => Item::Transaction(id),
            Work::Node(id) => Item::Node(id),
            Work::Death(id) => Item::Death(id),
            Work::FreezeNotification(id) => Item::FreezeNotification(id),
            _ => Item::Word,
        }
    }
}
