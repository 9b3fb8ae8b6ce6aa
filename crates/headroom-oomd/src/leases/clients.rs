//! Lifecycle of a client: connect, reconnect, exit, and takeover from an earlier daemon; and the
//! page shared with it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use control::lease::{Reply, Status, UNLIMITED_BYTES, page};
use control::{Peer, RequestId};
use headroom_linux::clock::monotonic_ns;
use headroom_linux::descriptors::sealed_memfd;
use memory_ledger::{AccountId, ClientId, Lease, NS_PER_MS, ProcessId, Uid};
use memory_watch::{Precision, ProcessSample};
use owners::Owner;
use owners::reader::{self, NamespaceReader};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::journal::Record;
use super::{Leases, ORPHAN_MS};
use crate::oom::OomManager;

/// Upper bound of what a process can have taken, bytes: no address space is larger.
const ADDRESS_SPACE_BYTES: u64 = 1 << 57;
/// Attempts of a compare-and-swap, in case the client changes the same word all the time.
const TRIES: u32 = 64;

/// A process that uses the lease protocol.
pub(super) struct Client {
    /// The account that the process is charged to: its user's, or that of its user's group.
    pub(super) account: AccountId,
    pub(super) process: ProcessSample,
    /// The owner that the client's slot is charged to.
    pub(super) owner: Owner,
    /// Readable when the process has exited, which ends the lease.
    pidfd: OwnedFd,
    pub(super) connection: Option<RequestId>,
    /// `None`: the client of an earlier daemon, which has not reconnected yet.
    pub(super) page: Option<SharedPage>,
    slot: usize,
    /// Whether the account has a limit. If so, the client has a lease in the account's book.
    pub(super) limited: bool,
    /// Whether the client sent a request since idle balances were last collected.
    pub(super) active: bool,
    /// When the connection was closed, nanoseconds, CLOCK_MONOTONIC; `None`: it is open, or the
    /// client was checked since.
    pub(super) orphan_since_ns: Option<u64>,
}

impl Client {
    pub(super) fn id(&self) -> ProcessId {
        self.process.id()
    }

    fn has_exited(&self) -> bool {
        reader::has_exited(self.pidfd.as_fd())
    }
}

/// A client without a lease.
struct NewClient {
    process: ProcessSample,
    account: AccountId,
    pidfd: OwnedFd,
    owner: Owner,
}

/// What a client reports about itself. It may have been the client of an earlier daemon.
#[derive(Clone, Copy)]
pub(super) struct Remembered {
    /// Memory taken from the page so far, bytes.
    pub(super) spent: u64,
    /// Balance of the page: granted and not taken, bytes.
    pub(super) unspent: u64,
    /// The base of its lease, bytes, plus 1; 0: it has no lease.
    pub(super) base: u64,
}

impl Remembered {
    fn bounded(self) -> Self {
        Self {
            spent: self.spent.min(ADDRESS_SPACE_BYTES),
            unspent: self.unspent.min(ADDRESS_SPACE_BYTES),
            base: self.base,
        }
    }
}

/// The page shared with a client.
pub(super) fn page_of(clients: &BTreeMap<ClientId, Client>, id: ClientId) -> Option<&SharedPage> {
    clients.get(&id).and_then(|client| client.page.as_ref())
}

/// Whether both samples are of the same address space. A watch that does not know it reports 0 for
/// both.
fn same_program(a: &ProcessSample, b: &ProcessSample) -> bool {
    a.mm_id == b.mm_id
}

impl Leases {
    /// The first packet of a connection.
    pub(super) fn hello(
        &mut self,
        connection: RequestId,
        memory: Remembered,
        oom: &mut OomManager,
    ) {
        let made = self
            .identify(connection, oom)
            .and_then(|(process, pidfd)| self.find_or_add(connection, process, pidfd, oom))
            .and_then(|id| {
                let (page, file) = SharedPage::create().map_err(|_| Status::TooManyClients)?;
                Ok((id, page, file))
            });
        let (id, page, file) = match made {
            Ok(made) => made,
            Err(status) => return self.refuse(connection, status),
        };
        self.install(id, page, memory.bounded(), oom);
        let Some(client) = self.clients.get(&id) else { return };
        let base =
            self.books.get(&client.account).and_then(|book| book.lease(id)).map(|it| it.base);
        let mut reply = Reply::of(Status::Done);
        reply.limited = client.limited;
        reply.base = base.and_then(|base| u64::try_from(base).ok()).map_or(0, |base| base + 1);
        self.connected.insert(connection, id);
        if !self.send(connection, &reply, Some(file.as_fd())) {
            self.disconnect(connection);
        }
    }

