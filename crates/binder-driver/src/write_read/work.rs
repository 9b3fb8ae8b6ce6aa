//! Work items: everything that can be delivered to a reader.
//!
//! Each kind of item implements [`DeliverToRead`] in the module of its concept; this module only
//! lists the kinds and dispatches to them.

use binder_uapi::Return;
use binder_uapi::returns::*;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::driver::{
    DeathId, Driver, FreezeNotificationId, NodeId, ProcessId, ThreadId, TransactionId,
};
use crate::host::Host;
use crate::process::SpamDetection;

/// An item in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A call, one-way call or reply.
    Transaction(TransactionId),
    /// The thread's last command failed: a `BR_` word without payload.
    ReturnError(u32),
    /// A `BR_ERROR` with a negative errno.
    Error(i32),
    /// The call for whose reply the thread waits has failed: a `BR_` word without payload.
    ReplyError(u32),
    /// The thread's transaction was accepted: `BR_TRANSACTION_COMPLETE` or its replacement.
    TransactionComplete(u32),
    /// A change of the node's reference counts to report to the owner.
    Node(NodeId),
    /// A death notification, or the confirmation of its withdrawal.
    Death(DeathId),
    /// A freeze notification, or the confirmation of its withdrawal.
    FreezeNotification(FreezeNotificationId),
}

/// What a reader does after an item was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Takes the next item.
    Continue,
    /// Returns to user space with the returns so far.
    Return,
    /// Returns to user space; the transaction is delivered once the returns are written to the
    /// reader.
    ReturnWith(TransactionId),
}

/// The reading thread, and its returns.
pub struct Reader<'a> {
    /// The open that reads.
    pub process: ProcessId,
    /// The thread that reads.
    pub thread: ThreadId,
    /// Buffer for the returns.
    pub out: &'a mut Vec<u8>,
}

impl Reader<'_> {
    /// Appends a return.
    pub fn put(&mut self, value: Return) {
        value.write_to(self.out);
    }

    /// Appends a return that has no payload.
    fn put_word(&mut self, word: u32) {
        self.out.extend_from_slice(word.as_bytes());
    }
}

/// Operations of a work item.
pub trait DeliverToRead {
    /// Writes the item for the reader and applies the effects of its delivery.
    fn deliver<H: Host>(self, driver: &mut Driver, host: &mut H, reader: &mut Reader<'_>) -> Flow;

    /// The queue's owner has exited: releases the references that the item holds. `thread` is the
    /// thread that the item was queued for; an item that any thread of a living process may take
    /// goes back to the process.
    fn cancel<H: Host>(self, driver: &mut Driver, host: &mut H, thread: Option<ThreadId>);
}

impl DeliverToRead for Work {
    fn deliver<H: Host>(self, driver: &mut Driver, host: &mut H, reader: &mut Reader<'_>) -> Flow {
        let at = reader.out.len();
        let flow = match self {
            Work::Transaction(id) => id.deliver(driver, host, reader),
            Work::Node(id) => id.deliver(driver, host, reader),
            Work::Death(id) => id.deliver(driver, host, reader),
            Work::FreezeNotification(id) => id.deliver(driver, host, reader),
            Work::ReturnError(word) => {
                driver.threads[reader.thread].return_error = false;
                reader.put_word(word);
                Flow::Continue
            }
            Work::Error(errno) => {
                driver.threads[reader.thread].return_error = false;
                reader.put(Return::Error(errno));
                Flow::Continue
            }
            Work::ReplyError(word) => {
                driver.threads[reader.thread].reply_error = false;
                reader.put_word(word);
                Flow::Continue
            }
            Work::TransactionComplete(word) => {
                let detection = driver.processes[reader.process].spam_detection;
                let hidden = word == BR_ONEWAY_SPAM_SUSPECT && detection == SpamDetection::Off;
                reader.put_word(if hidden { BR_TRANSACTION_COMPLETE } else { word });
                Flow::Continue
            }
        };
        driver.count_returns(reader.process, &reader.out[at..]);
        flow
    }

    fn cancel<H: Host>(self, driver: &mut Driver, host: &mut H, thread: Option<ThreadId>) {
        match self {
            Work::Transaction(id) => id.cancel(driver, host, thread),
            Work::Node(id) => id.cancel(driver, host, thread),
            Work::Death(id) => id.cancel(driver, host, thread),
            Work::FreezeNotification(id) => id.cancel(driver, host, thread),
            // Errors for a thread that will not read them.
            Work::ReturnError(_)
            | Work::Error(_)
            | Work::ReplyError(_)
            | Work::TransactionComplete(_) => {}
        }
    }
}
