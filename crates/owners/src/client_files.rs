//! Files of clients, charged to an owner until they are closed, and connections that may carry such
//! files.
//!
//! A client can make a close block for an arbitrary time: a socket with `SO_LINGER`, a file of a
//! FUSE server, an open of our own filesystem, which waits for our event loop. So threads close the
//! files, a bounded number of them for one owner, and the quota is returned after the close.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headroom_linux::sched::leave_realtime;
use serde::{Deserialize, Serialize};

use crate::bounds::{Bound, CLIENT_FILES, CLOSING_THREADS};
use crate::{Exhausted, Owner, Quota, QuotaSize, Uid};

/// Maximum number of concurrent closes for one owner.
const MAX_THREADS_OF_AN_OWNER: usize = CLOSING_THREADS.slots().of_an_owner;
const MAX_THREADS: usize = CLOSING_THREADS.slots().slots;
/// Bytes of a thread's stack. All of it is resident once the daemon locks its memory.
const STACK: usize = 64 << 10;
/// A thread without work exits after this time.
const IDLE: Duration = Duration::from_secs(10);

/// A quota of a bound on a part of this process's descriptors.
pub fn quota_of_descriptors(bound: &Bound) -> Quota {
    Quota::new(bound.slots_of(descriptors()))
}

/// The owner and uid that a file is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The owner, whose quota counts it.
    pub owner: Owner,
    /// The uid, which has a part of its owner's quota.
    pub uid: Uid,
}

/// Locks, also after a panic of another thread: the data is consistent between any two statements.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of a client. Dropping it does not block.
pub struct ClientFile {
    file: ManuallyDrop<OwnedFd>,
    charge: Charge,
    closers: Closers,
}

impl ClientFile {
    /// The owner and uid that it is charged to.
    pub fn charge(&self) -> Charge {
        self.charge
    }
}

impl AsFd for ClientFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for ClientFile {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        self.closers.close(file, self.charge);
    }
}

