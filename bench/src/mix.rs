//! A mix of operations, replayed from a seed: calls of several sizes, one-way calls, nested calls,
//! descriptors and pings.
//!
//! The shares are chosen, not recorded: most calls on Android are small and synchronous, replies
//! are smaller than requests, and large parcels are rare.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use binder_client::{
    Answer, Call, Client, ClientError, Echo, Options, Parcel, Payload, Received, Session,
};
use binder_uapi::{BINDER_TYPE_FD, BINDER_TYPE_HANDLE, FlatBinderObject, TF_ACCEPT_FDS};
use e2e::random::Random;

use crate::callers::{Callers, execute_orders};
use crate::peer::{Peer, report_ready};
use crate::{server, sockets};

/// Kinds of operations, and their shares in percent.
pub const KINDS: [(Kind, u64); 5] = [
    (Kind::Call, 60),
    (Kind::OneWay, 25),
    (Kind::Nested, 5),
    (Kind::Descriptor, 5),
    (Kind::Ping, 5),
];
/// Sizes of requests in bytes, and their shares in percent.
const REQUESTS: [(usize, u64); 6] =
    [(64, 35), (128, 30), (512, 20), (2048, 10), (16_384, 4), (65_536, 1)];
/// The same for replies.
const REPLIES: [(usize, u64); 5] = [(16, 50), (128, 30), (1024, 15), (16_384, 4), (65_536, 1)];
/// One-way calls are smaller: their receiver has room for half as much.
const ONE_WAY: [(usize, u64); 3] = [(64, 50), (128, 35), (512, 15)];
const LARGEST: usize = 65_536;
/// Threads of the server.
const THREADS: usize = 4;
/// The object of each client that the server of a nested call calls.
const CALLBACK: u64 = 1;
/// How long a one-way call may wait for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kind of an operation. Its number is the code of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call with a reply.
    Call = 1,
    /// A one-way call: only the time until it is accepted counts.
    OneWay = 2,
    /// A call during which the server calls the client.
    Nested = 3,
    /// A call with a file descriptor.
    Descriptor = 4,
    /// The smallest call.
    Ping = 5,
}

impl Kind {
    /// Name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::OneWay => "one-way call",
            Self::Nested => "nested call",
            Self::Descriptor => "call with a descriptor",
            Self::Ping => "ping",
        }
    }

    fn of(code: u32) -> Result<Self> {
        let found = KINDS.into_iter().find(|(kind, _)| *kind as u32 == code);
        found.map(|(kind, _)| kind).with_context(|| format!("no operation has the code {code}"))
    }
}

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its kind.
    pub kind: Kind,
    /// Bytes of the request without the descriptor.
    pub request: usize,
    /// Bytes of the reply.
    pub reply: usize,
}

impl Operation {
    fn random(random: &mut Random) -> Self {
        let kind = pick(random, &KINDS);
        let (request, reply) = match kind {
            Kind::Call | Kind::Nested => (pick(random, &REQUESTS), pick(random, &REPLIES)),
            Kind::OneWay => (pick(random, &ONE_WAY), 0),
            Kind::Descriptor | Kind::Ping => (HEADER, HEADER),
        };
        Self { kind, request, reply }
    }

    /// The data of the request: code, length of the reply, zeros.
    fn write(self, data: &mut Vec<u8>) {
        data.clear();
        data.extend_from_slice(&(self.kind as u32).to_ne_bytes());
        data.extend_from_slice(&(self.reply as u32).to_ne_bytes());
        data.resize(self.request, 0);
    }

    fn parse(data: &[u8]) -> Result<Self> {
        let (code, rest) = data.split_first_chunk().context("a request without a code")?;
        let (reply, _) = rest.split_first_chunk().context("a request without a length")?;
        let reply = u32::from_ne_bytes(*reply) as usize;
        ensure!(reply <= LARGEST, "a reply of {reply} bytes");
        Ok(Self { kind: Kind::of(u32::from_ne_bytes(*code))?, request: data.len(), reply })
    }
}

/// Bytes of the smallest request.
const HEADER: usize = 8;

