//! The context manager of a bus: clients register objects by name, and find them.
//!
//! * [`names`]: what is registered, who waits for it, and who may register; no I/O;
//! * [`clients`]: callbacks of services that end while they have no clients; no I/O;
//! * [`aidl`]: parcels of Android's `IServiceManager`, versions 9 to 16;
//! * [`hidl`]: parcels of HIDL's `IServiceManager`, version 1.2;
//! * [`parcel`]: strings and objects in parcels;
//! * [`serve`]: threads that answer for a device, a [`Request`] by an [`Outcome`].

pub mod aidl;
pub mod clients;
pub mod hidl;
pub mod names;
pub mod parcel;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use binder_client::{
    Answer, Call, Client, ClientError, Options, Parcel, Received, RefuseAll, Service, Session,
};
use binder_uapi::{Return, TF_ACCEPT_FDS};
use owners::Uid;

use crate::aidl::ApiLevel;
use crate::hidl::Step;
use crate::names::{Access, Caller, Held, Names, Object, Reference};

/// The answer to a request, and calls to be made.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The reply.
    pub answer: Answer,
    /// One-way calls to callbacks.
    pub calls: Vec<OneWay>,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        Self { answer, calls: Vec::new() }
    }
}

/// A one-way call.
#[derive(Clone, Debug)]
pub struct OneWay {
    /// Handle of its target.
    pub handle: u32,
    /// Its code.
    pub code: u32,
    /// Its data.
    pub parcel: Parcel,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its code.
    pub code: u32,
    /// Its data.
    pub data: &'a [u8],
    /// Offsets of the objects in them.
    pub offsets: &'a [u64],
    /// Who makes it.
    pub caller: Caller,
}

/// Threads for a device. One suffices for AIDL; a HIDL service is asked for its interfaces, and may
/// not answer.
const THREADS: usize = 4;

/// Time between two counts of the clients of lazy services, as in Android.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// The interface that a device's manager has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `android.os.IServiceManager`.
    Aidl(ApiLevel),
    /// `android.hidl.manager@1.2::IServiceManager`.
    Hidl,
}

/// Becomes the context manager of a device, and serves until that fails. `ready` is called when
/// clients are served.
pub fn serve(
    device: &Path,
    dialect: Dialect,
    access: Access,
    ready: impl FnOnce(),
) -> Result<Infallible, ClientError> {
    let client = Client::open(device, &Options::default())?;
    client.become_context_manager()?;
    let state = State { names: Names::new(access), asking: BTreeSet::new(), phase: Phase::Idle };
    let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
    ready();
    let manager = || Manager { shared: &shared, dialect };
    std::thread::scope(|scope| {
        let run = || manager().run(&client);
        for _ in 1..THREADS {
            scope.spawn(run);
        }
        scope.spawn(|| manager().count_clients(&client));
        let result = run();
        manager().state().phase = Phase::Ended;
        shared.changed.notify_one();
        result
    })
}

struct State {
    names: Names,
    /// Users with a service that is being asked for its interfaces: one each, so that no user takes
    /// all threads.
    asking: BTreeSet<Uid>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No service is lazy: nothing is counted.
    Idle,
    Counting,
    /// The device has failed.
    Ended,
}

struct Shared {
    state: Mutex<State>,
    /// The phase has changed.
    changed: Condvar,
}

/// One thread.
struct Manager<'s> {
    shared: &'s Shared,
    dialect: Dialect,
}

