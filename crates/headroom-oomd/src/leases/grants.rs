//! Decisions about requests: grant, refuse, defer, and recall of unused leases.

use control::lease::{Reply, Status, UNLIMITED_BYTES};
use control::server::CpuTime;
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{AccountId, ClientId, Decision, Lease, NS_PER_MS, Standing};
use memory_watch::Precision;

use super::Leases;
use super::clients::{SharedPage, page_of};
use crate::oom::OomManager;

/// Attempts to read an account that changes during the reading; then the highest reading is used.
const LOOKS: u32 = 3;
/// The longest that a reply is deferred, milliseconds: one minute, after which the client requests
/// again.
const MAX_WAIT_MS: u32 = 60_000;
/// Maximum number of deferred requests per account.
const MAX_WAITING_OF_A_USER: usize = 512;
/// Deferred requests per iteration of the event loop: all 512 of an account in 160 ms.
const WAITING_PER_TURN: usize = 16;
/// Up to this fraction (1/2) of the limit a lease is granted without an exact reading: the error of
/// a batched account is smaller than the rest.
const ROUGH_SHARE: u64 = 2;

/// A client's request for at least `need` bytes, and preferably `wish`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) client: ClientId,
    /// The account that the client is charged to.
    account: AccountId,
    need: u64,
    wish: u64,
}

/// The parameters of a client's request for more memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Least grant, bytes.
    pub(super) need: u64,
    /// Preferred grant, bytes.
    pub(super) wish: u64,
    /// How long the reply may be deferred, milliseconds.
    pub(super) wait_ms: u32,
}

/// A deferred request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) growth: Growth,
    until_ns: u64,
}

/// Whether a refusal can become a grant without any action of the client.
fn may_change(status: Status) -> bool {
    matches!(status, Status::Full | Status::Short)
}

impl Leases {
    /// Takes a fresh and consistent reading of an account and all its clients.
    pub(super) fn look(&mut self, account: AccountId, oom: &mut OomManager) -> Option<Standing> {
        oom.accounts_mut().refresh_if_polling();
        let mut most = oom.accounts_mut().standing(account)?;
        for _ in 0..LOOKS {
            let before = oom.accounts().changes(account);
            most.used_bytes = most.used_bytes.max(oom.accounts_mut().standing(account)?.used_bytes);
            self.observe(account, oom);
            let now = oom.accounts_mut().standing(account)?;
            if oom.accounts().changes(account) == before {
                return Some(now);
            }
            most.used_bytes = most.used_bytes.max(now.used_bytes);
        }
        Some(most)
    }

    fn observe(&mut self, account: AccountId, oom: &OomManager) {
        let Some(book) = self.books.get_mut(&account) else { return };
        let ids: Vec<ClientId> = book.leases().map(|(id, _)| id).collect();
        for id in ids {
            let (Some(client), Some(lease)) = (self.clients.get(&id), book.lease_mut(id)) else {
                continue;
            };
            let unspent = || client.page.as_ref().map_or(0, |page| page.unspent(lease.granted));
            let before = unspent();
            // Not charged to this account: the process is exiting, or is charged to another account
            // by now.
            let resident = match oom.accounts().resident(&client.process) {
                Some((owner, bytes)) if owner == account => bytes,
                _ => 0,
            };
            let unspent = before.min(unspent());
            lease.observe(resident, unspent);
        }
    }

    pub(super) fn headroom(&self, account: AccountId, standing: &Standing) -> u64 {
        self.books.get(&account).map_or(0, |book| book.headroom(standing))
    }

    /// Handles a client's request for more memory.
    pub(super) fn grow(&mut self, id: ClientId, demand: Demand, oom: &mut OomManager) {
        let Demand { need, wish, wait_ms } = demand;
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.active = true;
        let account = client.account;
        if !client.limited {
            return self.reply(id, &self.done(id, 0));
        }
        let growth = Growth { client: id, account, need, wish };
        match self.try_grow(growth, oom) {
            Ok(granted) => self.reply(id, &self.done(id, granted)),
            Err(status) => {
                let can_wait = may_change(status) && wait_ms > 0;
                let waiting = self.waiting.iter();
                let others = waiting.clone().filter(|w| w.growth.account == account).count();
                if can_wait
                    && others < MAX_WAITING_OF_A_USER
                    && !waiting.clone().any(|w| w.growth.client == id)
                {
                    let wait_ms = u64::from(wait_ms.min(MAX_WAIT_MS));
                    let until_ns = monotonic_ns() + wait_ms * NS_PER_MS;
                    self.waiting.push_back(Waiting { growth, until_ns });
                    self.next_look_ns = 0;
                    return;
                }
                self.refused += 1;
                self.reply(id, &self.refusal(id, status));
            }
        }
    }

    fn done(&self, id: ClientId, granted: u64) -> Reply {
        let limited = self.clients.get(&id).is_some_and(|client| client.limited);
        Reply { limited, granted, ..Reply::of(Status::Done) }
    }

