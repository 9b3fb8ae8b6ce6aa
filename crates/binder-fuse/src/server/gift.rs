//! Reads whose transaction carries files: handed to the [`Giver`], and finished when it has an
//! outcome. Where the reader's calls are trapped, it is answered, and a [`Trap`] gives it the files
//! when it comes again.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use binder_driver::{Caller, Errno, ProcessId, WriteRead};
use binder_uapi::BinderWriteRead;
use ioctl_trap::{InHand, Listener};
use zerocopy::IntoBytes;

use super::{GIFTS, Parked, Server};
use crate::error::Error;
use crate::files::{ClientFile, Giver, Job, Outcome, ReadRoom, Trap, TrapOutcome, Verdict};
use crate::host::OpenKey;

/// Gifts that are under way.
#[derive(Default)]
pub(super) struct Gifts {
    /// Started with the first one.
    giver: Option<Giver>,
    /// There once somebody lives under a filter of ours.
    trap: Option<Trap>,
    waiting: HashMap<u64, Gift>,
    /// The same, by the reader's request.
    by_request: HashMap<u64, u64>,
    last: u64,
}

struct Gift {
    request: Parked,
    bwr: BinderWriteRead,
    /// The reader has a signal: it is not parked again.
    interrupted: bool,
}

impl Server {
    fn giver(&mut self) -> io::Result<&mut Giver> {
        if self.gifts.giver.is_none() {
            let giver = Giver::start(Arc::clone(&self.channel), self.host.closers.clone())?;
            rustix::event::epoll::add(
                &self.epoll,
                giver.signal(),
                rustix::event::epoll::EventData::new_u64(GIFTS),
                rustix::event::epoll::EventFlags::IN,
            )?;
            self.gifts.giver = Some(giver);
        }
        self.gifts.giver.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Serves a seccomp filter that clients live under: they are given files where it traps them,
    /// instead of being stopped for it. `in_hand` is shared with whoever stands in for this server
    /// once it is dead ([`ioctl_trap::stand_in`]).
    pub fn add_listener(&mut self, listener: Listener, in_hand: InHand) -> Result<(), Error> {
        let trap = self.gifts.trap.get_or_insert_with(Trap::new);
        trap.listen(listener, in_hand).map_err(Error::io("cannot start a thread that listens"))
    }

    /// A read has taken a transaction with files.
    pub(super) fn begin_gift(&mut self, request: Parked, bwr: BinderWriteRead) -> io::Result<()> {
        let Caller { process, tid, .. } = request.caller;
        if let Some(answer) = self.promise(request) {
            return self.answer_read(request, answer);
        }
        if let Some(open) = self.host.opens.get_mut(request.key) {
            open.calls.set(tid, Some(request.unique));
        }
        let files = self.files_for(process, tid);
        self.gifts.last += 1;
        let gift = self.gifts.last;
        let reply = self.reply.ioctl(request.unique, 0, bwr.as_bytes()).to_vec();
        let room = ReadRoom {
            address: bwr.read_buffer.wrapping_add(bwr.read_consumed),
            len: bwr.read_size.saturating_sub(bwr.read_consumed),
        };
        let charge = self.host.charge(request.caller);
        let job = Job { gift: Some(gift), tid, charge, reply, room, files, closes: Vec::new() };
        self.gifts.waiting.insert(gift, Gift { request, bwr, interrupted: false });
        self.gifts.by_request.insert(request.unique, gift);
        match self.giver().map(|giver| giver.hand_over(job)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let error = io::Error::other("the thread that gives files has ended");
                self.gift_done(gift, Outcome::Unanswered(error))
            }
            Err(error) => self.gift_done(gift, Outcome::Unanswered(error)),
        }
    }

    /// A signal for a reader that is to be given files. `None`: it is not.
    ///
    /// A worker that has begun answers the reader's request first of all. A delivery that waits
    /// until others to the same user are over is put off: the thread finds its transaction with its
    /// next read.
    pub(super) fn interrupt_gift(&mut self, unique: u64) -> Option<io::Result<()>> {
        let id = *self.gifts.by_request.get(&unique)?;
        let gift = self.gifts.waiting.get_mut(&id)?;
        gift.interrupted = true;
        let request = gift.request;
        if !self.gifts.giver.as_mut().is_some_and(|giver| giver.withdraw(id)) {
            return Some(Ok(()));
        }
        self.forget_gift(id);
        let Caller { process, tid, .. } = request.caller;
        Some(match self.driver.promise_files(&mut self.host, process, tid) {
            Some(answer) => self.answer_read(request, answer),
            None => self.channel.send(self.reply.error(unique, libc::EINTR)),
        })
    }

    fn forget_gift(&mut self, id: u64) -> Option<Gift> {
        let gift = self.gifts.waiting.remove(&id)?;
        let Parked { key, caller, unique, .. } = gift.request;
        self.gifts.by_request.remove(&unique);
        if let Some(open) = self.host.opens.get_mut(key)
            && open.calls.request(caller.tid) == Some(unique)
        {
            open.calls.set(caller.tid, None);
        }
        Some(gift)
    }

    fn files_for(&self, process: ProcessId, tid: u32) -> Vec<Arc<ClientFile>> {
        let tokens = self.driver.files_to_give(process, tid);
        tokens.iter().filter_map(|&token| self.host.files.get(token)).collect()
    }

