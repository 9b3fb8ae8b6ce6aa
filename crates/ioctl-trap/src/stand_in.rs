//! Takes a dead server's place.

use std::io;

use crate::{InHand, Listener, PLACES};

/// Lets every call go on, also those that the server (which must be dead) had in hand, until nobody lives under the
/// filter.
pub fn stand_in(listener: &Listener, in_hand: &InHand) -> io::Result<()> {
    let noted = in_hand.noted();
    noted.iter().for_each(|&id| drop(listener.proceed(id)));
    // A thread that died before it could note its call has one of those behind the latest.
    let latest = noted.iter().copied().max().unwrap_or_default();
    // Those which are not held any more, or were never taken, are no error.
    (1..=PLACES as u64).for_each(|next| drop(listener.proceed(latest.wrapping_add(next))));
    while let Some(call) = listener.next()? {
        let _ = listener.proceed(call.id);
    }
    Ok(())
}