    fn refusal(&self, id: ClientId, status: Status) -> Reply {
        Reply { status, ..self.done(id, 0) }
    }

    fn try_grow(&mut self, growth: Growth, oom: &mut OomManager) -> Result<u64, Status> {
        let Growth { client: id, account, need, .. } = growth;
        // While the system is near its soft level, a grant does not exceed the need, and is refused
        // if it exceeds the room up to that level: it would hasten the next kill.
        let wish = match oom.system_room() {
            Some(room) if need > room => return Err(Status::Short),
            Some(_) => need,
            None => growth.wish,
        };
        let growth = Growth { wish, ..growth };
        let granted = match self.decide_roughly(growth, oom) {
            Some(granted) => granted,
            None => self.decide_exactly(growth, oom)?,
        };
        let book = self.books.get_mut(&account).ok_or(Status::NotYou)?;
        let lease = book.lease_mut(id).ok_or(Status::NotYou)?;
        lease.granted += granted;
        // The journal is written before the client's page: a daemon that is killed in between has
        // recorded too large a grant, never too small a one.
        self.note(id, oom);
        if let Some(page) = page_of(&self.clients, id) {
            page.add(granted);
        }
        Ok(granted)
    }

    /// Decides without an exact reading, which is not needed far below the limit.
    fn decide_roughly(&mut self, growth: Growth, oom: &mut OomManager) -> Option<u64> {
        let Growth { client: id, account, need, wish } = growth;
        let standing = oom.accounts_mut().standing(account)?;
        let book = self.books.get(&account)?;
        let most = standing.used_bytes.checked_add(book.entitled())?.checked_add(need)?;
        if most > standing.hard_bytes / ROUGH_SHARE {
            return None;
        }
        match book.decide(id, need, wish, &standing) {
            Decision::Grant(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn decide_exactly(&mut self, growth: Growth, oom: &mut OomManager) -> Result<u64, Status> {
        let Growth { client: id, account, need, wish } = growth;
        oom.accounts_mut().set_precision(account, Precision::Exact);
        let decide = |leases: &mut Self, oom: &mut OomManager| {
            let standing = leases.look(account, oom)?;
            Some(leases.books.get(&account)?.decide(id, need, wish, &standing))
        };
        let mut decision = decide(self, oom).ok_or(Status::NotYou)?;
        if decision == Decision::Full && self.collect(account, Some(id), oom) {
            decision = decide(self, oom).ok_or(Status::NotYou)?;
        }
        if let Decision::Grant(bytes) = decision {
            return Ok(bytes);
        }
        // Requests the other clients' allocators to return unused memory; they check the flag
        // later.
        self.recall(account, Some(id));
        Err(Status::Full)
    }

    /// Takes back the unspent balances of all clients of the account but `except`. `true`: at least
    /// one was not empty.
    fn collect(
        &mut self,
        account: AccountId,
        except: Option<ClientId>,
        oom: &mut OomManager,
    ) -> bool {
        let ids: Vec<ClientId> = match self.books.get(&account) {
            Some(book) => {
                book.leases().map(|(id, _)| id).filter(|id| Some(*id) != except).collect()
            }
            None => return false,
        };
        let mut came = false;
        for id in ids {
            came |= self.collect_from(account, id, oom) > 0;
        }
        came
    }

    fn collect_from(&mut self, account: AccountId, id: ClientId, oom: &mut OomManager) -> u64 {
        let lease = self.books.get_mut(&account).and_then(|book| book.lease_mut(id));
        let page = page_of(&self.clients, id);
        let (Some(lease), Some(page)) = (lease, page) else { return 0 };
        // First from the client's page, then from its lease: no byte is granted to two clients at a
        // time.
        let bytes = page.take_back(0, lease.granted);
        lease.granted -= bytes;
        if bytes > 0 {
            self.note(id, oom);
        }
        bytes
    }

    fn recall(&self, account: AccountId, except: Option<ClientId>) {
        let Some(book) = self.books.get(&account) else { return };
        for (id, _) in book.leases().filter(|(id, _)| Some(*id) != except) {
            if let Some(page) = page_of(&self.clients, id) {
                page.recall();
            }
        }
    }

    /// Handles an account that has crossed its soft limit, or a system near its soft level: takes
    /// back unused leases before any process is killed.
    pub(super) fn press(&mut self, account: AccountId, oom: &mut OomManager) {
        if self.collect(account, None, oom) {
            tracing::debug!(%account, "memory is short: unused leases taken back");
        }
        self.recall(account, None);
    }

    /// Takes back the balances of clients that sent no request since the last collection.
    pub(super) fn collect_from_the_idle(&mut self, oom: &mut OomManager) {
        let idle: Vec<(AccountId, ClientId)> = self
            .clients
            .iter_mut()
            .filter_map(|(id, client)| {
                let idle = !std::mem::take(&mut client.active);
                (client.limited && idle).then_some((client.account, *id))
            })
            .collect();
        for (account, id) in idle {
            self.collect_from(account, id, oom);
        }
    }

    /// Retries deferred requests, at most `WAITING_PER_TURN`, the oldest first.
    pub(super) fn serve_waiting(&mut self, oom: &mut OomManager) {
        let now_ns = monotonic_ns();
        for _ in 0..self.waiting.len().min(WAITING_PER_TURN) {
            let Some(waiting) = self.waiting.pop_front() else { return };
            let Waiting { growth, until_ns } = waiting;
            let client = growth.client;
            let Some(owner) = self.clients.get(&client).map(|client| client.owner) else {
                continue;
            };
            if now_ns < until_ns && !self.server.has_time(owner) {
                self.waiting.push_back(waiting);
                continue;
            }
            let begun = CpuTime::now();
            match self.try_grow(growth, oom) {
                Ok(granted) => self.reply(client, &self.done(client, granted)),
                Err(status) if may_change(status) && now_ns < until_ns => {
                    self.waiting.push_back(waiting);
                }
                Err(status) => {
                    self.refused += 1;
                    let status = if may_change(status) { Status::TimedOut } else { status };
                    self.reply(client, &self.refusal(client, status));
                }
            }
            self.server.charge(owner, begun);
        }
    }

    /// The largest grant that the client could get now.
    pub(super) fn headroom_of(&mut self, id: ClientId, oom: &mut OomManager) -> Reply {
        let Some(client) = self.clients.get(&id) else { return Reply::of(Status::NotYou) };
        let (account, limited) = (client.account, client.limited);
        let headroom = if limited {
            self.collect(account, Some(id), oom);
            self.look(account, oom).map_or(0, |standing| self.headroom(account, &standing))
        } else {
            UNLIMITED_BYTES
        };
        Reply { headroom, ..self.done(id, 0) }
    }

    /// Handles a client's report that it has given memory back: a deferred request may fit now.
    pub(super) fn given_back(&mut self, id: ClientId, oom: &mut OomManager) {
        let Some(client) = self.clients.get(&id) else { return };
        if client.limited {
            let account = client.account;
            self.collect_from(account, id, oom);
            self.serve_waiting(oom);
        }
    }

    /// Follows changes of limits and groups: clients of accounts that have a limit now get a lease,
    /// those of accounts without a limit become unlimited. If a client's account has changed, its
    /// old lease ends before the new one begins.
    pub(super) fn follow_limits(&mut self, oom: &mut OomManager) {
        let version = Some(oom.accounts().ledger().version());
        if std::mem::replace(&mut self.ledger_version, version) == version {
            return;
        }
        let (mut ended, mut begun) = (Vec::new(), Vec::new());
        for (id, client) in &self.clients {
            let account = oom.accounts().account_of(&client.process);
            let moved = account != client.account;
            let limited = oom.accounts().ledger().account(account).is_some();
            if moved || client.limited && !limited {
                ended.push(*id);
            }
            if limited && (moved || !client.limited) {
                begun.push(*id);
            }
        }
        for id in ended {
            self.end_lease(id, oom);
        }
        for id in begun {
            self.begin_lease(id, oom);
        }
    }

    /// Starts a lease for a client whose account has a limit now. What the client took from its
    /// page so far counts as granted, and the rest of its resident memory is the base of the lease.
    fn begin_lease(&mut self, id: ClientId, oom: &mut OomManager) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.limited = true;
        let account = client.account;
        let taken = |page: &SharedPage| UNLIMITED_BYTES - page.take_back(0, UNLIMITED_BYTES);
        let granted = client.page.as_ref().map_or(0, taken);
        let resident = oom.accounts().resident(&client.process).map_or(0, |(_, bytes)| bytes);
        let base = resident as i64 - granted as i64;
        self.books.entry(account).or_default().insert(id, Lease { base, granted, resident });
        oom.accounts_mut().set_precision(account, Precision::Exact);
        if let Some(page) = page_of(&self.clients, id) {
            page.set_limited();
        }
        self.note(id, oom);
    }

    /// Ends the lease of a client whose account has no limit any more, or has changed.
    fn end_lease(&mut self, id: ClientId, oom: &mut OomManager) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let account = client.account;
        client.account = oom.accounts().account_of(&client.process);
        client.limited = false;
        let lease = self.books.get_mut(&account).and_then(|book| book.remove(id));
        self.books.retain(|_, book| !book.is_empty());
        if lease.is_some() && !self.books.contains_key(&account) {
            oom.accounts_mut().set_precision(account, Precision::Batched);
        }
        if let Some(page) = page_of(&self.clients, id) {
            if let Some(lease) = lease {
                page.add(UNLIMITED_BYTES.saturating_sub(lease.granted));
            }
            page.set_unlimited();
        }
        self.note(id, oom);
        if self.waiting.iter().any(|waiting| waiting.growth.client == id) {
            self.waiting.retain(|waiting| waiting.growth.client != id);
            self.reply(id, &self.done(id, 0));
        }
    }
}
