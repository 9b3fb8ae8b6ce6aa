//! The serialised state of the driver.

use binder_driver::state::{self, SavedDriver};
use binder_driver::{Driver, PageSize};

fn verified(bytes: &[u8]) -> Option<Driver> {
    state::read::<SavedDriver<Driver>>(bytes).ok()?.verify(PageSize::default()).ok()
}

/// The input is a state; its header is corrected before it is read. A state that passes the
/// verification is one that a driver can write.
pub fn read(input: &[u8]) {
    let mut bytes = input.to_vec();
    if !state::reseal(&mut bytes) {
        return;
    }
    let Some(driver) = verified(&bytes) else { return };
    let _ = (driver.state(), driver.stats(), driver.transaction_log(), driver.snapshot());
    let written = state::write(&SavedDriver::new(&driver)).expect("a verified state is written");
    let again = verified(&written).expect("what was written is verified again");
    assert!(state::write(&SavedDriver::new(&again)).expect("it is written again") == written);
}