    /// Identifies the peer process by the kernel's socket credentials.
    fn identify(
        &mut self,
        connection: RequestId,
        oom: &mut OomManager,
    ) -> Result<(ProcessSample, OwnedFd), Status> {
        let (socket, peer) = self.server.connection(connection).ok_or(Status::NotYou)?;
        let Peer { pid, uid: peer_uid, .. } = peer;
        let pid = u32::try_from(pid).map_err(|_| Status::NotYou)?;
        // It refers to the process that connected even if the pid is reused.
        let pidfd = reader::peer_pidfd(socket.as_fd(), pid);
        let pidfd = pidfd.map_err(|_| Status::NotYou)?;
        let process =
            oom.list_processes().iter().find(|it| it.tgid == pid).copied().ok_or(Status::NotYou)?;
        // If the process has not exited, its pid was not reused since the connection was made.
        if reader::has_exited(pidfd.as_fd()) || (process.uid != peer_uid && peer_uid != Uid::ROOT) {
            return Err(Status::NotYou);
        }
        Ok((process, pidfd))
    }

    fn find_or_add(
        &mut self,
        connection: RequestId,
        process: ProcessSample,
        pidfd: OwnedFd,
        oom: &mut OomManager,
    ) -> Result<ClientId, Status> {
        let known = self.clients.iter().find(|(_, client)| client.process.tgid == process.tgid);
        if let Some((&id, client)) = known {
            let same = client.process.start_number == process.start_number
                && client.process.uid == process.uid
                && same_program(&client.process, &process);
            if same {
                if let Some(old) = client.connection {
                    self.disconnect(old);
                }
                let client = self.clients.get_mut(&id).ok_or(Status::NotYou)?;
                client.connection = Some(connection);
                client.orphan_since_ns = None;
                return Ok(id);
            }
            self.remove_client(id, oom);
        }
        let account = oom.accounts().account_of(&process);
        let owner = self.server.connection(connection).ok_or(Status::NotYou)?.1.owner;
        let uid = process.uid;
        self.client_slots.take(owner, uid).map_err(|_| Status::TooManyClients)?;
        let Some(id) = self.add(NewClient { process, account, pidfd, owner }, None) else {
            self.client_slots.give_back(owner, uid);
            return Err(Status::TooManyClients);
        };
        if let Some(client) = self.clients.get_mut(&id) {
            client.connection = Some(connection);
        }
        Ok(id)
    }

    fn add(&mut self, client: NewClient, slot: Option<usize>) -> Option<ClientId> {
        let NewClient { process, account, pidfd, owner } = client;
        let slot = slot.or_else(|| self.journal.take_slot())?;
        let id = self.next_client;
        let word = epoll::EventData::new_u64(id);
        if epoll::add(&self.epoll, &pidfd, word, epoll::EventFlags::IN).is_err() {
            self.journal.free(slot);
            return None;
        }
        self.next_client += 1;
        let client = Client {
            account,
            process,
            owner,
            pidfd,
            connection: None,
            page: None,
            slot,
            limited: false,
            active: true,
            orphan_since_ns: None,
        };
        self.clients.insert(id, client);
        Some(id)
    }

    /// Adds the grant to the client's new page. The client's report is trusted only as far as it
    /// cannot affect other clients: memory that it took is in its account anyway, and memory that
    /// it has not taken must fit into the headroom.
    fn install(
        &mut self,
        id: ClientId,
        page: SharedPage,
        memory: Remembered,
        oom: &mut OomManager,
    ) {
        let Remembered { spent, unspent, base } = memory;
        let Some(client) = self.clients.get_mut(&id) else { return };
        let account = client.account;
        client.page = Some(page);
        if oom.accounts_mut().standing(account).is_none() {
            client.limited = false;
            if let Some(page) = &client.page {
                page.add(UNLIMITED_BYTES.saturating_sub(spent));
                page.set_unlimited();
            }
            return self.note(id, oom);
        }
        let known = self.books.get(&account).and_then(|book| book.lease(id)).copied();
        client.limited = true;
        let resident = oom.accounts().resident(&client.process).map_or(0, |(_, bytes)| bytes);
        let lease = match known {
            // Known from an earlier connection, or from an earlier daemon: grants at most what it
            // had.
            Some(known) => {
                let granted = known.granted.min(spent.saturating_add(unspent)).max(spent);
                Lease { granted, resident, ..known }
            }
            None => {
                let beside = resident as i64 - spent as i64;
                Lease { base: beside, granted: spent, resident }
            }
        };
        let book = self.books.entry(account).or_default();
        book.insert(id, lease);
        oom.accounts_mut().set_precision(account, Precision::Exact);
        let free = self.look(account, oom).map_or(0, |standing| self.headroom(account, &standing));
        let Some(lease) = self.books.get_mut(&account).and_then(|book| book.lease_mut(id)) else {
            return;
        };
        let mut balance = lease.granted - spent;
        if known.is_none() {
            // The grants are recorded by the client alone: renews as much as fits.
            let beside = i64::try_from(base.saturating_sub(1)).unwrap_or(0) - lease.base;
            let beside = u64::try_from(beside).unwrap_or(0).min(free);
            let kept = unspent.min(free - beside);
            lease.base += beside as i64;
            lease.granted += kept;
            balance = kept;
        }
        self.note(id, oom);
        if let Some(page) = page_of(&self.clients, id) {
            page.add(balance);
            page.set_limited();
        }
    }

