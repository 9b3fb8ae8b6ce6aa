//! Packets: one mark byte ([`MORE`] or [`LAST`]), then a piece of a JSON document.

use serde::{Serialize, de::DeserializeOwned};

/// Largest piece of a document in one packet, bytes. Well below the default socket buffer
/// (212,992 bytes), so that a packet always fits.
pub const MAX_CHUNK: usize = 64 * 1024;
/// Room for one packet.
pub const MAX_PACKET: usize = MAX_CHUNK + 1;
/// Another packet of this message follows.
pub const MORE: u8 = b'+';
/// This packet ends the message.
pub const LAST: u8 = b'.';

/// Cuts a message into packets.
pub fn encode(message: &impl Serialize) -> Result<Vec<Vec<u8>>, serde_json::Error> {
    let json = serde_json::to_vec(message)?;
    let count = json.len().div_ceil(MAX_CHUNK);
    let packet = |(i, chunk): (usize, &[u8])| {
        let mark = if i + 1 == count { LAST } else { MORE };
        [&[mark], chunk].concat()
    };
    Ok(json.chunks(MAX_CHUNK).enumerate().map(packet).collect())
}

/// Joins packets to messages.
#[derive(Default)]
pub struct Decoder {
    document: Vec<u8>,
}

/// Why a packet was refused.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// No mark, or an unknown one.
    #[error("packet starts with neither '+' nor '.'")]
    Mark,
    /// The message grew over the receiver's bound.
    #[error("message is longer than {0} bytes")]
    TooLong(usize),
    /// Not the JSON that was expected.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl Decoder {
    /// Takes one packet; `Some` when it ends a message of at most `bound` bytes.
    pub fn push<T: DeserializeOwned>(
        &mut self,
        packet: &[u8],
        bound: usize,
    ) -> Result<Option<T>, DecodeError> {
        let (&mark, piece) = packet.split_first().ok_or(DecodeError::Mark)?;
        if self.document.len() + piece.len() > bound {
            self.document = Vec::new();
            return Err(DecodeError::TooLong(bound));
        }
        self.document.extend_from_slice(piece);
        match mark {
            MORE => Ok(None),
            LAST => Ok(Some(serde_json::from_slice(&std::mem::take(&mut self.document))?)),
            _ => Err(DecodeError::Mark),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_survives_being_cut() {
        let message = "x".repeat(3 * MAX_CHUNK);
        let packets = encode(&message).unwrap();
        assert_eq!(packets.len(), 4);
        let mut decoder = Decoder::default();
        let mut whole = None;
        for packet in &packets {
            assert!(whole.is_none(), "ended early");
            whole = decoder.push::<String>(packet, 4 * MAX_CHUNK).unwrap();
        }
        assert_eq!(whole.as_deref(), Some(message.as_str()));
    }

    #[test]
    fn garbage_and_floods_are_refused_by_name() {
        let mut decoder = Decoder::default();
        assert!(matches!(decoder.push::<u32>(b"", 10), Err(DecodeError::Mark)));
        assert!(matches!(decoder.push::<u32>(b"?1", 10), Err(DecodeError::Mark)));
        let mut decoder = Decoder::default();
        assert!(matches!(decoder.push::<u32>(b".nonsense", 10), Err(DecodeError::Json(_))));
        assert!(matches!(decoder.push::<u32>(b"+12345678901", 10), Err(DecodeError::TooLong(10))));
        assert_eq!(decoder.push::<u32>(b".7", 10).unwrap(), Some(7), "it goes on after an error");
    }
}
