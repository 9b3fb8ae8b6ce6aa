//! A [`Watch`] with a fake user, fake processes and events on request.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_linux::clock::monotonic_ns;
use memory_ledger::{AccountId, ProcessId};
use memory_watch::{
    Backend, Charge, Charged, Event, NotifierError, Precision, ProcessSample, Reconciled,
    SlotLimit, UnarmedKills, Usage, Watch,
};
use rustix::event::{EventfdFlags, eventfd};

#[cfg(test)]
#[path = "../../../../tests/contracts/watch.rs"]
mod contract;

#[derive(Default)]
struct State {
    usage: Usage,
    event: Option<Event>,
    /// Listed until replaced by the next list.
    listed: Vec<ProcessSample>,
    /// Listed a single time, in addition to `listed`.
    listed_once: Vec<ProcessSample>,
}

/// The watch; a [`FakeWatchControl`] sets its state.
pub(super) struct FakeWatch {
    pages: u64,
    state: Arc<Mutex<State>>,
    fd: OwnedFd,
}

/// Sets the state of a [`FakeWatch`] that an `OomManager` owns.
pub(super) struct FakeWatchControl {
    pages: u64,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeWatchControl {
    fn emit(&self, pages: u64, event: Event) {
        let mut state = lock(&self.state);
        state.usage.pages = pages;
        state.event = Some(event);
    }

    pub(super) fn cross_soft_limit(&self, account: AccountId) {
        let (pages, time_ns) = (self.pages, monotonic_ns());
        self.emit(pages, Event::SoftCrossed { account, pages, time_ns });
    }

    pub(super) fn cross_hard_limit(&self, account: AccountId) {
        let (pages, time_ns) = (self.pages + 1, monotonic_ns());
        let armed_was_stale = false;
        self.emit(
            pages,
            Event::HardCrossed { account, pages, time_ns, killed: None, armed_was_stale },
        );
    }

    pub(super) fn clear_usage(&self) {
        lock(&self.state).usage = Usage::default();
    }

    /// Replaces the listed processes; `once` are listed a single time.
    pub(super) fn list(&self, listed: Vec<ProcessSample>, once: Vec<ProcessSample>) {
        let mut state = lock(&self.state);
        (state.listed, state.listed_once) = (listed, once);
    }
}

impl FakeWatch {
    /// A watch whose user has this many pages.
    pub(super) fn new(pages: u64) -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { pages, state: Arc::default(), fd })
    }

    pub(super) fn control(&self) -> FakeWatchControl {
        FakeWatchControl { pages: self.pages, state: self.state.clone() }
    }
}

impl Watch for FakeWatch {
    fn backend(&self) -> Backend {
        Backend::Bpf
    }

    fn charge(&mut self, _account: AccountId, _charge: Charge) -> Result<(), NotifierError> {
        Ok(())
    }

    fn set_limit(&mut self, _: AccountId, _: SlotLimit) -> Result<(), NotifierError> {
        Ok(())
    }

    fn clear_limit(&mut self, _: AccountId) -> Result<(), NotifierError> {
        Ok(())
    }

    fn usage(&self, _: AccountId) -> Option<Usage> {
        Some(lock(&self.state).usage)
    }

    fn set_precision(&mut self, _: AccountId, _: Precision) -> Result<(), NotifierError> {
        Ok(())
    }

    fn charged(&self, _: &ProcessSample) -> Result<Option<Charged>, NotifierError> {
        Ok(None)
    }

    fn arm(&mut self, _: AccountId, _: Option<ProcessId>) -> Result<(), NotifierError> {
        Ok(())
    }

    fn set_unarmed_kills(&mut self, _: AccountId, _: UnarmedKills) -> Result<(), NotifierError> {
        Ok(())
    }

    fn take_latch(&mut self, _: AccountId) -> Result<bool, NotifierError> {
        Ok(!std::mem::replace(&mut lock(&self.state).usage.latched, true))
    }

    fn count_dying(&mut self, _: AccountId, _: ProcessId) -> Result<(), NotifierError> {
        lock(&self.state).usage.dying_pages = self.pages;
        Ok(())
    }

    fn release_latch(&mut self, _: AccountId) {
        let usage = &mut lock(&self.state).usage;
        (usage.latched, usage.dying_pages) = (false, 0);
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn drain(&mut self, f: &mut dyn FnMut(Event)) {
        let event = lock(&self.state).event.take();
        event.into_iter().for_each(f);
    }

    fn processes(&self, out: &mut Vec<ProcessSample>) -> Result<(), NotifierError> {
        let mut state = lock(&self.state);
        out.clone_from(&state.listed);
        out.append(&mut state.listed_once);
        Ok(())
    }

    fn reconcile(&mut self) -> Result<Reconciled, NotifierError> {
        Ok(Reconciled::default())
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::Uid;

    use super::*;

    #[test]
    fn the_watch_of_the_self_test_fulfils_the_contract() {
        let mut watch = FakeWatch::new(10).unwrap();
        let (control, account) = (watch.control(), AccountId::User(Uid(1000)));
        let sample = |tgid| ProcessSample { tgid, ..ProcessSample::default() };
        control.list(vec![sample(10), sample(20)], vec![sample(30)]);
        contract::check_list(&mut watch, sample(30).id());
        contract::check_list(&mut watch, sample(10).id());
        control.cross_soft_limit(account);
        contract::check_latch(&mut watch, account, sample(10).id());
        let mut events = Vec::new();
        control.cross_hard_limit(account);
        watch.drain(&mut |event| events.push(event));
        assert!(matches!(events[..], [Event::HardCrossed { pages: 11, .. }]), "{events:?}");
        contract::check_latch(&mut watch, account, sample(10).id());
    }
}