    /// Records the client's lease in the journal, for the next daemon, and for victim selection.
    pub(super) fn note(&mut self, id: ClientId, oom: &mut OomManager) {
        let Some(client) = self.clients.get(&id) else { return };
        let lease = self.books.get(&client.account).and_then(|book| book.lease(id));
        oom.set_leased(client.id(), lease.map(Lease::entitlement));
        let lease = lease.copied().unwrap_or_default();
        let record = Record {
            pid: client.process.tgid,
            start_number: client.process.start_number,
            uid: client.process.uid,
            mm_id: client.process.mm_id,
            base: lease.base,
            granted: lease.granted,
        };
        self.journal.write(client.slot, &record);
    }

    /// Removes a client whose process has exited, or runs another program, and its lease.
    pub(super) fn remove_client(&mut self, id: ClientId, oom: &mut OomManager) {
        let Some(client) = self.clients.remove(&id) else { return };
        let (account, process) = (client.account, client.id());
        self.journal.free(client.slot);
        self.client_slots.give_back(client.owner, client.process.uid);
        oom.set_leased(process, None);
        if let Some(connection) = client.connection {
            self.connected.remove(&connection);
            self.server.close(connection);
        }
        // Closing the pidfd removes it from the epoll set.
        drop(client);
        self.waiting.retain(|waiting| waiting.growth.client != id);
        if let Some(book) = self.books.get_mut(&account) {
            book.remove(id);
            if book.is_empty() {
                self.books.remove(&account);
                oom.accounts_mut().set_precision(account, Precision::Batched);
            }
        }
        self.serve_waiting(oom);
    }

    /// Handles a closed connection. The lease remains: the process may have closed all its files
    /// and still run.
    pub(super) fn disconnect(&mut self, connection: RequestId) {
        self.server.close(connection);
        let Some(id) = self.connected.remove(&connection) else { return };
        self.waiting.retain(|waiting| waiting.growth.client != id);
        if let Some(client) = self.clients.get_mut(&id)
            && client.connection == Some(connection)
        {
            client.connection = None;
            client.orphan_since_ns = Some(monotonic_ns());
        }
    }

    /// Checks running processes whose connection was closed. A process that has executed another
    /// program has lost its old memory, so its lease ends.
    pub(super) fn look_after_orphans(&mut self, now_ns: u64, oom: &mut OomManager) {
        let due = |client: &Client| {
            client.orphan_since_ns.is_some_and(|since| now_ns >= since + ORPHAN_MS * NS_PER_MS)
        };
        let due: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| due(client)).map(|(id, _)| *id).collect();
        if due.is_empty() {
            return;
        }
        let processes = oom.list_processes();
        let mut gone = Vec::new();
        for id in due {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.orphan_since_ns = None;
            let now = processes.iter().find(|now| now.tgid == client.process.tgid);
            let lives = now.is_some_and(|now| same_program(now, &client.process));
            if !lives || client.has_exited() {
                gone.push(id);
            }
        }
        for id in gone {
            self.remove_client(id, oom);
        }
    }

    /// Takes over the leases that the last daemon left in the journal.
    pub(super) fn take_over(&mut self, records: Vec<(usize, Record)>, oom: &mut OomManager) {
        if records.is_empty() {
            return;
        }
        let processes = oom.list_processes().to_vec();
        let namespaces = NamespaceReader::new(Path::new("/proc")).ok();
        let (mut kept, mut gone) = (0, 0);
        for (slot, record) in records {
            let same = |process: &&ProcessSample| {
                process.tgid == record.pid
                    && process.start_number == record.start_number
                    && process.uid == record.uid
                    && (process.mm_id == record.mm_id || process.mm_id == 0)
            };
            let pidfd = i32::try_from(record.pid)
                .ok()
                .and_then(Pid::from_raw)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let process = processes.iter().find(same);
            let (Some(process), Some(pidfd)) = (process, pidfd) else {
                self.journal.free(slot);
                gone += 1;
                continue;
            };
            let account = oom.accounts().account_of(process);
            let uid = process.uid;
            let levels = namespaces.as_ref().and_then(|it| it.namespaces(process.tgid).ok());
            let owner = Owner::of(uid, &levels.unwrap_or_default());
            let client = NewClient { process: *process, account, pidfd, owner };
            let Some(id) = self.add(client, Some(slot)) else { continue };
            self.client_slots.insert(owner, uid);
            kept += 1;
            if oom.accounts_mut().standing(account).is_none() {
                continue;
            }
            let resident = oom.accounts().resident(process).map_or(0, |(_, bytes)| bytes);
            let lease = Lease { base: record.base, granted: record.granted, resident };
            self.books.entry(account).or_default().insert(id, lease);
            if let Some(client) = self.clients.get_mut(&id) {
                client.limited = true;
            }
            oom.accounts_mut().set_precision(account, Precision::Exact);
            self.note(id, oom);
        }
        tracing::info!(kept, gone, "leases of the last daemon taken over");
    }
}

