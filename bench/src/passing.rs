//! File descriptors passed with a call, over a binder device or a Unix socket, between two separate
//! processes: the caller may have to run under a seccomp filter, too.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};

use anyhow::Result;
use binder_client::{Answer, Client, Options, Parcel, Payload, Received, Session};
use binder_uapi::{
    BINDER_TYPE_BINDER, BINDER_TYPE_FD, FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};

use crate::peer::{Peer, report_ready};
use crate::timed_caller::{TimedCaller, execute_orders};

/// Maximum of descriptors in one call.
pub const MAX_DESCRIPTORS: usize = 64;

/// A caller and its service.
pub struct Pair {
    caller: TimedCaller,
    _client: Peer,
    _service: Option<Peer>,
}

impl Pair {
    /// Over a device; `spawn` starts both processes.
    pub fn over_binder(
        name: &str,
        device: &str,
        spawn: impl Fn(Command) -> std::io::Result<Child>,
    ) -> Result<Self> {
        let service = Peer::start_by(&["serve", device], &spawn)?;
        let (client, orders, replies) = Peer::start_talking_by(&["call", device], &spawn)?;
        let caller = TimedCaller::new(name, orders, replies);
        Ok(Self { caller, _client: client, _service: Some(service) })
    }

    /// Over a Unix socket with `SCM_RIGHTS`.
    pub fn over_socket(name: &str) -> Result<Self> {
        let (client, orders, replies) = Peer::start_talking(&["call-socket"])?;
        let caller = TimedCaller::new(name, orders, replies);
        Ok(Self { caller, _client: client, _service: None })
    }

    /// Makes `calls` calls with `descriptors` each. Returns nanoseconds per call.
    pub fn calls(&mut self, calls: usize, descriptors: usize) -> Result<Vec<u64>> {
        self.caller.calls(calls, descriptors)
    }

    /// Name in the results.
    pub fn name(&self) -> &str {
        self.caller.name()
    }
}

/// Main function of a peer.
pub fn play(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", device] => serve(device),
        ["call", device] => call(device),
        ["serve-socket"] => serve_socket(),
        ["call-socket"] => call_socket(),
        _ => anyhow::bail!("no such role: {words:?}"),
    }
}

fn call(device: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let mut session = Session::new(&client);
    let file = File::open("/dev/null")?;
    report_ready();
    execute_orders(|descriptors, _| {
        let parcel = (0..descriptors).fold(Parcel::new(), |parcel, _| parcel.fd(file.as_fd()));
        let reply = match descriptors {
            0 => session.call(0, 1, Payload::bytes(b"none"))?,
            _ => session.call(0, 1, parcel.payload())?,
        };
        session.free(reply);
        Ok(())
    })
}

fn serve(device: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
    client.become_context_manager_ext(object)?;
    let mut session = Session::new(&client);
    session.enter_looper()?;
    report_ready();
    let mut service = |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        let objects = incoming.objects().unwrap_or_default();
        for file in objects.iter().filter(|object| object.ty == BINDER_TYPE_FD) {
            // SAFETY: the driver has just installed this descriptor for this process.
            drop(unsafe { OwnedFd::from_raw_fd(file.binder as i32) });
        }
        Answer::Reply(Parcel::new().bytes(b"done"))
    };
    Ok(session.serve(&mut service)?)
}

fn call_socket() -> Result<()> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let _service = Peer::start_on(&["serve-socket"], theirs)?;
    let file = File::open("/dev/null")?;
    let mut reply = [0; 4];
    report_ready();
    execute_orders(|descriptors, _| {
        let fds = vec![file.as_fd(); descriptors];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if descriptors > 0 {
            let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
            anyhow::ensure!(fits, "more than {MAX_DESCRIPTORS} descriptors");
        }
        sendmsg(&ours, &[IoSlice::new(b"call")], &mut control, SendFlags::NOSIGNAL)?;
        let (len, _) = recv(&ours, &mut reply[..], RecvFlags::empty())?;
        anyhow::ensure!(len == 4, "the service has ended");
        Ok(())
    })
}

fn serve_socket() -> Result<()> {
    let socket = std::io::stdin();
    report_ready();
    let mut room = [0; 4];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut room)];
        let received = recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            return Ok(());
        }
        // Closes the received descriptors.
        drop(control);
        send(&socket, b"done", SendFlags::NOSIGNAL)?;
    }
}