impl Manager<'_> {
    fn run(mut self, client: &Client) -> Result<Infallible, ClientError> {
        let mut session = Session::new(client);
        session.enter_looper()?;
        loop {
            // Notices that came while another call was made.
            self.take_notices(&mut session);
            session.serve_one(&mut self)?;
        }
    }

    fn take_notices(&mut self, session: &mut Session<'_>) {
        while let Some(notice) = session.take_notice() {
            self.notice(session, notice);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the clients of lazy services at intervals, until the device has failed.
    fn count_clients(mut self, client: &Client) {
        let mut session = Session::new(client);
        while self.wait_for_count() == Phase::Counting {
            let services = self.state().names.lazy_services();
            for name in services {
                self.count_clients_of(&mut session, &name);
            }
            self.take_notices(&mut session);
        }
    }

    fn wait_for_count(&self) -> Phase {
        let changed = &self.shared.changed;
        let mut state = self.state();
        if state.phase == Phase::Counting && !state.names.has_lazy_services() {
            state.phase = Phase::Idle;
        }
        let state = changed.wait_while(state, |it| it.phase == Phase::Idle);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let counts = |it: &mut State| it.phase == Phase::Counting;
        let waited = changed.wait_timeout_while(state, COUNT_INTERVAL, counts);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.phase
    }

    /// The lock is held until the calls are sent: their handles stay those of the callbacks.
    fn count_clients_of(&self, session: &mut Session<'_>, name: &str) {
        let mut state = self.state();
        let Some(service) = state.names.get(name) else { return };
        let strong = strong_count(session.client(), service.object.handle);
        state.names.observe(name, strong);
        send(session, self.client_calls(&mut state.names));
    }

    fn client_calls(&self, names: &mut Names) -> Vec<OneWay> {
        let tell = match self.dialect {
            Dialect::Aidl(_) => aidl::tell_clients,
            Dialect::Hidl => hidl::tell_clients,
        };
        names.take_changes().iter().flat_map(tell).collect()
    }

    /// What every request ends with, while the lock is held.
    fn finish(
        &self,
        state: &mut State,
        session: &mut Session<'_>,
        outcome: &mut Outcome,
    ) -> Result<(), ClientError> {
        outcome.calls.extend(self.client_calls(&mut state.names));
        if state.phase == Phase::Idle && state.names.has_lazy_services() {
            state.phase = Phase::Counting;
            self.shared.changed.notify_one();
        }
        Self::settle(&mut state.names, session)
    }

    /// Changes the references that the names require. The lock is held: another thread must not
    /// release one before this one acquires it.
    fn settle(names: &mut Names, session: &mut Session<'_>) -> Result<(), ClientError> {
        for change in names.take_references() {
            match change {
                Reference::Take(Held { handle, cookie }) => {
                    session.acquire(handle);
                    session.request_death(handle, cookie);
                }
                Reference::Drop(Held { handle, cookie }) => {
                    session.clear_death(handle, cookie);
                    session.release(handle);
                }
            }
        }
        session.flush()
    }

    fn outcome(
        &self,
        session: &mut Session<'_>,
        incoming: &Received<'_>,
    ) -> Result<Outcome, ClientError> {
        let (data, offsets) = (incoming.data()?, incoming.offsets()?);
        let sender = incoming.transaction();
        let caller = Caller { pid: sender.sender_pid, uid: Uid(sender.sender_euid) };
        let request = Request { code: incoming.code(), data, offsets: &offsets, caller };
        let level = match self.dialect {
            Dialect::Aidl(level) => level,
            Dialect::Hidl => return self.hidl(session, request, incoming),
        };
        let mut state = self.state();
        let strong = |handle| strong_count(session.client(), handle);
        let mut outcome = aidl::handle(&mut state.names, request, level, &strong);
        self.finish(&mut state, session, &mut outcome)?;
        Ok(outcome)
    }

    fn hidl(
        &self,
        session: &mut Session<'_>,
        request: Request<'_>,
        incoming: &Received<'_>,
    ) -> Result<Outcome, ClientError> {
        let buffers = |address, len| incoming.buffer(address, len).ok();
        let step = {
            let mut state = self.state();
            let strong = |handle| strong_count(session.client(), handle);
            let mut step = hidl::handle(&mut state.names, request, &buffers, &strong);
            if let Step::Done(outcome) = &mut step {
                self.finish(&mut state, session, outcome)?;
            }
            step
        };
        let (instance, service) = match step {
            Step::Done(outcome) => return Ok(outcome),
            Step::AskChain { instance, service } => (instance, service),
        };
        let caller = request.caller;
        {
            let mut state = self.state();
            let others_fit = state.asking.len() + 1 < THREADS;
            if !others_fit || !state.asking.insert(caller.uid) {
                return Ok(Answer::Status(-libc::EAGAIN).into());
            }
        }
        let chain = ask_chain(session, service);
        let mut state = self.state();
        state.asking.remove(&caller.uid);
        let mut outcome = match chain {
            Ok(chain) => hidl::add(&mut state.names, &instance, service, &chain, caller),
            Err(error) => {
                tracing::warn!(%instance, "the service does not tell its interfaces: {error}");
                Answer::Status(-libc::EINVAL).into()
            }
        };
        self.finish(&mut state, session, &mut outcome)?;
        Ok(outcome)
    }
}

/// Strong references to a handle's object, one for each process that has some. If the driver does
/// not count them, the service is taken to have clients.
fn strong_count(client: &Client, handle: u32) -> u32 {
    client.node_info_for_ref(handle).map_or(u32::MAX, |info| info.strong_count)
}

fn send(session: &mut Session<'_>, calls: Vec<OneWay>) {
    for OneWay { handle, code, parcel } in calls {
        // A callback that is dead, or that does not read, gets none.
        if let Err(error) = session.oneway(handle, code, parcel.payload()) {
            tracing::debug!(handle, "cannot call a callback: {error}");
        }
    }
}

fn ask_chain(session: &mut Session<'_>, service: Object) -> Result<Vec<String>, ClientError> {
    let (code, parcel) = hidl::chain_call();
    let payload = parcel.payload();
    let call = Call { handle: service.handle, code, flags: TF_ACCEPT_FDS, payload };
    let reply = session.call_with(call, &mut RefuseAll)?;
    let offsets = reply.offsets()?;
    let buffers = |address, len| reply.buffer(address, len).ok();
    let chain = hidl::read_chain(reply.data()?, &offsets, &buffers);
    let chain = chain.map_err(|_| ClientError::Contents("not a list of interfaces"));
    session.free(reply);
    chain
}

impl Service for Manager<'_> {
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer {
        match self.outcome(session, incoming) {
            Ok(Outcome { answer, calls }) => {
                send(session, calls);
                answer
            }
            Err(error) => {
                tracing::warn!("a request failed: {error}");
                Answer::Status(-libc::EINVAL)
            }
        }
    }

    fn notice(&mut self, session: &mut Session<'_>, notice: Return) {
        let Return::DeadBinder(cookie) = notice else { return };
        let mut state = self.state();
        state.names.die(cookie);
        if let Err(error) = Self::settle(&mut state.names, session) {
            tracing::warn!("cannot release a dead object: {error}");
        }
    }
}