/// The daemon's mapping of one client's page. The client can write anything to it at any time: the
/// daemon trusts its contents only as far as they cannot affect other clients.
pub(super) struct SharedPage(NonNull<u8>);

// SAFETY: the mapping belongs to this value alone here, and is only used through atomics.
unsafe impl Send for SharedPage {}

impl SharedPage {
    /// Creates a page of zeros, and the fd to send to the client. The file is sealed against
    /// resizing.
    fn create() -> Result<(Self, OwnedFd), Errno> {
        let file = sealed_memfd("headroom-lease", page::BYTES as u64)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of a file that cannot shrink, at an address of the kernel's
        // choice.
        let at = unsafe {
            mmap(std::ptr::null_mut(), page::BYTES, prot, MapFlags::SHARED, file.as_fd(), 0)?
        };
        Ok((Self(NonNull::new(at.cast()).ok_or(Errno::NOMEM)?), file))
    }

    fn balance(&self) -> &AtomicU64 {
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; atomics only.
        unsafe { &*self.0.as_ptr().add(page::BALANCE).cast() }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.0.as_ptr().add(offset).cast() }
    }

    /// The balance that the client has not taken, bytes; at most `granted`.
    pub(super) fn unspent(&self, granted: u64) -> u64 {
        self.balance().load(Acquire).min(granted)
    }

    /// Increases the client's balance.
    pub(super) fn add(&self, bytes: u64) {
        self.balance().fetch_add(bytes, AcqRel);
    }

    /// Lowers the balance to `keep`. Returns the bytes taken back, at most `granted`; 0 if no
    /// attempt succeeds.
    pub(super) fn take_back(&self, keep: u64, granted: u64) -> u64 {
        let mut there = self.balance().load(Acquire);
        for _ in 0..TRIES {
            let keep = keep.min(there);
            match self.balance().compare_exchange_weak(there, keep, AcqRel, Acquire) {
                Ok(_) => return (there - keep).min(granted),
                Err(now) => there = now,
            }
        }
        0
    }

    /// Marks the client's account as limited.
    pub(super) fn set_limited(&self) {
        self.word(page::LIMITED).store(1, Release);
    }

    /// Marks the client's account as unlimited.
    pub(super) fn set_unlimited(&self) {
        self.word(page::LIMITED).store(0, Release);
    }

    /// Requests the client's allocator to return unused memory.
    pub(super) fn recall(&self) {
        self.word(page::RECALL).store(1, Relaxed);
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no reference outlives `self`. A failure would leave a page
        // mapped; there is nothing to do about it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), page::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

    #[test]
    fn at_most_the_grant_is_taken_back() {
        let (page, _file) = SharedPage::create().unwrap();
        page.add(100);
        assert_eq!((page.unspent(1000), page.take_back(30, 1000)), (100, 70));
        assert_eq!(page.unspent(1000), 30);
        // A client that writes a larger balance than it was granted.
        page.balance().store(u64::MAX, Relaxed);
        assert_eq!((page.unspent(50), page.take_back(0, 50)), (50, 50));
    }

    #[test]
    fn the_clients_file_cannot_be_cut_under_our_mapping() {
        let (_page, file) = SharedPage::create().unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
    }
}
