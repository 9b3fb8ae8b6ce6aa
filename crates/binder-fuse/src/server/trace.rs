//! The trace: calls with their times and outcomes, kept for readers that poll it.
//!
//! Records exist while a reader polls. Each poll continues where the last one ended; a slow reader
//! loses the oldest records and gets the number of lost ones.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use binder_driver::{ProcessId, Sent, TraceEvent};
use binder_uapi::returns::{BR_DEAD_REPLY, BR_FROZEN_REPLY};
use control::binderd::{Call, CallEnd, Outcome};
use headroom_linux::clock::epoch_micros;

use super::Server;

/// Maximum number of records kept for readers.
const KEPT: usize = 16_384;
/// Maximum number of calls in progress that are traced.
const FOLLOWED: usize = 65_536;
/// Maximum number of process names in the cache.
const NAMES: usize = 4096;
/// The trace ends when no reader has polled for this time.
const READER_GONE_AFTER: Duration = Duration::from_secs(10);

/// Result of one poll.
#[derive(Clone, Debug, Default)]
pub struct TracePart {
    /// Oldest first.
    pub records: Vec<Call>,
    /// Number of the record from which the next poll continues.
    pub next: u64,
    /// Number of records that were dropped before the reader polled.
    pub lost: u64,
}

/// A call in progress.
struct Followed {
    record: Call,
    begun: Instant,
}

/// See the module's documentation.
pub(super) struct Tracer {
    followed: HashMap<u32, Followed>,
    records: VecDeque<Call>,
    /// Number of the oldest record.
    first: u64,
    names: HashMap<u32, String>,
    last_reader: Instant,
}

impl Tracer {
    fn new(first: u64) -> Self {
        Self {
            followed: HashMap::new(),
            records: VecDeque::new(),
            first,
            names: HashMap::new(),
            last_reader: Instant::now(),
        }
    }

    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn push(&mut self, record: Call) {
        if self.records.len() == KEPT {
            self.records.pop_front();
            self.first += 1;
        }
        self.records.push_back(record);
    }

    fn end(&mut self, pid: u32, tid: u32) -> CallEnd {
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        let read = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm = self.names.entry(pid).or_insert_with(|| read().trim_end().to_owned()).clone();
        CallEnd { pid, tid, comm }
    }

    fn sent(&mut self, call: Sent, device: String) {
        let to = (call.to_pid != 0).then(|| self.end(call.to_pid, 0));
        let record = Call {
            sent_us: epoch_micros(),
            device,
            oneway: call.oneway,
            from: self.end(call.from_pid, call.from_tid),
            to,
            handle: call.handle,
            node: call.node,
            code: call.code,
            flags: call.flags,
            bytes: call.bytes,
            objects: call.objects,
            reply_bytes: None,
            waited_ns: None,
            took_ns: 0,
            outcome: call.refused.map_or(Outcome::Dropped, |refusal| outcome(refusal.word)),
            errno: call.refused.map_or(0, |refusal| refusal.errno),
            refusal: String::new(),
        };
        if call.refused.is_some() {
            self.push(record);
        } else if self.followed.len() < FOLLOWED {
            self.followed.insert(call.id, Followed { record, begun: Instant::now() });
        }
    }

    /// The files of a call, or of the last reply to this thread, could not be installed.
    fn refused(&mut self, call: Option<u32>, tid: u32, why: &str) {
        match call {
            Some(id) => {
                if let Some(call) = self.followed.get_mut(&id) {
                    call.record.refusal = why.to_owned();
                }
            }
            None => {
                let mut records = self.records.iter_mut().rev();
                let answered =
                    |record: &&mut Call| record.from.tid == tid && record.reply_bytes.is_some();
                if let Some(record) = records.find(answered) {
                    record.outcome = Outcome::Failed;
                    record.refusal = why.to_owned();
                }
            }
        }
    }

