//! The event loop: one thread, one epoll.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use anyhow::Context;
use control::oomd::Reply;
use control::{Answer, Peer, Server};
use headroom_daemon::{ServiceManager, Signal, Signals};
use memory_ledger::AccountId;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::clock::until;
use crate::leases::Leases;
use crate::limits_file::LimitsFile;
use crate::oom::control::{of_ref, to_ref};
use crate::oom::{OomManager, control as oom_control};
use crate::reload::Reload;
use crate::requests::Requests;
use crate::watchdog::Pulse;

/// Values of `epoll_event.data`.
const KILLER: u64 = 0;
const SERVER: u64 = 1;
const SIGNALS: u64 = 2;
const LEASES: u64 = 3;
const PULSE: u64 = 4;
const USAGE: u64 = 5;
const NAMES: u64 = 6;

/// The parts that the event loop serves. They are dropped in this order: the sockets close before
/// the limits end.
pub struct Daemon {
    /// The lease socket and its clients.
    pub leases: Leases,
    /// The control socket.
    pub server: Server,
    /// Limits and kills.
    pub oom: OomManager,
    /// SIGHUP reloads the configuration; the other signals terminate the daemon.
    pub signals: Signals,
    /// The event loop's side of the watchdog.
    pub pulse: Pulse,
    /// The service manager, notified at each watchdog ping.
    pub manager: ServiceManager,
    /// The configuration.
    pub reload: Reload,
    /// The file of limits for the next daemon.
    pub limits: LimitsFile,
}

impl Daemon {
    /// Runs until a signal terminates the daemon.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let Self { leases, server, oom, signals, pulse, manager, reload, limits } = self;
        let mut requests = Requests::inherit(oom);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make epoll")?;
        let fds = [
            (oom.as_fd(), KILLER),
            (server.as_fd(), SERVER),
            (signals.as_fd(), SIGNALS),
            (leases.as_fd(), LEASES),
            (pulse.as_fd(), PULSE),
            (reload.as_fd(), NAMES),
        ];
        let measured = oom.measured_fd().map(|fd| (fd, USAGE));
        for (fd, word) in fds.into_iter().chain(measured) {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(word), epoll::EventFlags::IN)
                .context("cannot watch")?;
        }
        loop {
            let deadlines = [
                oom.next_deadline_ns(),
                leases.next_deadline_ns(),
                requests.next_deadline_ns(),
                limits.next_deadline_ns(oom),
                Some(reload.next_deadline_ns()).filter(|ns| *ns != u64::MAX),
            ];
            let timeout = deadlines.into_iter().flatten().min().map(until);
            let mut ready = [MaybeUninit::uninit(); 7];
            let ready = match epoll::wait(&epoll, &mut ready, timeout.as_ref()) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).context("cannot wait for events"),
            };
            // Kills are handled first, whichever fd is ready.
            oom.dispatch();
            reload.dispatch(oom);
            for event in ready.iter() {
                match event.data.u64() {
                    SERVER => {
                        server.serve_requests(|request| {
                            let mut answer = requests.answer(oom, reload, request);
                            if let Answer::Now(reply) = &mut answer {
                                leases.complete(reply, oom);
                            }
                            answer
                        });
                    }
                    PULSE => {
                        pulse.answer();
                        manager.alive(&oom_control::status_line(oom));
                    }
                    SIGNALS => {
                        while let Some(signal) = signals.next() {
                            if signal != Signal::SIGHUP {
                                manager.stopping();
                                return Ok(());
                            }
                            // The result is in the log and in the status.
                            let _ = reload.reload(oom);
                        }
                    }
                    _ => {}
                }
            }
            oom.drop_lost_reports(|connection| server.is_connected(connection));
            for (request, reply) in requests.take_finished(oom) {
                server.reply(request, &reply);
            }
            // Runs after the control requests, since they may have changed limits.
            leases.dispatch(oom);
            publish(oom, server);
            limits.follow(oom);
        }
    }
}

/// Sends events to subscribers: to a user the events of its own account, to root all events.
fn publish(oom: &mut OomManager, server: &mut Server) {
    let news = oom.records_mut().take_news();
    if news.is_empty() {
        return;
    }
    for event in news {
        let account = event.account();
        let shared = of_ref(account);
        let of_theirs = |peer: Peer| {
            to_ref(AccountId::User(peer.uid)) == account
                || Some(oom.accounts().ledger().groups().account_of(peer.uid)) == shared
        };
        let may_receive = |peer: Peer| peer.is_root() || of_theirs(peer);
        let victim_uid = event.victim_uid();
        let sees_details = |peer: Peer| peer.is_root() || Some(peer.uid) == victim_uid;
        let without = Reply::Event(event.clone().without_details());
        server.publish(&Reply::Event(event), |peer| may_receive(peer) && sees_details(peer));
        server.publish(&without, |peer| may_receive(peer) && !sees_details(peer));
    }
    if !server.has_subscribers() {
        oom.records_mut().stop_collecting_news();
    }
}
