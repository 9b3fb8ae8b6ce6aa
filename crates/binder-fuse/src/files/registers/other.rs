//! Architectures on which a stopped thread's registers are not supported: files are refused.

use std::io;

use super::tracee::{Abi, SystemCall};

/// Whether files can be installed in a thread on this architecture.
pub(super) const SUPPORTED: bool = false;

/// No registers are read.
pub(super) const LOSES_FIRST_ARGUMENT: bool = false;

/// An uninhabited set of registers: [`get`](Self::get), which creates one, always fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum Registers {}

impl Registers {
    pub(super) fn get(_: u32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn set(&self, _: u32) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn abi(&self, _: u32) -> io::Result<Option<Abi>> {
        match *self {}
    }

    pub(super) fn calling(self, _: Abi, _: SystemCall, _: [u64; 4]) -> Self {
        match self {}
    }

    pub(super) fn has_made_call(&self, _: &Self) -> bool {
        match *self {}
    }

    pub(super) fn again(self, _: Option<u64>) -> Self {
        match self {}
    }

    pub(super) fn returning(self, _: i64) -> Self {
        match self {}
    }

    pub(super) fn result(&self, _: Abi) -> i64 {
        match *self {}
    }

    pub(super) fn stack(&self) -> u64 {
        match *self {}
    }
}