/// The files, and the threads that close them.
#[derive(Clone)]
pub struct Closers(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    quota: Quota,
    /// Owners with files to close.
    owners: HashMap<Owner, Closing>,
    /// Owners with files to close that may have one more thread, in round-robin order.
    ready: VecDeque<Owner>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Closing {
    files: VecDeque<(OwnedFd, Uid)>,
    threads: usize,
    is_ready: bool,
}

impl Closers {
    /// For files in transit.
    pub fn for_files() -> Self {
        Self::with_quota(quota_of_descriptors(&CLIENT_FILES))
    }

    /// For connections: a quarter of the descriptors. An owner has no part of its own, since it is
    /// known only once a connection is accepted.
    pub fn for_connections() -> Self {
        let slots = descriptors() / 4;
        Self::with_quota(Quota::new(QuotaSize { slots, reserved: 0, of_an_owner: slots }))
    }

    fn with_quota(quota: Quota) -> Self {
        let state =
            State { quota, owners: HashMap::new(), ready: VecDeque::new(), threads: 0, idle: 0 };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Reserves a slot for a file, which [`hold`](Self::hold) uses or
    /// [`give_back`](Self::give_back) releases.
    pub fn reserve(&self, charge: Charge) -> Result<(), Exhausted> {
        let quota = &mut lock(&self.0.state).quota;
        quota.check_also_root(charge.owner, charge.uid)?;
        quota.insert(charge.owner, charge.uid);
        Ok(())
    }

    /// Releases a slot for a file that was not fetched.
    pub fn give_back(&self, charge: Charge) {
        lock(&self.0.state).quota.give_back(charge.owner, charge.uid);
    }

    /// Wraps a file for which a slot was reserved.
    pub fn hold(&self, file: OwnedFd, charge: Charge) -> ClientFile {
        ClientFile { file: ManuallyDrop::new(file), charge, closers: self.clone() }
    }

    /// Wraps a file and charges it even if the quota is exceeded.
    pub fn adopt(&self, file: OwnedFd, charge: Charge) -> ClientFile {
        lock(&self.0.state).quota.insert(charge.owner, charge.uid);
        self.hold(file, charge)
    }

    /// Whether the quota of all owners is used up.
    pub fn is_full(&self) -> bool {
        let quota = &lock(&self.0.state).quota;
        quota.taken() >= quota.size().slots
    }

    /// An owner of files that are being closed.
    pub fn owner_of_closes(&self) -> Option<Owner> {
        lock(&self.0.state).owners.keys().next().copied()
    }

    fn close(&self, file: OwnedFd, Charge { owner, uid }: Charge) {
        let mut state = lock(&self.0.state);
        state.owners.entry(owner).or_default().files.push_back((file, uid));
        // A thread that is woken for the first of several files wakes the next one.
        let is_first = state.enqueue(owner);
        self.start_thread_if_needed(&mut state);
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
    }

    /// If no thread can be started, the files stay open until the next file is closed.
    fn start_thread_if_needed(&self, state: &mut State) {
        if state.ready.len() <= state.idle || state.threads >= MAX_THREADS {
            return;
        }
        let closers = self.clone();
        let thread = std::thread::Builder::new().name("file-closer".into()).stack_size(STACK);
        match thread.spawn(move || closers.work()) {
            Ok(_) => state.threads += 1,
            Err(error) => tracing::debug!("no further thread that closes files: {error}"),
        }
    }

    fn work(&self) {
        // No client waits for a close.
        leave_realtime(0);
        let mut state = lock(&self.0.state);
        loop {
            let Some((file, charge)) = state.next() else {
                let Some(woken) = self.wait(state) else { return };
                state = woken;
                continue;
            };
            // A further thread serves the next owner, which thus does not wait for this close.
            let more = !state.ready.is_empty();
            self.start_thread_if_needed(&mut state);
            drop(state);
            if more {
                self.0.changed.notify_one();
            }
            drop(file);
            state = lock(&self.0.state);
            state.closed(charge);
        }
    }

    /// `None`: there was nothing to close for [`IDLE`], and this thread is no longer counted.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> Option<MutexGuard<'a, State>>
    where
        Self: 'a,
    {
        state.idle += 1;
        let nothing = |state: &mut State| state.ready.is_empty();
        let waited = self.0.changed.wait_timeout_while(state, IDLE, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        if state.ready.is_empty() {
            state.threads -= 1;
            return None;
        }
        Some(state)
    }
}

impl State {
    /// Whether the owner's files were without a thread that takes the next one.
    fn enqueue(&mut self, owner: Owner) -> bool {
        let Some(closing) = self.owners.get_mut(&owner) else { return false };
        let may_have_one = closing.threads < MAX_THREADS_OF_AN_OWNER && !closing.files.is_empty();
        if !may_have_one || closing.is_ready {
            return false;
        }
        closing.is_ready = true;
        self.ready.push_back(owner);
        true
    }

    fn next(&mut self) -> Option<(OwnedFd, Charge)> {
        let owner = self.ready.pop_front()?;
        let closing = self.owners.get_mut(&owner)?;
        closing.is_ready = false;
        let (file, uid) = closing.files.pop_front()?;
        closing.threads += 1;
        self.enqueue(owner);
        Some((file, Charge { owner, uid }))
    }

    fn closed(&mut self, Charge { owner, uid }: Charge) {
        self.quota.give_back(owner, uid);
        let Some(closing) = self.owners.get_mut(&owner) else { return };
        closing.threads -= 1;
        if closing.threads == 0 && closing.files.is_empty() {
            self.owners.remove(&owner);
        } else {
            self.enqueue(owner);
        }
    }
}

/// Descriptors that this process may have.
fn descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn user(number: u32) -> Charge {
        let uid = Uid(number);
        Charge { owner: Owner::User(uid), uid }
    }

    fn closers(slots: usize) -> Closers {
        Closers::with_quota(Quota::new(QuotaSize { slots, reserved: 0, of_an_owner: slots }))
    }

    fn held(closers: &Closers, charge: Charge) -> usize {
        lock(&closers.0.state).quota.held(charge.owner)
    }

    /// The close of the first blocks for a minute, or until the second is dropped.
    fn lingering_socket(listener: &TcpListener) -> (OwnedFd, TcpStream) {
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
        (socket.into(), peer)
    }

    fn wait_until(mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "it takes too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_blocking_close_does_not_delay_others_and_keeps_its_quota() {
        let closers = closers(16);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peers = Vec::new();
        for _ in 0..5 {
            let (socket, peer) = lingering_socket(&listener);
            closers.reserve(user(1)).unwrap();
            drop(closers.hold(socket, user(1)));
            peers.push(peer);
        }
        let (read, write) = std::io::pipe().unwrap();
        closers.reserve(user(2)).unwrap();
        drop(closers.hold(write.into(), user(2)));
        assert_eq!(std::io::read_to_string(read).unwrap(), "");
        wait_until(|| held(&closers, user(2)) == 0);
        assert_eq!(held(&closers, user(1)), 5);
        drop(peers);
        wait_until(|| held(&closers, user(1)) == 0);
        assert!(lock(&closers.0.state).owners.is_empty());
    }

    #[test]
    fn an_owner_gets_a_share_and_another_one_is_served() {
        let closers = closers(8);
        let first = (0..8).filter(|_| closers.reserve(user(1)).is_ok()).count();
        assert_eq!(first, 4, "half of what there is");
        assert!(closers.reserve(user(2)).is_ok());
        closers.give_back(user(1));
        assert!(closers.reserve(user(1)).is_ok());
    }

    #[test]
    fn root_has_a_share_too() {
        const MOST: usize = 4096;
        let quota = Quota::new(CLIENT_FILES.slots_of(5 * 3 * MOST));
        assert_eq!(quota.size().slots, 3 * MOST);
        let closers = Closers::with_quota(quota);
        let taken = (0..3 * MOST).filter(|_| closers.reserve(user(0)).is_ok());
        assert_eq!(taken.count(), MOST);
    }
}
