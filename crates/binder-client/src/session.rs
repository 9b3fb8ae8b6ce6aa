//! One thread's state on an open: commands out, returns in.

use std::collections::VecDeque;
use std::marker::PhantomData;

use binder_uapi::{
    BinderHandleCookie, BinderTransactionData, BinderWriteRead, Command, Return, ReturnReader,
    TF_ACCEPT_FDS, TF_ONE_WAY, TF_STATUS_CODE,
};
use rustix::io::Errno;

use crate::{Client, ClientError, Parcel, Payload, Received};

/// Size of the read buffer, bytes, as in libbinder.
const READ_LEN: usize = 256;
/// Notices that are kept for [`Session::take_notice`]; further ones replace the oldest.
const MAX_NOTICES: usize = 4096;
/// Status for a code that a service does not know (libbinder's `UNKNOWN_TRANSACTION`).
const UNKNOWN_TRANSACTION: i32 = -libc::EBADMSG;

/// Parameters of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// Handle of the target.
    pub handle: u32,
    /// Transaction code, defined by caller and target.
    pub code: u32,
    /// `TF_*`.
    pub flags: u32,
    /// Data and objects.
    pub payload: Payload<'a>,
}

/// Reply of a service.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Sends data.
    Reply(Parcel),
    /// Sends the received data, from the receive buffer: no copy in this process.
    Echo,
    /// Sends a status code.
    Status(i32),
    /// Sends data, then stops serving.
    Stop(Parcel),
}

/// A service: an object that replies to transactions.
pub trait Service {
    /// Handles a transaction. For a one-way transaction the result is ignored, except `Stop`.
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer;

    /// Handles a return that is neither a transaction nor a part of a call: references, deaths,
    /// loopers.
    fn notice(&mut self, session: &mut Session<'_>, notice: Return) {
        session.keep_notice(notice);
    }
}

impl<F: FnMut(&mut Session<'_>, &Received<'_>) -> Answer> Service for F {
    fn handle(&mut self, session: &mut Session<'_>, incoming: &Received<'_>) -> Answer {
        self(session, incoming)
    }
}

/// A service that replies with the received data.
pub struct Echo;

impl Service for Echo {
    fn handle(&mut self, _: &mut Session<'_>, _: &Received<'_>) -> Answer {
        Answer::Echo
    }
}

/// A service that knows no code.
pub struct RefuseAll;

impl Service for RefuseAll {
    fn handle(&mut self, _: &mut Session<'_>, _: &Received<'_>) -> Answer {
        Answer::Status(UNKNOWN_TRANSACTION)
    }
}

/// Result of [`Session::serve_one`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A transaction.
    Transaction,
    /// A return that is no transaction.
    Notice,
    /// A transaction, after which the service stops.
    Stop,
}

/// Effect of a signal on a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSignal {
    /// The wait continues.
    WaitOn,
    /// The wait ends with `EINTR`.
    Return,
}

