//! The serialised state of a whole binder daemon: the server's part, with the driver's in it.

use binder_driver::Driver;
use binder_driver::state::{self, StateError};
use binder_fuse::{ServerState, VerifiedState};
use serde::Deserialize;

type Descriptors = (i32, Option<i32>, i32, Option<i32>);

/// The state.
#[derive(Deserialize)]
struct DaemonState {
    /// The daemon's own part: version, start of the pause, and descriptors.
    _daemon: (String, u64, Descriptors),
    server: ServerState<Driver>,
}

fn verified(bytes: &[u8]) -> Result<VerifiedState, StateError> {
    state::read::<DaemonState>(bytes)?.server.verify()
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
