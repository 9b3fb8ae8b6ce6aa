//! `transaction_log` and `failed_transaction_log`: a line for each of the last transactions.

use std::fmt::Write;

use crate::debug::records::{Entry, Refusal, Ring};
use crate::driver::Driver;
use crate::transaction::types::Kind;

impl Driver {
    /// The last 32 transactions, oldest first.
    pub fn transaction_log(&self) -> String {
        self.lines(&self.log.all)
    }

    /// The last 32 that failed, oldest first.
    pub fn failed_transaction_log(&self) -> String {
        self.lines(&self.log.failed)
    }

    fn lines(&self, ring: &Ring) -> String {
        ring.iter().fold(String::new(), |mut text, entry| {
            self.line(&mut text, entry);
            text
        })
    }

    fn line(&self, text: &mut String, entry: &Entry) {
        let kind = match entry.kind {
            Kind::Call => "call ",
            Kind::Oneway => "async",
            Kind::Reply => "reply",
        };
        let context = entry.context.and_then(|context| self.contexts.get(context));
        let context = context.map_or("(removed)", |context| &context.name);
        let Entry { id, from_pid, from_tid, to_pid, to_tid, to_node, handle, .. } = entry;
        let (data, offsets) = (entry.data_size, entry.offsets_size);
        let Refusal { word, errno } = entry.refused.unwrap_or(Refusal { word: 0, errno: 0 });
        let _ = writeln!(
            text,
            "{id}: {kind} from {from_pid}:{from_tid} to {to_pid}:{to_tid} context {context} \
             node {to_node} handle {handle} size {data}:{offsets} ret {word}/{errno} l=0"
        );
    }
}
