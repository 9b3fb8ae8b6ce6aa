//! File descriptors passed with a call, over a binder device or a Unix socket, between two separate
//! processes.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Stdio;

use anyhow::{Result, bail, ensure};
use binder_client::{Answer, Client, Options, Parcel, Received, Session};

use crate::callers::execute_orders;
use crate::peer::{Peer, report_ready};
use crate::{mix, server, sockets};

/// Main function of a peer.
pub fn play(words: &[&str]) -> Result<()> {
    match words {
        ["serve", device] => serve(device),
        ["call", device] => call(device),
        ["serve-socket"] => serve_socket(),
        ["call-socket"] => call_socket(),
        _ => bail!("no such role: {words:?}"),
    }
}

fn call(device: &str) -> Result<()> {
    let client = Client::open(device, &Options::default())?;
    let mut session = Session::new(&client);
    let file = File::open("/dev/null")?;
    report_ready();
    execute_orders(|descriptors, _| {
        let parcel = (0..descriptors).fold(Parcel::new(), |parcel, _| parcel.fd(file.as_fd()));
        let parcel = if descriptors == 0 { parcel.bytes(b"none") } else { parcel };
        let reply = session.call(0, 1, parcel.payload())?;
        ensure!(reply.data()? == b"done", "the service failed");
        session.free(reply);
        Ok(())
    })
}

fn serve(device: &str) -> Result<()> {
    server::serve_alone(device, &mut |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        incoming.objects().unwrap_or_default().iter().for_each(mix::close_file);
        Answer::Reply(Parcel::new().bytes(b"done"))
    })
}

fn call_socket() -> Result<()> {
    let (ours, theirs) = sockets::pair(4096)?;
    let _service = Peer::start(&["serve-socket"], theirs.into(), Stdio::null())?;
    let file = File::open("/dev/null")?;
    let mut reply = [0; 4];
    report_ready();
    execute_orders(|descriptors, _| {
        sockets::send_files(&ours, b"call", &vec![file.as_fd(); descriptors])?;
        ensure!(sockets::receive(&ours, &mut reply)? == 4, "the service has ended");
        Ok(())
    })
}

fn serve_socket() -> Result<()> {
    let socket = std::io::stdin();
    report_ready();
    while sockets::receive_files(&socket, &mut [0; 4])? > 0 {
        sockets::send_files(&socket, b"done", &[])?;
    }
    Ok(())
}
