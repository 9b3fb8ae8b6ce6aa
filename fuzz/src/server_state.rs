//! The serialised state of a whole binder daemon: the server's part, with the driver's in it.

use binder_driver::Driver;
use binder_driver::state::{self, SavedState, StateError};
use binder_fuse::{ServerState, ServerStateFormat1, VerifiedState};
use serde::Deserialize;

type Descriptors = (i32, Option<i32>, i32, Option<i32>);

/// The state, with the server's state `S`.
#[derive(Deserialize)]
struct DaemonState<S> {
    /// The daemon's own part: version, start of the pause, and descriptors.
    _daemon: (String, u64, Descriptors),
    server: S,
}

impl SavedState for DaemonState<ServerState<Driver>> {
    type Format1 = DaemonState<ServerStateFormat1>;
}

impl From<DaemonState<ServerStateFormat1>> for DaemonState<ServerState<Driver>> {
    fn from(DaemonState { _daemon, server }: DaemonState<ServerStateFormat1>) -> Self {
        Self { _daemon, server: server.into() }
    }
}

fn verified(bytes: &[u8]) -> Result<VerifiedState, StateError> {
    state::read::<DaemonState<ServerState<Driver>>>(bytes)?.server.verify()
}

/// The input is a state; its header is corrected before it is read.
pub fn read(input: &[u8]) {
    let mut bytes = input.to_vec();
    if state::reseal(&mut bytes) {
        let _ = verified(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_verified() {
        for (name, seed) in crate::seeds::of("server_state") {
            assert_eq!(verified(&seed).map(drop), Ok(()), "{name}");
        }
    }
}
