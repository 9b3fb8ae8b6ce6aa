//! One thread's side of an open: commands out, returns in.

use std::collections::VecDeque;
use std::marker::PhantomData;

use binder_uapi::{
    BinderHandleCookie, BinderTransactionData, BinderWriteRead, Command, Return, ReturnReader,
    TF_ACCEPT_FDS, TF_ONE_WAY, TF_STATUS_CODE,
};
use rustix::io::Errno;

use crate::{Client, ClientError, Parcel, Payload, Received};

/// Room for returns, bytes: what libbinder offers.
const READ_LEN: usize = 256;
/// Notices that are kept for [`Session::take_notice`]; the oldest goes first.
const MAX_NOTICES: usize = 4096;
/// What a service answers to a code that it does not know (libbinder's `UNKNOWN_TRANSACTION`).
const UNKNOWN_TRANSACTION: i32 = -libc::EBADMSG;

/// A call to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// Whose.
    pub handle: u32,
    /// The parties' own number.
    pub code: u32,
    /// `TF_*`.
    pub flags: u32,
    /// What it carries.
    pub payload: Payload<'a>,
}

/// What a service answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With data of its own.
    Reply(Parcel),
    /// With what it was sent, from where it lies: no copy on this side.
    Echo,
    /// With a status code.
    Status(i32),
    /// With data, and then stops serving.
    Stop(Parcel),
}

/// Something that answers transactions.
pub trait Service {
    /// Answers one. A one-way transaction's answer goes nowhere, except that `Stop` stops.
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer;

    /// Hears what is neither a transaction nor a part of a call: references, deaths, loopers.
    fn notice(&mut self, session: &mut Session<'_>, notice: Return) {
        session.keep_notice(notice);
    }
}

impl<F: FnMut(&mut Session<'_>, &Received<'_>) -> Answer> Service for F {
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer {
        self(session, incoming)
    }
}

/// Sends everything back.
pub struct Echo;

impl Service for Echo {
    fn handle(&mut self, _: &mut Session<'_>, _: &Received<'_>) -> Answer {
        Answer::Echo
    }
}

/// Knows no code.
pub struct RefuseAll;

impl Service for RefuseAll {
    fn handle(&mut self, _: &mut Session<'_>, _: &Received<'_>) -> Answer {
        Answer::Status(UNKNOWN_TRANSACTION)
    }
}

/// What [`Session::serve_one`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A transaction.
    Transaction,
    /// Something else.
    Notice,
    /// A transaction, and the service wants to stop.
    Stop,
}

/// What a signal does to a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSignal {
    /// Nothing: the wait goes on.
    WaitOn,
    /// Ends it with `EINTR`.
    Return,
}

