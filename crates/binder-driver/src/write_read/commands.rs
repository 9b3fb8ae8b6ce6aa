//! The write half of `BINDER_WRITE_READ`: fetching and running `BC_` commands.

use binder_uapi::{BinderWriteRead, Command, CommandReader, StreamError};

use crate::driver::Driver;
use crate::host::{Caller, Errno, Fault, Host};
use crate::limits::{COMMAND_CHUNK, COMMAND_COST, OBJECT_COST, SLICE_COST, TRANSACTION_COST};
use crate::objects::Strength;
use crate::transaction::Kind;
use crate::transaction::send::{Message, Sender};
use crate::write_read::work::Work;

/// Commands as they came from the client.
struct Fetched<'a> {
    /// Argument of the ioctl; the commands start at its `write_consumed`.
    bwr: &'a mut BinderWriteRead,
    bytes: &'a [u8],
}

/// The commands that are run before other clients are served.
#[derive(Debug, Default)]
struct Slice {
    /// Cost of the commands without their parcels.
    commands: u64,
    /// Cost of the parcels.
    parcels: u64,
    is_over: bool,
}

impl Slice {
    /// Adds a command, or ends the slice. Small commands still follow a large parcel: a reply and
    /// the release of its call's buffer are one slice, whatever the reply's size.
    fn admit(&mut self, command: &Command) -> bool {
        let (cost, parcel) = match command {
            Command::Transaction { data, buffers_size } | Command::Reply { data, buffers_size } => {
                let objects = data.offsets_size / size_of::<u64>() as u64;
                let bytes = data.data_size.saturating_add(buffers_size.unwrap_or(0));
                let parcel = bytes.saturating_add(objects.saturating_mul(OBJECT_COST));
                (TRANSACTION_COST, Some(parcel))
            }
            _ => (COMMAND_COST, None),
        };
        let so_far = parcel.map_or(self.commands, |_| self.commands.saturating_add(self.parcels));
        self.is_over = so_far >= SLICE_COST;
        if !self.is_over {
            self.commands += cost;
            self.parcels = self.parcels.saturating_add(parcel.unwrap_or(0));
        }
        !self.is_over
    }
}