fn pick<T: Copy>(random: &mut Random, choices: &[(T, u64)]) -> T {
    let mut rest = random.below(choices.iter().map(|(_, share)| share).sum());
    for (choice, share) in choices {
        if rest < *share {
            return *choice;
        }
        rest -= share;
    }
    choices[0].0
}

/// The first `count` operations of a seed.
pub fn operations(seed: u64, count: usize) -> Vec<Operation> {
    let mut random = Random::new(seed);
    (0..count).map(|_| Operation::random(&mut random)).collect()
}

/// One replay of all clients.
pub struct Replay {
    /// The operations of each client and their times, nanoseconds.
    timed: Vec<Vec<(Operation, u64)>>,
    /// CPU time of the daemon meanwhile; `None` without a daemon.
    daemon_cpu_ns: Option<u64>,
}

impl Replay {
    /// CPU time of the daemon per operation, microseconds; `None` without a daemon.
    pub fn daemon_cpu_us(&self) -> Option<f64> {
        Some(self.daemon_cpu_ns? as f64 / 1000.0 / self.count() as f64)
    }

    fn count(&self) -> usize {
        self.timed.iter().map(Vec::len).sum()
    }

    /// Times of the operations of one kind.
    pub fn of(&self, kind: Kind) -> Vec<u64> {
        let all = self.timed.iter().flatten();
        all.filter(|(operation, _)| operation.kind == kind).map(|(_, time)| *time).collect()
    }

    /// Operations per second, until the slowest client has finished.
    pub fn per_second(&self) -> f64 {
        let sum = |timed: &Vec<(Operation, u64)>| timed.iter().map(|(_, time)| time).sum::<u64>();
        let longest_ns = self.timed.iter().map(sum).max().unwrap_or(0);
        self.count() as f64 * 1e9 / longest_ns as f64
    }
}

/// All clients replay `count` operations at the same time, each those of a seed of its own. Returns
/// the operations with their times, by client.
pub fn replay(clients: &mut Callers, seed: u64, count: usize) -> Result<Replay> {
    let before = clients.daemon_cpu_ns()?;
    let seeds: Vec<usize> = (seed as usize..).take(clients.workers.len()).collect();
    let times = clients.calls_of_all(count, &seeds)?;
    let with_times =
        |(seed, times)| operations(seed as u64, count).into_iter().zip(times).collect();
    let timed = seeds.into_iter().zip(times).map(with_times).collect();
    let daemon_cpu_ns = clients.daemon_cpu_ns()?.zip(before).map(|(after, before)| after - before);
    Ok(Replay { timed, daemon_cpu_ns })
}

/// Main function of a peer.
pub fn play(words: &[&str]) -> Result<()> {
    match words {
        ["serve", device] => server::serve(device, THREADS, || handle),
        ["call", device] => call(device),
        ["serve-socket"] => serve_socket(),
        ["call-socket"] => call_socket(),
        _ => bail!("no such role: {words:?}"),
    }
}

/// Executes the orders on stdin: `perform` performs one operation.
fn replay_orders(mut perform: impl FnMut(Operation) -> Result<()>) -> Result<()> {
    report_ready();
    // The parameter is the seed. Generating an operation takes nanoseconds.
    let mut random = Random::new(0);
    execute_orders(|seed, number| {
        if number == 0 {
            random = Random::new(seed as u64);
        }
        let operation = Operation::random(&mut random);
        perform(operation).with_context(|| format!("{operation:?}"))
    })
}

fn handle(session: &mut Session<'_>, incoming: &Received<'_>) -> Answer {
    match reply_to(session, incoming) {
        Ok(length) => Answer::Reply(Parcel::new().bytes(&vec![0; length])),
        Err(_) => Answer::Status(-libc::EINVAL),
    }
}

/// Handles an operation. Returns the length of its reply.
fn reply_to(session: &mut Session<'_>, incoming: &Received<'_>) -> Result<usize> {
    let operation = Operation::parse(incoming.data()?)?;
    for object in incoming.objects()? {
        match object.ty {
            BINDER_TYPE_HANDLE => {
                let payload = Payload::bytes(b"callback");
                let reply = session.call(object.handle(), CALLBACK as u32, payload)?;
                session.free(reply);
            }
            BINDER_TYPE_FD => close_file(&object),
            other => bail!("an object of type {other:#x}"),
        }
    }
    Ok(operation.reply)
}

