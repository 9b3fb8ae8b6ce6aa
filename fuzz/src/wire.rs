//! Targets for all parsers.

use binder_fuse::wire::Request;
use binder_uapi::{CommandReader, ReturnReader};
use control::frame::Decoder;

/// Requests read from `/dev/fuse`, unchanged and with a corrected length.
pub fn requests(input: &[u8]) {
    let _ = Request::parse(input).map(|request| format!("{request:?}"));
    let mut right = input.to_vec();
    if let Some(len) = right.first_chunk_mut() {
        *len = (input.len() as u32).to_le_bytes();
        let _ = Request::parse(&right).map(|request| format!("{request:?}"));
    }
}

/// Streams: parsed values must be written as the same bytes.
pub fn streams(input: &[u8]) {
    let mut reader = CommandReader::new(input);
    let mut written = Vec::new();
    while let Some(Ok(command)) = reader.next() {
        command.write_to(&mut written);
        assert!(reader.consumed() <= input.len());
    }
    // Each command has only one encoding, and structures keep all of their bytes.
    assert_eq!(written, input[..written.len()]);
    let mut reader = ReturnReader::new(input);
    let mut written = Vec::new();
    while let Some(Ok(value)) = reader.next() {
        value.write_to(&mut written);
    }
    assert_eq!(written, input[..written.len()]);
}

/// The first byte selects: ioctls of `binder-control` and names of devices, or packets of the
/// control socket.
pub fn device(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    if first % 2 == 0 {
        return binder_fuse::fuzzing::names(rest);
    }
    let mut requests = Decoder::default();
    for packet in rest.split(|byte| *byte == 0xff) {
        let _ = requests.push::<control::binderd::Request>(packet, 4096);
    }
    let mut replies = Decoder::default();
    for packet in rest.split(|byte| *byte == 0xff) {
        let _ = replies.push::<control::binderd::Reply>(packet, 4096);
    }
}
