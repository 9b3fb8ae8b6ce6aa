//! `headroom binder trace`: calls with caller and receiver, as they end.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use control::binderd::{Call, CallEnd, Outcome, Reply, Request, TraceFilter};

use crate::arguments::{Globals, Trace};
use crate::helpers::client::{connect, unexpected};
use crate::helpers::output::{self, Format, printable};
use crate::helpers::quantity::{duration, point_in_time};

/// Interval of requests for new calls.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs `headroom binder trace`, until it has shown the requested calls or is interrupted.
pub fn trace(globals: &Globals, options: &Trace) -> anyhow::Result<()> {
    let mut client = connect("headroom-binderd", &globals.binderd_socket)?;
    let mut sink = Sink::new(globals.format(), options.perfetto.as_deref())?;
    let filter = filter(options);
    let end = options.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut from = None;
    while left > 0 {
        let request = Request::Trace { from, filter: filter.clone() };
        let reply = client.call(&request).context("no reply from headroom-binderd")?;
        let (calls, next, lost) = match reply {
            Reply::Trace { calls, next, lost } => (calls, next, lost),
            Reply::Error { message } => anyhow::bail!("headroom-binderd: {message}"),
            reply => return Err(unexpected(&reply)),
        };
        if lost > 0 {
            output::warn(format_args!(
                "{lost} calls were missed: they ended faster than they were read"
            ));
        }
        let seen = from.is_some_and(|from| next != from);
        from = Some(next);
        for call in calls.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            if sink.put(call)?.is_break() {
                return Ok(());
            }
            left -= 1;
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        if !seen {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn filter(options: &Trace) -> TraceFilter {
    // A number is a pid, anything else a name.
    let pid = options.process.as_ref().and_then(|process| process.parse().ok());
    TraceFilter {
        device: options.device.clone(),
        pid,
        comm: options.process.clone().filter(|_| pid.is_none()),
        code: options.code,
        failed: options.failed,
    }
}

/// Destination of the calls.
enum Sink {
    Text,
    Json,
    Perfetto(Array),
}

impl Sink {
    fn new(format: Format, perfetto: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = perfetto else {
            return Ok(match format {
                Format::Json => Self::Json,
                Format::Text => Self::Text,
            });
        };
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let array = Array::begin(file).context("cannot write the trace")?;
        Ok(Self::Perfetto(array))
    }

    /// `Break` when the reader has closed the pipe.
    fn put(&mut self, call: &Call) -> anyhow::Result<ControlFlow<()>> {
        match self {
            Self::Text => output::print_on(&text(call)),
            Self::Json => output::print_json_line(call),
            Self::Perfetto(array) => {
                array.extend(&events(call)).context("cannot write the trace")?;
                Ok(ControlFlow::Continue(()))
            }
        }
    }
}

/// A file with an array of JSON values. A regular file ends with the array's end after each
/// extension, so that it is complete even if this process is killed; another file never has one,
/// which the trace format allows.
struct Array {
    file: BufWriter<File>,
    is_empty: bool,
    is_regular: bool,
}

impl Array {
    const END: &str = "\n]\n";

    fn begin(file: File) -> io::Result<Self> {
        let is_regular = file.metadata()?.is_file();
        let mut array = Self { file: BufWriter::new(file), is_empty: true, is_regular };
        array.file.write_all(b"[")?;
        array.end()?;
        Ok(array)
    }

    fn extend(&mut self, values: &[serde_json::Value]) -> io::Result<()> {
        for value in values {
            let separator = if std::mem::take(&mut self.is_empty) { "" } else { "," };
            write!(self.file, "{separator}\n{value}")?;
        }
        self.end()
    }

    /// What is written next replaces the end.
    fn end(&mut self) -> io::Result<()> {
        if self.is_regular {
            self.file.write_all(Self::END.as_bytes())?;
            self.file.seek_relative(-(Self::END.len() as i64))?;
        }
        self.file.flush()
    }
}

fn end(end: &CallEnd) -> String {
    let comm = if end.comm.is_empty() { "?".into() } else { printable(&end.comm) };
    match end.tid {
        0 => format!("{comm} {}", end.pid),
        tid if tid == end.pid => format!("{comm} {tid}"),
        tid => format!("{comm} {}/{tid}", end.pid),
    }
}

fn outcome(call: &Call) -> String {
    let word = match (call.outcome, call.oneway) {
        (Outcome::Done, true) => "taken",
        (Outcome::Done, false) => "done",
        (Outcome::Dead, _) => "dead",
        (Outcome::Frozen, _) => "frozen",
        (Outcome::Failed, _) => "failed",
        (Outcome::Dropped, _) => "dropped",
    };
    match call.errno {
        0 if call.refusal.is_empty() => word.into(),
        0 => format!("{word} (the receiver got no files: {})", printable(&call.refusal)),
        errno => format!("{word} ({})", std::io::Error::from_raw_os_error(-errno)),
    }
}

fn microseconds(nanoseconds: u64) -> String {
    match nanoseconds {
        0..100_000 => format!("{:.1} µs", nanoseconds as f64 / 1e3),
        _ => duration(nanoseconds / 1000),
    }
}

/// A call in a line.
fn text(call: &Call) -> String {
    let time = point_in_time(call.sent_us);
    let time = time.split_once(' ').map_or(&*time, |(_, time)| time);
    let to = call.to.as_ref().map_or(format!("handle {}", call.handle), end);
    let arrow = if call.oneway { "~>" } else { "->" };
    let mut size = format!("{} B", call.bytes);
    if call.objects > 0 {
        size += &format!(" + {}", output::count(call.objects, "object", "objects"));
    }
    if let Some(reply) = call.reply_bytes {
        size += &format!(", {reply} B back");
    }
    let waited =
        call.waited_ns.map_or(String::new(), |ns| format!(", waited {}", microseconds(ns)));
    format!(
        "{time} {} {} {arrow} {to}  code {}  {size}  {}{waited}  {}\n",
        printable(&call.device),
        end(&call.from),
        call.code,
        microseconds(call.took_ns),
        outcome(call),
    )
}

/// A call as events of Chrome's trace format, which ui.perfetto.dev reads: the time that the caller
/// waits, the receiver's work, and an arrow between them.
fn events(call: &Call) -> Vec<serde_json::Value> {
    use serde_json::json;
    let at = call.sent_us as f64;
    let took = call.took_ns as f64 / 1e3;
    let waited = call.waited_ns.map(|ns| ns as f64 / 1e3);
    let to = call.to.as_ref().filter(|to| to.tid != 0);
    let arguments = json!({
        "device": call.device, "code": call.code, "flags": call.flags, "handle": call.handle,
        "node": call.node, "bytes": call.bytes, "objects": call.objects,
        "reply_bytes": call.reply_bytes, "outcome": outcome(call),
    });
    let kind = if call.oneway { "one-way" } else { "call" };
    let target = call.to.as_ref().map_or(format!("handle {}", call.handle), |to| to.comm.clone());
    let name = format!("{kind} {} to {target}", call.code);
    // The caller of a one-way call does not wait.
    let caller_waits = if call.oneway { 0.0 } else { took };
    let mut events = vec![json!({
        "ph": "X", "cat": "binder", "name": name, "ts": at, "dur": caller_waits,
        "pid": call.from.pid, "tid": call.from.tid, "args": arguments,
    })];
    let mut ends = vec![&call.from];
    if let (Some(to), Some(waited)) = (to, waited) {
        let id = format!("{}-{}-{}", call.from.tid, call.sent_us, call.node);
        let from = format!("{kind} {} from {}", call.code, call.from.comm);
        let works = (took - waited).max(0.0);
        events.push(json!({
            "ph": "X", "cat": "binder", "name": from, "ts": at + waited, "dur": works,
            "pid": to.pid, "tid": to.tid, "args": arguments,
        }));
        events.push(json!({
            "ph": "s", "cat": "binder", "name": "binder", "id": id, "ts": at,
            "pid": call.from.pid, "tid": call.from.tid,
        }));
        events.push(json!({
            "ph": "f", "bp": "e", "cat": "binder", "name": "binder", "id": id, "ts": at + waited,
            "pid": to.pid, "tid": to.tid,
        }));
        ends.push(to);
    }
    for end in ends.into_iter().filter(|end| !end.comm.is_empty()) {
        events.push(json!({
            "ph": "M", "name": "process_name", "pid": end.pid, "tid": end.tid,
            "args": { "name": end.comm },
        }));
    }
    events
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn call() -> Call {
        Call {
            sent_us: 1_700_000_000_123_456,
            device: "binder".into(),
            oneway: false,
            from: CallEnd { pid: 7, tid: 8, comm: "cli\x07ent".into() },
            to: Some(CallEnd { pid: 9, tid: 9, comm: "hub".into() }),
            handle: 1,
            node: 2,
            code: 3,
            flags: 16,
            bytes: 100,
            objects: 1,
            reply_bytes: Some(12),
            waited_ns: Some(6_100),
            took_ns: 18_200,
            outcome: Outcome::Done,
            errno: 0,
            refusal: String::new(),
        }
    }

    #[test]
    fn a_call_is_one_line_with_all_fields() {
        let line = text(&call());
        let tail = "binder cli\\u{7}ent 7/8 -> hub 9  code 3  100 B + 1 object, 12 B back  \
                    18.2 µs, waited 6.1 µs  done\n";
        assert!(line.ends_with(tail), "{line}");
        let refused = Call {
            oneway: true,
            to: None,
            waited_ns: None,
            reply_bytes: None,
            outcome: Outcome::Failed,
            errno: -libc::ENOSPC,
            ..call()
        };
        let line = text(&refused);
        assert!(line.contains("~> handle 1") && line.contains("failed (No space left"), "{line}");
        let refusal = "its table is full".to_owned();
        let line = text(&Call { outcome: Outcome::Failed, refusal, ..call() });
        assert!(
            line.ends_with("failed (the receiver got no files: its table is full)\n"),
            "{line}"
        );
    }

    #[test]
    fn perfetto_sees_the_wait_the_work_and_an_arrow() {
        let events = events(&call());
        let phases: Vec<_> = events.iter().filter_map(|event| event["ph"].as_str()).collect();
        assert_eq!(phases, ["X", "X", "s", "f", "M", "M"]);
        assert_eq!(
            (events[0]["dur"].as_f64(), events[1]["dur"].as_f64()),
            (Some(18.2), Some(12.1))
        );
        let mut dropped = call();
        (dropped.waited_ns, dropped.to) = (None, None);
        assert_eq!(super::events(&dropped).len(), 2, "an undelivered call has its caller only");
    }

    #[test]
    fn a_trace_is_valid_json_after_each_call() {
        let mut file = tempfile::tempfile().unwrap();
        let mut array = Array::begin(file.try_clone().unwrap()).unwrap();
        for calls in 0..3 {
            let mut text = String::new();
            let end = file.stream_position().unwrap();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            file.seek(io::SeekFrom::Start(end)).unwrap();
            let found: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
            assert_eq!(found.len(), calls * events(&call()).len());
            array.extend(&events(&call())).unwrap();
        }
    }

    #[test]
    fn a_process_is_named_by_number_or_name() {
        let options = |process: &str| Trace { process: Some(process.into()), ..Trace::default() };
        assert_eq!(filter(&options("12")).pid, Some(12));
        assert_eq!(filter(&options("hub")).comm.as_deref(), Some("hub"));
        assert_eq!(filter(&options("hub")).pid, None);
    }
}