impl Driver {
    /// Runs commands until they end, the slice is over, one is malformed, one leaves an error for
    /// the thread to read, or client memory is late (`ERESTART`). `write_consumed` follows each
    /// command that was run.
    pub(crate) fn run_commands<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        bwr: &mut BinderWriteRead,
    ) -> Result<(), Errno> {
        let mut chunk = std::mem::take(&mut self.scratch.commands);
        chunk.resize(COMMAND_CHUNK, 0);
        let mut slice = Slice::default();
        let mut result = Ok(());
        while result.is_ok()
            && bwr.write_consumed < bwr.write_size
            && !slice.is_over
            && !self.threads[sender.thread].return_error
        {
            result = match self.fetch(host, sender, bwr, &mut chunk) {
                Ok(len) => {
                    self.run_chunk(host, sender, Fetched { bwr, bytes: &chunk[..len] }, &mut slice)
                }
                Err(errno) => Err(errno),
            };
        }
        self.scratch.commands = chunk;
        self.scratch.predicted = None;
        result
    }

    /// Runs the whole commands in a chunk, until the slice ends.
    fn run_chunk<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        Fetched { bwr, bytes: chunk }: Fetched<'_>,
        slice: &mut Slice,
    ) -> Result<(), Errno> {
        let start = bwr.write_consumed;
        let ends_here = bwr.write_size - start == chunk.len() as u64;
        let mut reader = CommandReader::new(chunk);
        while !self.threads[sender.thread].return_error {
            let at = reader.consumed();
            let command = match reader.next() {
                None => return Ok(()),
                Some(Ok(command)) => command,
                // Truncated by the chunk, not by the client: the next chunk starts with this
                // command.
                Some(Err(StreamError::Truncated { .. })) if !ends_here && reader.consumed() > 0 => {
                    return Ok(());
                }
                Some(Err(StreamError::Truncated { .. } | StreamError::Unknown { .. })) => {
                    return Err(Errno::EINVAL);
                }
            };
            if !slice.admit(&command) {
                return Ok(());
            }
            let run = self.run_command(host, sender, command);
            if run != Err(Errno::ERESTART) {
                self.count_command(sender.caller.process, &chunk[at..]);
            }
            run?;
            bwr.write_consumed = start + reader.consumed() as u64;
        }
        Ok(())
    }

    fn run_command<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        command: Command,
    ) -> Result<(), Errno> {
        let Sender { caller: Caller { process, .. }, thread } = sender;
        match command {
            Command::Transaction { data, buffers_size } => {
                let kind = Kind::of_transaction(data.flags);
                let (id, extra_size) = (self.new_debug_id(), buffers_size.unwrap_or(0));
                self.transact(host, sender, Message { id, kind, data: &data, extra_size })?;
            }
            Command::Reply { data, buffers_size } => {
                let (id, extra_size) = (self.new_debug_id(), buffers_size.unwrap_or(0));
                let kind = Kind::Reply;
                self.transact(host, sender, Message { id, kind, data: &data, extra_size })?;
            }
            Command::FreeBuffer(address) => self.free_buffer(host, sender, address),
            Command::IncRefs(handle) => {
                self.acquire_handle(process, handle, Strength::Weak)?;
            }
            Command::Acquire(handle) => {
                self.acquire_handle(process, handle, Strength::Strong)?;
            }
            Command::Release(handle) => {
                self.release_handle(process, handle, Strength::Strong);
            }
            Command::DecRefs(handle) => self.release_handle(process, handle, Strength::Weak),
            Command::IncRefsDone(node) => {
                self.acknowledge_node(process, node, Strength::Weak);
            }
            Command::AcquireDone(node) => {
                self.acknowledge_node(process, node, Strength::Strong);
            }
            Command::RegisterLooper => self.register_looper(thread),
            Command::EnterLooper => self.enter_looper(thread),
            Command::ExitLooper => self.exit_looper(thread),
            Command::RequestDeathNotification(request) => {
                if let Err(errno) = self.request_death(process, request) {
                    self.threads[thread].return_error = true;
                    self.push_thread_work(thread, Work::Error(-errno.code()));
                }
            }
            Command::ClearDeathNotification(request) => self.clear_death(process, thread, request),
            Command::DeadBinderDone(cookie) => self.dead_binder_done(process, thread, cookie),
            Command::RequestFreezeNotification(request) => {
                self.request_freeze_notification(process, request)?;
            }
            Command::ClearFreezeNotification(request) => {
                self.clear_freeze_notification(process, request)?;
            }
            Command::FreezeNotificationDone(cookie) => {
                self.freeze_notification_done(process, cookie)?;
            }
            // Never implemented by any driver.
            Command::AcquireResult(_) | Command::AttemptAcquire(_) => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Fetches commands at `write_consumed`: a chunk, or just one command if a chunk faults, so
    /// that commands in front of unmapped memory are run.
    fn fetch<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        bwr: &BinderWriteRead,
        chunk: &mut [u8],
    ) -> Result<usize, Errno> {
        let caller = sender.caller;
        let left = bwr.write_size - bwr.write_consumed;
        let address = bwr.write_buffer.wrapping_add(bwr.write_consumed);
        let whole = left.min(chunk.len() as u64) as usize;
        self.scratch.predicted = None;
        if self.fetch_with_parcel(host, sender, address, &mut chunk[..whole])? {
            return Ok(whole);
        }
        match host.read(caller, address, &mut chunk[..whole]) {
            Ok(()) => return Ok(whole),
            Err(Fault::Late) => return Err(Errno::ERESTART),
            Err(Fault::BadAddress) => {}
        }
        let errno = |fault: Fault| fault.errno(Errno::EFAULT);
        if whole < 4 {
            return Err(Errno::EFAULT);
        }
        host.read(caller, address, &mut chunk[..4]).map_err(errno)?;
        // The size of the payload is in 14 bits of the word.
        let word = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        let len = (4 + (word >> 16 & 0x3fff) as usize).min(whole);
        host.read(caller, address, &mut chunk[..len]).map_err(errno)?;
        Ok(len)
    }
}
