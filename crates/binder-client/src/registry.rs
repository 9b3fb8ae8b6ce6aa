//! A minimal context manager that registers and looks up objects by name.
//!
//! [`Registry`] serves handle 0: [`ADD`] registers an object under a name, [`GET`] returns it,
//! every other code is echoed. A name is removed when its owner dies. It is not compatible with any
//! service manager: names are bytes, every client may add one, and a later object replaces an
//! earlier one.

use std::collections::BTreeMap;

use binder_uapi::{BINDER_TYPE_BINDER, BINDER_TYPE_HANDLE, Return, TF_ACCEPT_FDS};

use crate::{
    Answer, Call, ClientError, Parcel, Payload, Received, RefuseAll, Served, Service, Session,
};

/// Registers an object. Data: the name's length (4 bytes), the name, one object.
pub const ADD: u32 = 0x0041_4444;
/// Looks up an object. Data: the name.
pub const GET: u32 = 0x0047_4554;
/// Stops serving.
pub const STOP: u32 = 0x5354_4f50;

/// Objects by name.
#[derive(Default)]
pub struct Registry {
    names: BTreeMap<Vec<u8>, u32>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    fn add(
        &mut self,
        session: &mut Session<'_>,
        incoming: &Received<'_>,
    ) -> Result<(), ClientError> {
        const MALFORMED: ClientError = ClientError::Contents("not a name and an object");
        let (len, rest) = incoming.data()?.split_first_chunk().ok_or(MALFORMED)?;
        let name = rest.get(..u32::from_ne_bytes(*len) as usize).ok_or(MALFORMED)?.to_owned();
        let objects = incoming.objects()?;
        let [object] = objects[..] else { return Err(MALFORMED) };
        if object.ty != BINDER_TYPE_HANDLE {
            return Err(MALFORMED);
        }
        // The buffer holds a reference only until it is freed.
        let handle = object.handle();
        session.acquire(handle);
        if !self.names.values().any(|known| *known == handle) {
            session.request_death(handle, handle.into());
        }
        if let Some(old) = self.names.insert(name, handle) {
            session.release(old);
        }
        Ok(())
    }
}

impl Service for Registry {
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer {
        match incoming.code() {
            ADD => match self.add(session, incoming) {
                Ok(()) => Answer::Reply(Parcel::new()),
                Err(_) => Answer::Status(-libc::EINVAL),
            },
            GET => match incoming.data().ok().and_then(|name| self.names.get(name)) {
                Some(handle) => Answer::Reply(Parcel::new().handle(*handle)),
                None => Answer::Status(-libc::ENOENT),
            },
            STOP => Answer::Stop(Parcel::new()),
            _ => Answer::Echo,
        }
    }

    fn notice(&mut self, session: &mut Session<'_>, notice: Return) {
        if let Return::DeadBinder(cookie) = notice {
            let dead: Vec<_> =
                self.names.iter().filter(|(_, h)| u64::from(**h) == cookie).collect();
            for (_, handle) in &dead {
                session.release(**handle);
            }
            self.names.retain(|_, handle| u64::from(*handle) != cookie);
        }
        session.keep_notice(notice);
    }
}

/// Registers our object `ptr` under `name`.
pub fn publish(
    session: &mut Session<'_>,
    name: &str,
    ptr: u64,
    cookie: u64,
) -> Result<(), ClientError> {
    let len = (name.len() as u32).to_ne_bytes();
    let parcel = Parcel::new().bytes(&len).bytes(name.as_bytes()).binder(ptr, cookie);
    let reply = session.call(0, ADD, parcel.payload())?;
    let status = reply.status();
    session.free(reply);
    session.flush()?;
    status?.map_or(Ok(()), |status| Err(ClientError::Status(status)))
}

/// Looks up `name`: returns a handle with a strong reference, which the caller has to release.
/// `None` if the name is not registered.
pub fn find(session: &mut Session<'_>, name: &str) -> Result<Option<u32>, ClientError> {
    let payload = Payload::bytes(name.as_bytes());
    let call = Call { handle: 0, code: GET, flags: TF_ACCEPT_FDS, payload };
    let reply = session.call_with(call, &mut RefuseAll)?;
    let found = match reply.status()? {
        Some(status) if status == -libc::ENOENT => Ok(None),
        Some(status) => Err(ClientError::Status(status)),
        None => match reply.objects()?[..] {
            [object] if object.ty == BINDER_TYPE_HANDLE => Ok(Some(object.handle())),
            [object] if object.ty == BINDER_TYPE_BINDER => {
                Err(ClientError::Contents("the object is our own, not another process's"))
            }
            _ => Err(ClientError::Contents("the registry's reply holds no object")),
        },
    };
    if let Ok(Some(handle)) = found {
        // Must precede the release of the buffer, and thereby of the reply's own reference.
        session.acquire(handle);
    }
    session.free(reply);
    session.flush()?;
    found
}

/// Serves a registry on `session`'s thread until a client sends [`STOP`].
pub fn serve(session: &mut Session<'_>) -> Result<(), ClientError> {
    let mut registry = Registry::new();
    session.enter_looper()?;
    while session.serve_one(&mut registry)? != Served::Stop {}
    session.flush()
}
