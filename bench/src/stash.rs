//! A client that sends a new node with every call, to a server that keeps them all.

use std::time::Instant;

use anyhow::{Context, Result};
use binder_client::{
    Answer, Call, Client, ClientError, Parcel, Received, RefuseAll, Service, Session,
};
use binder_uapi::TF_ACCEPT_FDS;

use crate::server;

struct Stash;

impl Stash {
    fn keep(session: &mut Session<'_>, incoming: &Received<'_>) -> Result<u32, ClientError> {
        let objects = incoming.objects()?;
        let [object] = objects[..] else {
            return Err(ClientError::Contents("not one object"));
        };
        session.acquire(object.handle());
        Ok(object.handle())
    }
}

impl Service for Stash {
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer {
        match Self::keep(session, incoming) {
            Ok(handle) => Answer::Reply(Parcel::new().bytes(&handle.to_ne_bytes())),
            Err(_) => Answer::Status(-libc::EBADMSG),
        }
    }
}

/// The server: main function of a peer.
pub fn serve(device: &str) -> Result<()> {
    server::serve_alone(device, &mut Stash)
}

/// The client.
pub struct Sender<'c> {
    session: Session<'c>,
    sent: u64,
}

impl<'c> Sender<'c> {
    /// Creates it for a fresh open, whose server has no handle yet.
    pub fn new(client: &'c Client) -> Self {
        Self { session: Session::new(client), sent: 0 }
    }

    /// Sends a new node. Returns the time until the reply arrived, nanoseconds. The server must
    /// have got the lowest free handle, which equals the number of nodes sent.
    pub fn send_new(&mut self) -> Result<u64> {
        self.sent += 1;
        let parcel = Parcel::new().binder(self.sent << 4, self.sent);
        let payload = parcel.payload();
        let call = Call { handle: 0, code: 1, flags: TF_ACCEPT_FDS, payload };
        let start = Instant::now();
        let reply = self.session.call_with(call, &mut RefuseAll);
        let ns = start.elapsed().as_nanos() as u64;
        let reply = reply.with_context(|| format!("node {}", self.sent))?;
        if let Some(status) = reply.status()? {
            anyhow::bail!("the server found no object in the message (status {status})");
        }
        let handle = reply.data()?.try_into().map(u32::from_ne_bytes);
        let handle = handle.context("the reply is not a handle")?;
        self.session.free(reply);
        anyhow::ensure!(
            u64::from(handle) == self.sent,
            "node {} got handle {handle}, which is not the lowest free one",
            self.sent
        );
        while self.session.take_notice().is_some() {}
        Ok(ns)
    }
}
