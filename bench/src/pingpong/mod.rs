//! Round trips: a message is sent to another process, which copies it once and sends it back.

mod binder;
mod futex;
mod pipe;
mod seqpacket;

use anyhow::{Result, bail};
pub use binder::Binder;
pub use futex::Futex;
pub use pipe::Pipe;
pub use seqpacket::SeqPacket;

/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Main function of the other process, for a program started as `peer KIND ...`. Returns when its
/// parent exits, or with an error.
pub fn serve(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["pipe"] => pipe::serve(),
        ["seqpacket"] => seqpacket::serve(),
        ["futex"] => futex::serve(),
        ["binder", device] => binder::serve(device),
        _ => bail!("no such peer: {words:?}"),
    }
}
