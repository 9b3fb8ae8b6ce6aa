//! The context manager of a bus: clients register objects by name, and find them.
//!
//! * [`names`]: what is registered, who waits for it, and who may register; no I/O;
//! * [`aidl`]: parcels of Android's `IServiceManager`, versions 9 to 16;
//! * [`hidl`]: parcels of HIDL's `IServiceManager`, version 1.0;
//! * [`parcel`]: strings and objects in parcels;
//! * [`serve`]: threads that answer for a device, a [`Request`] by an [`Outcome`].
//!
//! Lazy services (`registerClientCallback`) do not exist here, and no manifest declares services.

pub mod aidl;
pub mod hidl;
pub mod names;
pub mod parcel;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// The interface that a device's manager has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `android.os.IServiceManager`.
    Aidl(ApiLevel),
    /// `android.hidl.manager@1.0::IServiceManager`.
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
    let state = Mutex::new(State { names: Names::new(access), asking: BTreeSet::new() });
    ready();
    std::thread::scope(|scope| {
        let run = || Manager { state: &state, dialect }.run(&client);
        for _ in 1..THREADS {
            scope.spawn(run);
        }
        run()
    })
}

struct State {
    names: Names,
    /// Users with a service that is being asked for its interfaces: one each, so that no user takes
    /// all threads.
    asking: BTreeSet<Uid>,
}

/// One thread.
struct Manager<'s> {
    state: &'s Mutex<State>,
    dialect: Dialect,
}

impl Manager<'_> {
    fn run(mut self, client: &Client) -> Result<Infallible, ClientError> {
        let mut session = Session::new(client);
        session.enter_looper()?;
        loop {
            // Notices that came while another call was made.
            while let Some(notice) = session.take_notice() {
                self.notice(&mut session, notice);
            }
            session.serve_one(&mut self)?;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let outcome = aidl::handle(&mut state.names, request, level);
        Self::settle(&mut state.names, session)?;
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
            let step = hidl::handle(&mut state.names, request, &buffers);
            Self::settle(&mut state.names, session)?;
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
        let outcome = match chain {
            Ok(chain) => hidl::add(&mut state.names, &instance, service, &chain, caller),
            Err(error) => {
                tracing::warn!(%instance, "the service does not tell its interfaces: {error}");
                Answer::Status(-libc::EINVAL).into()
            }
        };
        Self::settle(&mut state.names, session)?;
        Ok(outcome)
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
                for OneWay { handle, code, parcel } in calls {
                    // A callback that is dead, or that does not read, gets none.
                    if let Err(error) = session.oneway(handle, code, parcel.payload()) {
                        tracing::debug!(handle, "cannot tell of a registration: {error}");
                    }
                }
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
