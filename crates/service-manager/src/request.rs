//! A request to the manager, and what follows from it.

use binder_client::{Answer, Parcel};

use crate::names::Caller;

/// The answer to a request, and calls to be made.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The reply.
    pub answer: Answer,
    /// One-way calls to callbacks.
    pub calls: Vec<OneWay>,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        Self { answer, calls: Vec::new() }
    }
}

/// A one-way call.
#[derive(Clone, Debug)]
pub struct OneWay {
    /// Handle of its target.
    pub handle: u32,
    /// Its code.
    pub code: u32,
    /// Its data.
    pub parcel: Parcel,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its code.
    pub code: u32,
    /// Its data.
    pub data: &'a [u8],
    /// Offsets of the objects in them.
    pub offsets: &'a [u64],
    /// Who makes it.
    pub caller: Caller,
}
