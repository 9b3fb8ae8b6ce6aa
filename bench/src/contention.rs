//! Clients of several scheduling classes and the one server that they all call.
//!
//! Each client is a process. It reads orders from its stdin: `alone N` (N calls), or `together N`
//! (calls until the next line arrives; prints `enough` after the N-th). After either it prints its
//! times, nanoseconds, as one line of JSON.

use std::io::{BufRead, BufReader, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use binder_client::{Answer, Client, Options, Payload, Received, Session};
use e2e::random::Random;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketType, accept, bind, connect, listen, socket,
};
use serde::{Deserialize, Serialize};

use crate::affinity::{self, Class};
use crate::measure::message;
use crate::peer::{Peer, report_ready};
use crate::{server, sockets};

/// Sizes of the calls, picked at random, bytes.
const SIZES: [usize; 6] = [4, 128, 1024, 4096, 16_384, LARGEST];
const LARGEST: usize = 65_536;
/// Threads of a server on a binder device.
const THREADS: usize = 4;

/// The transport of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A binder device.
    Binder,
    /// A Unix `SOCK_SEQPACKET` socket with a thread per connection: the effect of the scheduler
    /// alone.
    SeqPacket,
}

/// What a peer is.
#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    /// A server, with the CPU time of each call besides the echo.
    Server(Transport, PathBuf, Duration),
    /// A client with a seed of its calls.
    Client(Transport, PathBuf, Class, u64),
    /// A program that occupies a CPU.
    Spinner(Class),
}

impl Role {
    /// Starts a server or a spinner, as another user if one is given.
    pub fn start(&self, uid: Option<u32>) -> Result<Peer> {
        Peer::start_as(uid, &[&serde_json::to_string(self)?], Stdio::null(), Stdio::null())
    }
}

/// A peer's main function.
pub fn serve(words: &[&str]) -> Result<()> {
    match serde_json::from_str(words.first().context("no role")?)? {
        Role::Server(Transport::Binder, path, work) => {
            serve_binder(crate::devices::path_text(&path)?, work)
        }
        Role::Server(Transport::SeqPacket, path, work) => serve_seqpacket(&path, work),
        Role::Client(transport, path, class, seed) => client(transport, &path, class, seed),
        Role::Spinner(class) => affinity::spin(class),
    }
}

fn spin(work: Duration) {
    let start = Instant::now();
    while !work.is_zero() && start.elapsed() < work {
        std::hint::spin_loop();
    }
}

fn serve_binder(device: &str, work: Duration) -> Result<()> {
    server::serve(device, THREADS, || {
        move |_: &mut Session<'_>, _: &Received<'_>| {
            spin(work);
            Answer::Echo
        }
    })
}

fn serve_seqpacket(path: &Path, work: Duration) -> Result<()> {
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?).with_context(|| path.display().to_string())?;
    listen(&listener, 16)?;
    report_ready();
    loop {
        let connection = accept(&listener)?;
        thread::spawn(move || {
            sockets::echo(&connection, LARGEST, |_| {
                spin(work);
                Ok(())
            })
        });
    }
}

fn client(transport: Transport, path: &Path, class: Class, seed: u64) -> Result<()> {
    class.take()?;
    match transport {
        Transport::Binder => {
            let client = Client::open(path, &Options::default())?;
            let mut session = Session::new(&client);
            obey(seed, |message| {
                let reply = session.call(0, 1, Payload::bytes(message))?;
                anyhow::ensure!(reply.data()?.len() == message.len(), "a reply is cut");
                session.free(reply);
                Ok(())
            })
        }
        Transport::SeqPacket => {
            let connection = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
            connect(&connection, &SocketAddrUnix::new(path)?)
                .with_context(|| path.display().to_string())?;
            let mut room = vec![0; LARGEST];
            obey(seed, |message| sockets::call(&connection, message, &mut room))
        }
    }
}

/// Executes orders until stdin is closed; `call` sends a message and receives its echo.
fn obey(seed: u64, mut call: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let messages = SIZES.map(message);
    let mut random = Random::new(seed);
    let orders = lines(BufReader::new(stdin()));
    report_ready();
    while let Ok(order) = orders.recv() {
        let (kind, count) = order.split_once(' ').context("what am I to do?")?;
        let count: u64 = count.parse().context("how many calls?")?;
        let mut times: Vec<u64> = Vec::new();
        loop {
            let message = &messages[random.below(messages.len() as u64) as usize];
            let start = Instant::now();
            call(message)?;
            if count < u64::MAX {
                times.push(start.elapsed().as_nanos() as u64);
            }
            if kind == "alone" && times.len() as u64 >= count {
                break;
            }
            if kind != "alone" {
                if times.len() as u64 == count {
                    println!("enough");
                }
                match orders.try_recv() {
                    Err(TryRecvError::Empty) => {}
                    Ok(_) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
        }
        println!("{}", serde_json::to_string(&times)?);
    }
    Ok(())
}

/// A client process, as the benchmark sees it. Killed on drop.
pub struct Contender {
    class: Class,
    _peer: Peer,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Contender {
    /// Starts a client, as another user if one is given. An error if this process is not permitted
    /// to use the class.
    pub fn start(
        uid: Option<u32>,
        transport: Transport,
        path: &Path,
        class: Class,
        seed: u64,
    ) -> Result<Self> {
        let role = Role::Client(transport, path.to_owned(), class, seed);
        let words = [&serde_json::to_string(&role)?[..]];
        let (peer, orders, answers) = Peer::start_talking(uid, &words)?;
        Ok(Self { class, _peer: peer, orders, lines: lines(answers) })
    }

    /// Its class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Lets it make `count` calls without competitors, and waits for them for at most `patience`.
    pub fn alone(&mut self, count: u64, patience: Duration) -> Result<Vec<u64>> {
        self.order(&format!("alone {count}"))?;
        self.times(patience)
    }

    /// Lets it call until it is dropped.
    pub fn call_without_end(&mut self) -> Result<()> {
        self.order(&format!("together {}", u64::MAX))
    }

    fn order(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders, "{order}").with_context(|| self.name())
    }

    fn name(&self) -> String {
        format!("the client of class {}", self.class.name())
    }

    fn line(&self, patience: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("{} has ended", self.name()),
        }
    }

    fn times(&self, patience: Duration) -> Result<Vec<u64>> {
        loop {
            let line = self.line(patience)?;
            let line = line.with_context(|| format!("{} does not answer", self.name()))?;
            if line != "enough" {
                return serde_json::from_str(&line).with_context(|| self.name());
            }
        }
    }
}

/// Reads lines on a thread of its own, so that a read can be given up.
fn lines(input: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Lets all of them call concurrently, until the slowest has made `count` calls or `limit` is over;
/// no client stops before.
pub fn together(
    contenders: &mut [Contender],
    count: u64,
    limit: Duration,
) -> Result<Vec<Vec<u64>>> {
    for contender in &mut *contenders {
        contender.order(&format!("together {count}"))?;
    }
    let start = Instant::now();
    for contender in &*contenders {
        contender.line(limit.saturating_sub(start.elapsed()))?;
    }
    for contender in &mut *contenders {
        contender.order("stop")?;
    }
    let patience = Duration::from_secs(30);
    contenders.iter().map(|contender| contender.times(patience)).collect()
}
