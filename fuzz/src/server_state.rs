//! The serialised state of a whole binder daemon: the server's part, with the driver's in it.

use binder_driver::Driver;
use binder_driver::state;
use binder_fuse::ServerState;

/// The daemon's own part, in front of the server's: version, start of the pause, and descriptors.
type Daemon = (String, u64, (i32, Option<i32>, i32, Option<i32>));

/// The input is a state; its header is corrected before it is read.
pub fn read(input: &[u8]) {
    let mut bytes = input.to_vec();
    if !state::reseal(&mut bytes) {
        return;
    }
    if let Ok((_, server)) = state::read::<(Daemon, ServerState<Driver>)>(&bytes) {
        let _ = server.verify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_verified() {
        for (name, seed) in crate::seeds::of("server_state") {
            let (_, server) = state::read::<(Daemon, ServerState<Driver>)>(&seed).unwrap();
            assert!(server.verify().is_ok(), "{name}");
        }
    }
}