    fn event(&mut self, event: TraceEvent) {
        match event {
            TraceEvent::Sent(_) => {}
            TraceEvent::Taken { id, tid } => {
                let Some(call) = self.followed.get_mut(&id) else { return };
                call.record.waited_ns = Some(nanoseconds(call.begun));
                if let Some(to) = &mut call.record.to {
                    to.tid = tid;
                }
                if call.record.oneway {
                    call.record.outcome = Outcome::Done;
                }
            }
            TraceEvent::Answered { id, bytes } => {
                let Some(call) = self.followed.get_mut(&id) else { return };
                call.record.reply_bytes = Some(bytes);
                call.record.outcome = Outcome::Done;
            }
            TraceEvent::Failed { id, word } => {
                let Some(call) = self.followed.get_mut(&id) else { return };
                call.record.outcome = outcome(word);
            }
            TraceEvent::Over { id } => {
                let Some(Followed { mut record, begun }) = self.followed.remove(&id) else {
                    return;
                };
                record.took_ns = nanoseconds(begun);
                self.push(record);
            }
        }
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn outcome(word: u32) -> Outcome {
    match word {
        BR_DEAD_REPLY => Outcome::Dead,
        BR_FROZEN_REPLY => Outcome::Frozen,
        _ => Outcome::Failed,
    }
}

impl Server {
    /// Returns records from number `from` on (`None`: from now on) that `wanted` accepts, `most` at
    /// most; starts the trace if no reader has polled lately.
    pub fn trace(
        &mut self,
        from: Option<u64>,
        most: usize,
        wanted: impl Fn(&Call) -> bool,
    ) -> TracePart {
        if self.tracer.is_none() {
            self.driver.start_tracing();
        }
        let first = self.traced;
        let tracer = self.tracer.get_or_insert_with(|| Box::new(Tracer::new(first)));
        tracer.last_reader = Instant::now();
        let from = from.unwrap_or(tracer.next()).min(tracer.next());
        let lost = tracer.first.saturating_sub(from);
        let mut part = TracePart { records: Vec::new(), next: from + lost, lost };
        for record in tracer.records.iter().skip((part.next - tracer.first) as usize) {
            if part.records.len() == most {
                break;
            }
            part.next += 1;
            if wanted(record) {
                part.records.push(record.clone());
            }
        }
        part
    }

    /// Adds the reason why a thread's files could not be installed. To be called before the driver
    /// fails the transaction.
    pub(super) fn trace_refusal(&mut self, process: ProcessId, tid: u32, why: &str) {
        let call = self.driver.call_with_files(process, tid);
        if let Some(tracer) = &mut self.tracer {
            tracer.refused(call, tid, why);
        }
    }

    /// Collects the driver's trace events. Called after each request, while there is a trace.
    pub(super) fn continue_trace(&mut self) {
        let Some(mut tracer) = self.tracer.take() else { return };
        for event in self.driver.take_trace() {
            match event {
                TraceEvent::Sent(sent) => {
                    let device = sent.context.and_then(|id| self.driver.context_name(id));
                    tracer.sent(sent, device.unwrap_or_default().to_owned());
                }
                event => tracer.event(event),
            }
        }
        self.traced = tracer.next();
        if tracer.last_reader.elapsed() < READER_GONE_AFTER {
            self.tracer = Some(tracer);
        } else {
            self.driver.stop_tracing();
        }
    }

    /// Commands that were run and returns that were delivered since the start, by kind.
    pub fn command_counts(&self) -> binder_driver::CommandCounts {
        self.driver.command_counts()
    }
}

#[cfg(test)]
mod tests {
    use binder_driver::Refusal;

    use super::*;

    fn call(id: u32) -> Sent {
        Sent {
            id,
            oneway: false,
            context: None,
            from_pid: 1,
            from_tid: 2,
            to_pid: 3,
            node: 4,
            handle: 5,
            code: 6,
            flags: 0,
            bytes: 7,
            objects: 0,
            refused: None,
        }
    }

    #[test]
    fn a_call_is_one_record_when_it_is_over() {
        let mut tracer = Tracer::new(0);
        tracer.sent(call(9), "binder".into());
        tracer.event(TraceEvent::Taken { id: 9, tid: 33 });
        tracer.event(TraceEvent::Answered { id: 9, bytes: 12 });
        assert_eq!(tracer.next(), 0);
        tracer.event(TraceEvent::Over { id: 9 });
        let record = &tracer.records[0];
        assert_eq!((record.reply_bytes, &record.outcome), (Some(12), &Outcome::Done));
        assert_eq!(record.to.as_ref().map(|to| to.tid), Some(33));
        assert!(record.waited_ns.is_some_and(|waited| waited <= record.took_ns));
        // A call that was sent before the trace began has no record.
        tracer.event(TraceEvent::Over { id: 8 });
        assert_eq!(tracer.next(), 1);
    }

    #[test]
    fn dropped_and_refused_calls_are_traced_with_their_reason() {
        let mut tracer = Tracer::new(0);
        tracer.sent(Sent { oneway: true, ..call(1) }, "binder".into());
        tracer.event(TraceEvent::Over { id: 1 });
        tracer.sent(call(2), "binder".into());
        tracer.event(TraceEvent::Failed { id: 2, word: BR_DEAD_REPLY });
        tracer.event(TraceEvent::Over { id: 2 });
        let refused = Some(Refusal { word: BR_FROZEN_REPLY, errno: -22 });
        tracer.sent(Sent { refused, ..call(3) }, "binder".into());
        let outcomes: Vec<_> = tracer.records.iter().map(|r| (r.outcome, r.errno)).collect();
        let expected = [(Outcome::Dropped, 0), (Outcome::Dead, 0), (Outcome::Frozen, -22)];
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn refused_files_are_the_reason_of_their_call_also_if_they_were_in_the_reply() {
        let mut tracer = Tracer::new(0);
        tracer.sent(call(1), "binder".into());
        tracer.refused(Some(1), 33, "a filter");
        tracer.event(TraceEvent::Failed { id: 1, word: 0 });
        tracer.event(TraceEvent::Over { id: 1 });
        tracer.sent(call(2), "binder".into());
        tracer.event(TraceEvent::Answered { id: 2, bytes: 12 });
        tracer.event(TraceEvent::Over { id: 2 });
        tracer.refused(None, 2, "a full table");
        let reasons: Vec<_> =
            tracer.records.iter().map(|it| (it.outcome, it.refusal.as_str())).collect();
        let failed = |why| (Outcome::Failed, why);
        assert_eq!(reasons, [failed("a filter"), failed("a full table")]);
    }

    #[test]
    fn the_oldest_records_go_first_and_numbers_go_on() {
        let mut tracer = Tracer::new(100);
        for id in 0..KEPT as u32 + 5 {
            tracer.sent(Sent { oneway: true, code: id, ..call(id) }, String::new());
            tracer.event(TraceEvent::Over { id });
        }
        assert_eq!((tracer.first, tracer.records.len()), (105, KEPT));
        assert_eq!(tracer.records[0].code, 5);
    }
}
