//! `headroom binder`: commands about the binder driver.

pub mod service_manager;
pub mod stat;
pub mod trace;

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use control::binderd::{Device, PAGE_BYTES, Process, Reclaimed, Reply, Request, Upgraded};

use crate::arguments::Globals;
use crate::helpers::client::{call_binderd, unexpected};
use crate::helpers::output::{self, count, printable};
use crate::helpers::quantity::Size;
use crate::helpers::user;

/// Lists all opens with their objects, indented.
pub fn ls(globals: &Globals) -> anyhow::Result<()> {
    match call_binderd(&globals.binderd_socket, &Request::Ls)? {
        Reply::Ls { devices } => {
            let document = serde_json::json!({ "devices": devices });
            output::print_as(globals.format(), &document, || table(&devices))
        }
        reply => Err(unexpected(&reply)),
    }
}

fn table(devices: &[Device]) -> String {
    if devices.is_empty() {
        return "no device\n".into();
    }
    // A handle's owner may have the device open more than once; its name is the same each time.
    let name = |pid: u32| {
        let all = devices.iter().flat_map(|device| &device.processes);
        let comm = all.filter(|p| p.pid == pid).find_map(|p| p.comm.as_deref());
        comm.map_or(format!("pid {pid}"), |comm| format!("pid {pid} {}", printable(comm)))
    };
    let mut text = String::new();
    for device in devices {
        let manager = device
            .manager
            .map_or("no context manager".into(), |pid| format!("manager {}", name(pid)));
        let processes = count(device.processes.len() as u64, "process", "processes");
        let _ = writeln!(text, "{}  {manager}, {processes}", printable(&device.name));
        if device.file_is_bound {
            text += "  an open got EBUSY: a device file is bound by itself and is open already; \
                     bind its folder and link to its files\n";
        }
        for process in &device.processes {
            describe(&mut text, process, &name);
        }
    }
    text
}

fn describe(text: &mut String, process: &Process, name: &impl Fn(u32) -> String) {
    let comm = process.comm.as_deref().map_or("?".into(), printable);
    let _ = writeln!(
        text,
        "  {} {comm} ({}), {} of messages by {}",
        process.pid,
        user::name(process.euid),
        Size(process.owner_bytes),
        printable(&process.owner),
    );
    let buffers = &process.buffers;
    let _ = writeln!(
        text,
        "    buffers  {} live, {} of {} mapped; {} of memory, {} idle; {} one-way space free; \
         {} queued",
        buffers.count,
        Size(buffers.bytes),
        Size(buffers.mapped_bytes),
        Size(u64::from(buffers.touched_pages) * PAGE_BYTES),
        Size(u64::from(buffers.idle_pages) * PAGE_BYTES),
        Size(buffers.async_free_bytes),
        process.queued,
    );
    for thread in &process.threads {
        let _ = write!(text, "    thread   {} {}", thread.tid, printable(&thread.looper));
        let _ = write!(text, "{}", if thread.waiting { ", waiting" } else { "" });
        let _ = match thread.stack {
            0 => writeln!(text),
            depth => writeln!(text, ", {} deep in calls", depth),
        };
    }
    for node in &process.nodes {
        let _ = writeln!(
            text,
            "    node     {:#x} cookie {:#x}: strong {}, weak {}, {}",
            node.ptr,
            node.cookie,
            node.strong,
            node.weak,
            count(node.handles, "handle", "handles"),
        );
    }
    for handle in &process.handles {
        let owner = handle.owner.map_or("a dead node".into(), name);
        let death = if handle.death { ", death notification requested" } else { "" };
        let _ = writeln!(
            text,
            "    handle   {} of {owner}: strong {}, weak {}{death}",
            handle.handle, handle.strong, handle.weak
        );
    }
}