    /// Has a reader that may be trapped come again for its files. `None`: it has to be stopped.
    fn promise(&mut self, request: Parked) -> Option<WriteRead> {
        let Caller { process, tid, .. } = request.caller;
        let trap = self.gifts.trap.as_ref()?;
        if self.host.opens.get(request.key)?.untrapped {
            return None;
        }
        if !trap.promise(tid, process, self.files_for(process, tid)) {
            return None;
        }
        let answer = self.driver.promise_files(&mut self.host, process, tid);
        if !matches!(answer, Some(WriteRead::Done { result: Ok(()), .. })) {
            self.forget_promise(tid, process);
        }
        answer
    }

    /// The promise to a thread is void.
    pub(super) fn forget_promise(&mut self, tid: u32, process: ProcessId) {
        if let Some(trap) = &self.gifts.trap {
            trap.withdraw(tid, process);
        }
    }

    /// A thread calls that may have been given files on its way.
    pub(super) fn collect_promise(&mut self, key: OpenKey, tid: u32) {
        let trap = self.gifts.trap.as_ref().filter(|trap| !trap.is_empty());
        let Some((process, outcome)) = trap.and_then(|trap| trap.collect(tid)) else { return };
        let stray = match outcome {
            TrapOutcome::Given(fds) => {
                let wanted = self.driver.files_arrived(&mut self.host, process, tid, &fds);
                if wanted { Vec::new() } else { fds }
            }
            TrapOutcome::Failed(error, fds) => {
                self.tell_refusal(tid, &error);
                let _ = self.driver.files_refused(&mut self.host, process, tid);
                fds
            }
            TrapOutcome::Untouched => {
                // It came here without being trapped, and will be stopped for its files.
                if let Some(open) = self.host.opens.get_mut(key) {
                    open.untrapped = true;
                }
                Vec::new()
            }
        };
        if !stray.is_empty() {
            self.host.closes.entry(tid).or_default().extend(stray);
        }
    }

    /// Outcomes have come in.
    pub(super) fn serve_gifts(&mut self) {
        let Some(giver) = &self.gifts.giver else { return };
        giver.clear_signal();
        while let Some((gift, outcome)) = self.gifts.giver.as_mut().and_then(Giver::outcome) {
            if let Err(error) = self.gift_done(gift, outcome) {
                tracing::warn!("the kernel does not take the answer to a read: {error}");
            }
        }
        self.serve_wakes();
    }

    fn gift_done(&mut self, id: u64, outcome: Outcome) -> io::Result<()> {
        let Some(Gift { request, bwr, interrupted }) = self.forget_gift(id) else { return Ok(()) };
        let Caller { process, tid, .. } = request.caller;
        match outcome {
            Outcome::Given(fds) => {
                let answer = self.driver.files_given(&mut self.host, process, tid, &fds);
                if answer.is_none() && !self.host.closes.contains_key(&tid) {
                    // The driver has forgotten the read: nobody would know of them.
                    self.host.closes.insert(tid, fds);
                }
                self.decide(id, &request, answer);
            }
            Outcome::Stopped(error) => {
                self.tell_refusal(tid, &error);
                let answer = self.driver.files_refused(&mut self.host, process, tid);
                self.decide(id, &request, answer);
            }
            Outcome::Unanswered(error) => {
                self.tell_refusal(tid, &error);
                match self.driver.files_refused(&mut self.host, process, tid) {
                    Some(answer) => self.answer_read(request, answer)?,
                    None => self.read_again(request, bwr)?,
                }
                if interrupted && self.parked.contains_key(&request.unique) {
                    self.interrupt_parked(request)?;
                }
            }
            Outcome::Lost => {
                let _ = self.driver.files_refused(&mut self.host, process, tid);
            }
        }
        Ok(())
    }

    fn tell_refusal(&mut self, tid: u32, error: &io::Error) {
        self.warn_once("files", || {
            format!(
                "thread {tid} cannot be given file descriptors: {error}; transactions that carry \
                 some fail for their senders (it may be traced by a debugger, or have its table \
                 full)"
            )
        });
        tracing::debug!("thread {tid} cannot be given files: {error}");
    }

    /// How a stopped reader goes on. `None`: it reads again.
    fn decide(&mut self, gift: u64, request: &Parked, answer: Option<WriteRead>) {
        let tid = request.caller.tid;
        let result = match answer {
            Some(WriteRead::Done { bwr, result }) => {
                let written = self.host.write_to(request.caller, request.argument, bwr.as_bytes());
                let result = written.map_err(|_| Errno::EFAULT).and(result);
                Some(result.map_or_else(|errno| -errno.code(), |()| 0))
            }
            _ => None,
        };
        let closes = self.host.closes.remove(&tid).unwrap_or_default();
        if let Some(giver) = &mut self.gifts.giver {
            giver.decide(Verdict { gift, result, closes });
        }
    }

    /// Answers a BINDER_WRITE_READ whose caller has to close descriptors on its way out. False: it
    /// has none.
    pub(super) fn answer_and_close(
        &mut self,
        Parked { unique, caller, .. }: Parked,
        result: i32,
        bwr: &BinderWriteRead,
    ) -> bool {
        let tid = caller.tid;
        let Some(closes) = self.host.closes.remove(&tid) else { return false };
        let reply = self.reply.ioctl(unique, result, bwr.as_bytes()).to_vec();
        let charge = self.host.charge(caller);
        let job = Job {
            gift: None,
            tid,
            charge,
            reply,
            room: ReadRoom::default(),
            files: Vec::new(),
            closes,
        };
        self.giver().is_ok_and(|giver| giver.hand_over(job))
    }
}