/// The commands, returns and bookkeeping of one thread. It must stay on the thread that uses it:
/// the driver identifies threads by their tids.
///
/// Commands are queued and sent with the next read, or with [`flush`](Self::flush).
pub struct Session<'c> {
    client: &'c Client,
    out: Vec<u8>,
    incoming: Vec<u8>,
    pending: VecDeque<Return>,
    notices: VecDeque<Return>,
    /// Replies that stay in memory until the driver has read `out`.
    kept: Vec<Parcel>,
    /// Replies that were sent without a `BR_TRANSACTION_COMPLETE` yet.
    unacknowledged: u32,
    on_signal: OnSignal,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<'c> Session<'c> {
    /// A session of the calling thread on `client`.
    pub fn new(client: &'c Client) -> Self {
        Self::with_read_len(client, READ_LEN)
    }

    /// Like [`new`](Self::new), with a read buffer of `len` bytes.
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

    /// The open that the session uses.
    pub fn client(&self) -> &'c Client {
        self.client
    }

    /// Sets the effect of a signal on a wait; initially [`OnSignal::WaitOn`].
    pub fn on_signal(&mut self, on_signal: OnSignal) {
        self.on_signal = on_signal;
    }

    /// Queues a command. Memory to which a transaction or reply points must stay valid until the
    /// command is flushed: the driver only reads it, so a dangling address sends garbage.
    pub fn push(&mut self, command: Command) {
        command.write_to(&mut self.out);
    }

    /// Queues raw bytes, which need not be valid commands.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// One `BINDER_WRITE_READ` with all queued commands, and a read.
    ///
    /// After a failure other than an interruption or a lack of work, commands that the driver did
    /// not consume are dropped: they would fail again.
    pub fn write_read(&mut self) -> Result<(), ClientError> {
        self.transfer(self.incoming.len())
    }

    /// One `BINDER_WRITE_READ` with all queued commands, if any, and without a read.
    pub fn write(&mut self) -> Result<(), ClientError> {
        self.transfer(0)
    }

    /// `read_len`: size of the read buffer, bytes; 0: no read.
    fn transfer(&mut self, read_len: usize) -> Result<(), ClientError> {
        let mut bwr = BinderWriteRead {
            write_size: self.out.len() as u64,
            write_buffer: self.out.as_ptr() as u64,
            read_size: read_len as u64,
            read_buffer: self.incoming.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the read buffer is ours, has this length, and is not accessed otherwise during
        // the call.
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

    /// Sends the queued commands. Reads only if the driver requires it: it runs no command of a
    /// thread that has not read the error of an earlier one.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let mut read_len = 0;
        while !self.out.is_empty() {
            let before = self.out.len();
            match self.transfer(read_len) {
                // Nothing has to be read for that, and a read could take another thread's work.
                Err(error) if self.goes_on_after(&error) => continue,
                other => other?,
            }
            read_len = if self.out.len() == before { self.incoming.len() } else { 0 };
        }
        Ok(())
    }

    fn goes_on_after(&self, error: &ClientError) -> bool {
        error.errno() == Some(Errno::INTR) && self.on_signal == OnSignal::WaitOn
    }

    /// Waits for the next return if none is buffered; `BR_NOOP` and the acknowledgement of a reply
    /// are skipped.
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

    /// Makes a call and waits for its reply; transactions received meanwhile are refused.
    pub fn call(
        &mut self,
        handle: u32,
        code: u32,
        payload: Payload<'_>,
    ) -> Result<Received<'c>, ClientError> {
        let flags = TF_ACCEPT_FDS;
        self.call_with(Call { handle, code, flags, payload }, &mut RefuseAll)
    }

    /// Makes a call and waits for its reply; `service` handles transactions received meanwhile.
    pub fn call_with(
        &mut self,
        call: Call<'_>,
        service: &mut dyn Service,
    ) -> Result<Received<'c>, ClientError> {
        let Call { handle, code, flags, payload } = call;
        let data = transaction(handle.into(), code, flags, payload);
        self.push(Command::Transaction { data, buffers_size: payload.buffers_size });
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

    /// Sends a one-way call and waits until the driver has accepted it. Returns the driver's
    /// `BR_TRANSACTION_COMPLETE`, `BR_ONEWAY_SPAM_SUSPECT` or `BR_TRANSACTION_PENDING_FROZEN`.
    pub fn oneway(
        &mut self,
        handle: u32,
        code: u32,
        payload: Payload<'_>,
    ) -> Result<Return, ClientError> {
        let data = transaction(handle.into(), code, TF_ONE_WAY, payload);
        self.push(Command::Transaction { data, buffers_size: payload.buffers_size });
        self.completion()
    }

    /// Replies to the transaction on top of this thread's stack and waits until the driver has
    /// accepted the reply.
    pub fn reply(&mut self, payload: Payload<'_>) -> Result<(), ClientError> {
        let data = transaction(0, 0, 0, payload);
        self.push(Command::Reply { data, buffers_size: payload.buffers_size });
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

    /// Queues the release of a buffer.
    pub fn free(&mut self, received: Received<'_>) {
        self.push(Command::FreeBuffer(received.address()));
    }

    /// Queues the acquisition of a strong reference.
    pub fn acquire(&mut self, handle: u32) {
        self.push(Command::Acquire(handle));
    }

    /// Queues the release of a strong reference.
    pub fn release(&mut self, handle: u32) {
        self.push(Command::Release(handle));
    }

    /// Queues the acquisition of a weak reference.
    pub fn increfs(&mut self, handle: u32) {
        self.push(Command::IncRefs(handle));
    }

    /// Queues the release of a weak reference.
    pub fn decrefs(&mut self, handle: u32) {
        self.push(Command::DecRefs(handle));
    }

    /// Queues a request for a death notification.
    pub fn request_death(&mut self, handle: u32, cookie: u64) {
        self.push(Command::RequestDeathNotification(BinderHandleCookie { handle, cookie }));
    }

    /// Queues the withdrawal of a death notification.
    pub fn clear_death(&mut self, handle: u32, cookie: u64) {
        self.push(Command::ClearDeathNotification(BinderHandleCookie { handle, cookie }));
    }

    /// Becomes a looper that the application started.
    pub fn enter_looper(&mut self) -> Result<(), ClientError> {
        self.push(Command::EnterLooper);
        self.flush()
    }

    /// Becomes a looper that the driver requested.
    pub fn register_looper(&mut self) -> Result<(), ClientError> {
        self.push(Command::RegisterLooper);
        self.flush()
    }

    /// Leaves the pool.
    pub fn exit_looper(&mut self) -> Result<(), ClientError> {
        self.push(Command::ExitLooper);
        self.flush()
    }

    /// Serves until the service stops or an operation fails. The thread becomes a looper first.
    pub fn serve(&mut self, service: &mut dyn Service) -> Result<(), ClientError> {
        self.push(Command::EnterLooper);
        while self.serve_one(service)? != Served::Stop {}
        self.flush()
    }

    /// Waits for one return and handles it.
    pub fn serve_one(&mut self, service: &mut dyn Service) -> Result<Served, ClientError> {
        let item = self.receive()?;
        self.attend(item, service)
    }

    /// Removes and returns the oldest notice that no service has handled.
    pub fn take_notice(&mut self) -> Option<Return> {
        self.notices.pop_front()
    }

    /// Waits for a notice; transactions received meanwhile are refused.
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

    /// Lets `service` handle a transaction; queues its reply and the release of the buffer.
    fn answer(&mut self, incoming: Received<'c>, service: &mut dyn Service) -> Served {
        let answer = service.handle(self, &incoming);
        let served = match answer {
            Answer::Stop(_) => Served::Stop,
            _ => Served::Transaction,
        };
        if !incoming.is_one_way() {
            let reply = match answer {
                Answer::Echo => {
                    let BinderTransactionData { data_size, offsets_size, buffer, offsets, .. } =
                        *incoming.transaction();
                    let data = BinderTransactionData {
                        data_size,
                        offsets_size,
                        buffer,
                        offsets,
                        ..Default::default()
                    };
                    Command::Reply { data, buffers_size: None }
                }
                Answer::Reply(parcel) | Answer::Stop(parcel) => self.keep(parcel, 0),
                Answer::Status(status) => {
                    self.keep(Parcel::new().bytes(&status.to_ne_bytes()), TF_STATUS_CODE)
                }
            };
            self.push(reply);
            self.unacknowledged += 1;
        }
        // After the reply, which may be read from this buffer.
        self.free(incoming);
        served
    }

    /// Keeps a reply in memory until the driver has read it; moving the parcel does not move its
    /// data.
    fn keep(&mut self, parcel: Parcel, flags: u32) -> Command {
        let payload = parcel.payload();
        let data = transaction(0, 0, flags, payload);
        let reply = Command::Reply { data, buffers_size: payload.buffers_size };
        self.kept.push(parcel);
        reply
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