/// Reclaims the memory of idle buffers.
pub fn reclaim(globals: &Globals, size: Option<Size>) -> anyhow::Result<()> {
    let most = size.map_or(u64::MAX, |size| size.0.div_ceil(PAGE_BYTES));
    let mut sum = Reclaimed::default();
    while sum.pages < most {
        match call_binderd(&globals.binderd_socket, &Request::Reclaim { pages: most - sum.pages })?
        {
            Reply::Reclaimed(Reclaimed { pages, idle_pages }) => {
                sum = Reclaimed { pages: sum.pages + pages, idle_pages };
                if pages == 0 || idle_pages == 0 {
                    break;
                }
            }
            reply => return Err(unexpected(&reply)),
        }
    }
    output::print_as(globals.format(), &sum, || {
        let (back, left) = (Size(sum.pages * PAGE_BYTES), Size(sum.idle_pages * PAGE_BYTES));
        format!("{back} back, {left} of idle buffers left\n")
    })
}

/// Replaces the daemon's program.
pub fn upgrade(globals: &Globals, program: Option<&Path>) -> anyhow::Result<()> {
    // Resolved here: a daemon must not wait for a filesystem that it serves itself.
    let resolve = |path: &Path| {
        path.canonicalize().with_context(|| format!("{}: cannot resolve it", path.display()))
    };
    let program = program.map(resolve).transpose()?;
    match call_binderd(&globals.binderd_socket, &Request::Upgrade { program })? {
        Reply::Upgraded(upgraded) => output::print_as(globals.format(), &upgraded, || {
            let Upgraded { from, to, processes, pause_us } = &upgraded;
            let pause_ms = *pause_us as f64 / 1000.0;
            format!(
                "upgraded from {from} to {to}: {processes} opens continue after a pause of \
                 {pause_ms:.1} ms\n"
            )
        }),
        reply => Err(unexpected(&reply)),
    }
}

#[cfg(test)]
mod tests {
    use control::Uid;
    use control::binderd::{Buffers, Handle, Node, Thread};

    use super::*;

    fn process(pid: u32, comm: &str) -> Process {
        Process {
            pid,
            euid: Uid::ROOT,
            owner: "uid 0".into(),
            owner_bytes: 12 << 20,
            comm: Some(comm.into()),
            threads: vec![Thread {
                tid: pid,
                looper: "main".into(),
                waiting: true,
                stack: 1,
                queued: 0,
            }],
            nodes: vec![Node { ptr: 0x10, cookie: 0x20, strong: 1, weak: 2, handles: 3 }],
            handles: vec![
                Handle { handle: 0, strong: 1, weak: 1, owner: Some(7), death: true },
                Handle { handle: 1, strong: 1, weak: 1, owner: None, death: false },
            ],
            buffers: Buffers {
                mapped_bytes: 1 << 20,
                count: 1,
                bytes: 64,
                async_free_bytes: 1 << 19,
                touched_pages: 3,
                idle_pages: 2,
            },
            queued: 4,
        }
    }

    #[test]
    fn the_table_names_the_owners_of_handles() {
        let device = Device {
            name: "binder".into(),
            manager: Some(7),
            processes: vec![process(7, "hub"), process(8, "cli\x07ent")],
            file_is_bound: true,
        };
        let text = table(&[device]);
        for part in [
            "binder  manager pid 7 hub, 2 processes",
            "  an open got EBUSY: a device file is bound by itself",
            "  8 cli\\u{7}ent (root)",
            "thread   8 main, waiting, 1 deep",
            "node     0x10 cookie 0x20: strong 1, weak 2, 3 handles",
            "handle   0 of pid 7 hub: strong 1, weak 1, death notification requested",
            "handle   1 of a dead node",
            "1 live, 64 B of 1.0 MiB mapped; 12.0 KiB of memory, 8.0 KiB idle; \
             512.0 KiB one-way space free; 4 queued",
        ] {
            assert!(text.contains(part), "'{part}' is missing in\n{text}");
        }
    }
}