/// Closes the file that came with a call as this object, if it is one.
pub fn close_file(object: &FlatBinderObject) {
    if object.ty == BINDER_TYPE_FD {
        // SAFETY: the driver has just installed this descriptor for this process.
        drop(unsafe { OwnedFd::from_raw_fd(object.binder as i32) });
    }
}

fn call(device: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let mut session = Session::new(&client);
    let file = File::open("/dev/null")?;
    let mut data = Vec::new();
    replay_orders(|operation| {
        operation.write(&mut data);
        let code = operation.kind as u32;
        let parcel = Parcel { data: std::mem::take(&mut data), ..Parcel::new() };
        let parcel = match operation.kind {
            Kind::Call | Kind::OneWay | Kind::Ping => parcel,
            Kind::Nested => parcel.binder(CALLBACK, 0),
            Kind::Descriptor => parcel.fd(file.as_fd()),
        };
        if operation.kind == Kind::OneWay {
            one_way(&mut session, code, parcel.payload())?;
        } else {
            let call = Call { handle: 0, code, flags: TF_ACCEPT_FDS, payload: parcel.payload() };
            let reply = session.call_with(call, &mut Echo)?;
            let length = reply.data()?.len();
            session.free(reply);
            ensure!(length == operation.reply, "{length} bytes came back");
        }
        data = parcel.data;
        Ok(())
    })
}

/// Sends a one-way call; waits while the receiver's buffer is full, as a socket does.
fn one_way(session: &mut Session<'_>, code: u32, payload: Payload<'_>) -> Result<()> {
    let start = Instant::now();
    loop {
        match session.oneway(0, code, payload) {
            Ok(_) => return Ok(()),
            Err(ClientError::FailedReply) if start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_micros(100));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn call_socket() -> Result<()> {
    let (ours, theirs) = sockets::pair(LARGEST)?;
    let _server = Peer::start(&["serve-socket"], theirs.into(), Stdio::null())?;
    let file = File::open("/dev/null")?;
    let (mut data, mut room) = (Vec::new(), vec![0; LARGEST]);
    replay_orders(|operation| {
        operation.write(&mut data);
        let files = [file.as_fd()];
        let descriptor = operation.kind == Kind::Descriptor;
        sockets::send_files(&ours, &data, if descriptor { &files } else { &[] })?;
        if operation.kind == Kind::OneWay {
            return Ok(());
        }
        if operation.kind == Kind::Nested {
            let len = sockets::receive(&ours, &mut room)?;
            sockets::send_files(&ours, &room[..len], &[])?;
        }
        let len = sockets::receive(&ours, &mut room)?;
        ensure!(len == operation.reply, "{len} bytes came back");
        Ok(())
    })
}

fn serve_socket() -> Result<()> {
    let socket = std::io::stdin();
    let mut room = vec![0; LARGEST];
    report_ready();
    loop {
        let len = sockets::receive_files(&socket, &mut room)?;
        if len == 0 {
            return Ok(());
        }
        let operation = Operation::parse(&room[..len])?;
        if operation.kind == Kind::Nested {
            sockets::send_files(&socket, b"callback", &[])?;
            sockets::receive(&socket, &mut room)?;
        }
        if operation.kind != Kind::OneWay {
            sockets::send_files(&socket, &vec![0; operation.reply], &[])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_operations() {
        assert_eq!(operations(7, 500), operations(7, 500));
        assert_ne!(operations(7, 500), operations(8, 500));
    }

    #[test]
    fn each_kind_has_its_share() {
        let all = operations(1, 20_000);
        for (kind, percent) in KINDS {
            let found = all.iter().filter(|operation| operation.kind == kind).count();
            let wanted = all.len() * percent as usize / 100;
            assert!(found.abs_diff(wanted) < all.len() / 100, "{kind:?}: {found}, {wanted}");
        }
    }

    #[test]
    fn requests_are_read_as_they_are_written() {
        let mut data = Vec::new();
        for operation in operations(3, 100) {
            operation.write(&mut data);
            assert_eq!(Operation::parse(&data).unwrap(), operation);
        }
        assert!(Operation::parse(&[1, 0]).is_err());
        assert!(Operation::parse(&[9; 16]).is_err());
    }
}