/// The commands, returns and bookkeeping of one thread. It must stay on the thread that uses it:
/// the driver knows threads by themselves.
///
/// Commands are queued and go out with the next read, or with [`flush`](Self::flush).
pub struct Session<'c> {
    client: &'c Client,
    out: Vec<u8>,
    incoming: Vec<u8>,
    pending: VecDeque<Return>,
    notices: VecDeque<Return>,
    /// Replies that wait in `out` for the driver to read them.
    kept: Vec<Parcel>,
    /// Replies sent whose `BR_TRANSACTION_COMPLETE` has not come yet.
    unacknowledged: u32,
    on_signal: OnSignal,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<'c> Session<'c> {
    /// A thread's side of `client`.
    pub fn new(client: &'c Client) -> Self {
        Self::with_read_len(client, READ_LEN)
    }

    /// The same with another room for returns, bytes.
    pub fn with_read_len(client: &'c Client, len: usize) -> Self {
        Self {
            client,
            out: Vec::new(),
            incoming: vec![0; len],
            pending: VecDeque::new(),
            notices: VecDeque::new(),
            kept: Vec::new(),
            unacknowledged: 0,
            on_signal: OnSignal::WaitOn,
            stays_on_its_thread: PhantomData,
        }
    }

    /// The open that this is a thread of.
    pub fn client(&self) -> &'c Client {
        self.client
    }

    /// What a signal does to a wait; [`OnSignal::WaitOn`] at first.
    pub fn on_signal(&mut self, on_signal: OnSignal) {
        self.on_signal = on_signal;
    }

    /// Queues a command. What the addresses of a transaction or reply point at must stay until it
    /// is flushed: the driver only reads there, so a dangling address sends garbage.
    pub fn push(&mut self, command: Command) {
        command.write_to(&mut self.out);
    }

    /// Queues raw bytes, sense or nonsense.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// One `BINDER_WRITE_READ` with all that is queued, and a read.
    ///
    /// After a failure other than an interruption or a lack of work, what the driver did not take
    /// is dropped: it would fail again.
    pub fn write_read(&mut self) -> Result<(), ClientError> {
        self.transfer(self.incoming.len())
    }

    /// One `BINDER_WRITE_READ` with all that is queued, even nothing, and without a read.
    pub fn write(&mut self) -> Result<(), ClientError> {
        self.transfer(0)
    }

    /// `read_len` bytes may be read; 0: none.
    fn transfer(&mut self, read_len: usize) -> Result<(), ClientError> {
        let mut bwr = BinderWriteRead {
            write_size: self.out.len() as u64,
            write_buffer: self.out.as_ptr() as u64,
            read_size: read_len as u64,
            read_buffer: self.incoming.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the read buffer is ours, as long as said, and nothing else looks at it now.
        let result = unsafe { self.client.write_read(&mut bwr) };
        let counted = |counted: u64, given: usize| match usize::try_from(counted) {
            Ok(n) if n <= given => Ok(n),
            _ => Err(ClientError::Count { counted, given }),
        };
        let written = counted(bwr.write_consumed, self.out.len())?;
        let returned = counted(bwr.read_consumed, self.incoming.len())?;
        self.out.drain(..written);
        if let Err(errno) = result
            && !matches!(errno, Errno::INTR | Errno::AGAIN)
        {
            self.out.clear();
        }
        if self.out.is_empty() {
            self.kept.clear();
        }
        for item in ReturnReader::new(&self.incoming[..returned]) {
            self.pending.push_back(item?);
        }
        result.map_err(|errno| ClientError::Ioctl { doing: "BINDER_WRITE_READ", errno })
    }

    /// Sends what is queued. Reads only where the driver demands it: it takes no command from a
    /// thread that has not been told yet of an error with the one before.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let mut read_len = 0;
        while !self.out.is_empty() {
            let before = self.out.len();
            match self.transfer(read_len) {
                Err(error) if self.goes_on_after(&error) => {}
                other => other?,
            }
            read_len = if self.out.len() == before { self.incoming.len() } else { 0 };
        }
        Ok(())
    }

    fn goes_on_after(&self, error: &ClientError) -> bool {
        error.errno() == Some(Errno::INTR) && self.on_signal == OnSignal::WaitOn
    }

    /// The next return, waited for where none is there; `BR_NOOP` is passed over, and so is the
    /// acknowledgement of a reply.
    pub fn receive(&mut self) -> Result<Return, ClientError> {
        loop {
            match self.pending.pop_front() {
                Some(Return::Noop) => continue,
                Some(Return::TransactionComplete) if self.unacknowledged > 0 => {
                    self.unacknowledged -= 1;
                    continue;
                }
                Some(failed @ (Return::FailedReply | Return::DeadReply))
                    if self.unacknowledged > 0 =>
                {
                    self.unacknowledged -= 1;
                    self.keep_notice(failed);
                    continue;
                }
                Some(other) => return Ok(other),
                None => {}
            }
            match self.write_read() {
                Err(error) if self.goes_on_after(&error) => {}
                other => other?,
            }
        }
    }

    /// Makes a call and waits for its reply; transactions that come meanwhile are refused.
    pub fn call(
        &mut self,
        handle: u32,
        code: u32,
        payload: Payload<'_>,
    ) -> Result<Received<'c>, ClientError> {
        let flags = TF_ACCEPT_FDS;
        self.call_with(Call { handle, code, flags, payload }, &mut RefuseAll)
    }

    /// Makes a call and waits for its reply; `service` answers what is called back meanwhile.
    pub fn call_with(
        &mut self,
        call: Call<'_>,
        service: &mut dyn Service,
    ) -> Result<Received<'c>, ClientError> {
        let Call { handle, code, flags, payload } = call;
        let data = transaction(handle.into(), code, flags, payload);
        self.push(Command::Transaction { data, buffers_size: None });
        loop {
            match self.receive()? {
                Return::Reply(data) => return Ok(Received::new(self.client, data, None)),
                Return::TransactionComplete => {}
                failed @ (Return::DeadReply
                | Return::FailedReply
                | Return::FrozenReply
                | Return::Error(_)) => return Err(failure(failed)),
                other => drop(self.attend(other, service)),
            }
        }
    }

    /// Sends a one-way call and waits until the driver took it. What the driver said to that:
    /// `BR_TRANSACTION_COMPLETE`, `BR_ONEWAY_SPAM_SUSPECT` or `BR_TRANSACTION_PENDING_FROZEN`.
    pub fn oneway(
        &mut self,
        handle: u32,
        code: u32,
        payload: Payload<'_>,
    ) -> Result<Return, ClientError> {
        let data = transaction(handle.into(), code, TF_ONE_WAY, payload);
        self.push(Command::Transaction { data, buffers_size: None });
        self.completion()
    }

    /// Answers the transaction on top of this thread's stack and waits until the driver took it.
    pub fn reply(&mut self, payload: Payload<'_>) -> Result<(), ClientError> {
        let data = transaction(0, 0, 0, payload);
        self.push(Command::Reply { data, buffers_size: None });
        self.completion().map(drop)
    }

    fn completion(&mut self) -> Result<Return, ClientError> {
        loop {
            match self.receive()? {
                done @ (Return::TransactionComplete
                | Return::OnewaySpamSuspect
                | Return::TransactionPendingFrozen) => return Ok(done),
                failed @ (Return::DeadReply
                | Return::FailedReply
                | Return::FrozenReply
                | Return::Error(_)) => return Err(failure(failed)),
                other => drop(self.attend(other, &mut RefuseAll)),
            }
        }
    }

    /// Queues the return of a buffer.
    pub fn free(&mut self, received: Received<'_>) {
        self.push(Command::FreeBuffer(received.address()));
    }

    /// Queues taking a strong reference.
    pub fn acquire(&mut self, handle: u32) {
        self.push(Command::Acquire(handle));
    }

    /// Queues dropping a strong reference.
    pub fn release(&mut self, handle: u32) {
        self.push(Command::Release(handle));
    }

    /// Queues taking a weak reference.
    pub fn increfs(&mut self, handle: u32) {
        self.push(Command::IncRefs(handle));
    }

    /// Queues dropping a weak reference.
    pub fn decrefs(&mut self, handle: u32) {
        self.push(Command::DecRefs(handle));
    }

    /// Queues asking for a death notification.
    pub fn request_death(&mut self, handle: u32, cookie: u64) {
        self.push(Command::RequestDeathNotification(BinderHandleCookie { handle, cookie }));
    }

    /// Queues its withdrawal.
    pub fn clear_death(&mut self, handle: u32, cookie: u64) {
        self.push(Command::ClearDeathNotification(BinderHandleCookie { handle, cookie }));
    }

    /// Becomes a looper that the application started.
    pub fn enter_looper(&mut self) -> Result<(), ClientError> {
        self.push(Command::EnterLooper);
        self.flush()
    }

    /// Becomes a looper that the driver asked for.
    pub fn register_looper(&mut self) -> Result<(), ClientError> {
        self.push(Command::RegisterLooper);
        self.flush()
    }

    /// Leaves the pool.
    pub fn exit_looper(&mut self) -> Result<(), ClientError> {
        self.push(Command::ExitLooper);
        self.flush()
    }

    /// Serves until the service stops or something fails. The thread becomes a looper first.
    pub fn serve(&mut self, service: &mut dyn Service) -> Result<(), ClientError> {
        self.push(Command::EnterLooper);
        while self.serve_one(service)? != Served::Stop {}
        self.flush()
    }

    /// Waits for one return and attends to it.
    pub fn serve_one(&mut self, service: &mut dyn Service) -> Result<Served, ClientError> {
        let item = self.receive()?;
        self.attend(item, service)
    }

    /// The oldest notice that no service heard.
    pub fn take_notice(&mut self) -> Option<Return> {
        self.notices.pop_front()
    }

    /// The oldest notice, waited for; transactions that come meanwhile are refused.
    pub fn wait_notice(&mut self) -> Result<Return, ClientError> {
        loop {
            if let Some(notice) = self.take_notice() {
                return Ok(notice);
            }
            self.serve_one(&mut RefuseAll)?;
        }
    }

    /// Keeps a notice for [`take_notice`](Self::take_notice).
    pub fn keep_notice(&mut self, notice: Return) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    fn attend(&mut self, item: Return, service: &mut dyn Service) -> Result<Served, ClientError> {
        match item {
            Return::Transaction(data) => {
                return Ok(self.answer(Received::new(self.client, data, None), service));
            }
            Return::TransactionSecCtx(data) => {
                let secctx = Some(data.secctx);
                let received = Received::new(self.client, data.transaction_data, secctx);
                return Ok(self.answer(received, service));
            }
            Return::IncRefs(node) => self.push(Command::IncRefsDone(node)),
            Return::Acquire(node) => self.push(Command::AcquireDone(node)),
            Return::DeadBinder(cookie) => {
                self.push(Command::DeadBinderDone(cookie));
            }
            Return::Error(code) => return Err(ClientError::Driver(code)),
            _ => {}
        }
        service.notice(self, item);
        Ok(Served::Notice)
    }

    /// Lets `service` handle a transaction, queues its answer and the return of the buffer.
    fn answer(&mut self, incoming: Received<'c>, service: &mut dyn Service) -> Served {
        let answer = service.handle(self, &incoming);
        let served = match answer {
            Answer::Stop(_) => Served::Stop,
            _ => Served::Transaction,
        };
        if !incoming.is_one_way() {
            let data = match answer {
                Answer::Echo => {
                    let BinderTransactionData { data_size, offsets_size, buffer, offsets, .. } =
                        *incoming.transaction();
                    BinderTransactionData {
                        data_size,
                        offsets_size,
                        buffer,
                        offsets,
                        ..Default::default()
                    }
                }
                Answer::Reply(parcel) | Answer::Stop(parcel) => self.keep(parcel, 0),
                Answer::Status(status) => {
                    self.keep(Parcel::new().bytes(&status.to_ne_bytes()), TF_STATUS_CODE)
                }
            };
            self.push(Command::Reply { data, buffers_size: None });
            self.unacknowledged += 1;
        }
        // Behind the reply, which may be read from this very buffer.
        self.free(incoming);
        served
    }

    /// Keeps a reply's memory until the driver has read it; moving the parcel moves no bytes of it.
    fn keep(&mut self, parcel: Parcel, flags: u32) -> BinderTransactionData {
        let data = transaction(0, 0, flags, parcel.payload());
        self.kept.push(parcel);
        data
    }
}

fn transaction(target: u64, code: u32, flags: u32, payload: Payload<'_>) -> BinderTransactionData {
    BinderTransactionData {
        target,
        code,
        flags,
        data_size: payload.data.len() as u64,
        offsets_size: size_of_val(payload.offsets) as u64,
        buffer: payload.data.as_ptr() as u64,
        offsets: payload.offsets.as_ptr() as u64,
        ..Default::default()
    }
}

fn failure(failed: Return) -> ClientError {
    match failed {
        Return::DeadReply => ClientError::DeadReply,
        Return::FrozenReply => ClientError::FrozenReply,
        Return::Error(code) => ClientError::Driver(code),
        _ => ClientError::FailedReply,
    }
}
