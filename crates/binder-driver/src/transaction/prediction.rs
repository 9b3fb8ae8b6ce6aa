//! Prediction of the addresses of a thread's next parcel, so that commands and parcel are read in
//! one access to the client's memory.
//!
//! Most threads reuse the memory of their parcels. A parcel is read ahead of its command if the
//! last two parcels of the thread had the same addresses. The command decides: a parcel that is
//! not completely within the predicted ranges is read again, from the addresses in the command.

use binder_uapi::BinderTransactionData;

use crate::buffer::Layout;
use crate::driver::Driver;
use crate::host::{Errno, Fault, Host, Piece};
use crate::limits::MAX_PREDICTED_BYTES;
use crate::transaction::send::Sender;

/// Bytes of the smallest command with a parcel.
const COMMAND_WITH_PARCEL: usize = size_of::<u32>() + size_of::<BinderTransactionData>();

/// Addresses of a parcel in its sender.
#[derive(Clone, Copy, Debug)]
pub struct ParcelPlace {
    data: u64,
    data_size: u64,
    offsets: u64,
    offsets_size: u64,
}

impl ParcelPlace {
    fn of(data: &BinderTransactionData) -> Self {
        let BinderTransactionData { data_size, offsets_size, buffer: data, offsets, .. } = *data;
        Self { data, data_size, offsets, offsets_size }
    }

    /// All of `parcel` is within these ranges, at their starts.
    fn covers(&self, parcel: &Self) -> bool {
        let covers_data = self.data == parcel.data && self.data_size >= parcel.data_size;
        let covers_offsets =
            self.offsets == parcel.offsets && self.offsets_size >= parcel.offsets_size;
        (covers_data || parcel.data_size == 0) && (covers_offsets || parcel.offsets_size == 0)
    }

    fn layout(&self) -> Option<Layout> {
        Layout::new(self.data_size, self.offsets_size, 0, 0).ok()
    }
}

/// The last parcel of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastParcel {
    place: Option<ParcelPlace>,
    /// The one before was at the same addresses.
    is_repeated: bool,
}

impl LastParcel {
    pub fn note(&mut self, data: &BinderTransactionData) {
        let place = ParcelPlace::of(data);
        let last = self.place.replace(place);
        self.is_repeated = last.is_some_and(|last| last.covers(&place));
    }

    fn prediction(&self) -> Option<ParcelPlace> {
        self.place.filter(|_| self.is_repeated)
    }
}

impl Driver {
    /// Reads commands at `address` together with the parcel that the thread probably sends. False:
    /// the commands were not read. `ERESTART`: the client's memory is late.
    pub(crate) fn fetch_with_parcel<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        address: u64,
        commands: &mut [u8],
    ) -> Result<bool, Errno> {
        if commands.len() < COMMAND_WITH_PARCEL {
            return Ok(false);
        }
        let Some(place) = self.threads[sender.thread].last_parcel.prediction() else {
            return Ok(false);
        };
        let Some(layout) = place.layout().filter(|layout| layout.total <= MAX_PREDICTED_BYTES)
        else {
            return Ok(false);
        };
        // A client may send what it has received, from its receive buffer. A page of it that was
        // given back comes from the server itself, which would have to wait for another thread.
        let area = self.processes[sender.caller.process].area.as_ref();
        if area.is_some_and(|area| {
            area.has_no_buffer_at(place.data, place.data_size)
                || area.has_no_buffer_at(place.offsets, place.offsets_size)
        }) {
            return Ok(false);
        }
        let commands_at = layout.total as usize;
        let piece =
            |address, at: u64, len: u64| Piece { address, at: at as usize, len: len as usize };
        let pieces = [
            Piece { address, at: commands_at, len: commands.len() },
            piece(place.data, 0, place.data_size),
            piece(place.offsets, layout.offsets_at, place.offsets_size),
        ];
        let bytes = &mut self.scratch.parcel;
        bytes.resize(commands_at + commands.len(), 0);
        let complete = match host.read_ahead(sender.caller, &pieces, bytes) {
            Err(Fault::Late) => {
                // The predicted ranges may be the reason: the next attempt does without.
                self.threads[sender.thread].last_parcel = LastParcel::default();
                return Err(Errno::ERESTART);
            }
            Err(Fault::BadAddress) | Ok(0) => return Ok(false),
            Ok(complete) => complete,
        };
        commands.copy_from_slice(&bytes[commands_at..]);
        self.scratch.predicted = (complete == pieces.len()).then_some(place);
        Ok(true)
    }

    /// Completes a parcel that was read ahead: moves the offsets in `bytes` to their position.
    /// False: the parcel was not read ahead.
    pub(crate) fn take_predicted(
        &mut self,
        data: &BinderTransactionData,
        layout: &Layout,
        bytes: &mut [u8],
    ) -> bool {
        let predicted = self.scratch.predicted.take();
        let predicted = predicted.filter(|place| place.covers(&ParcelPlace::of(data)));
        let Some(read) = predicted.and_then(|place| place.layout()) else { return false };
        let start = read.offsets_at as usize;
        let end = start + layout.offsets_size as usize;
        // The data is not longer than predicted, so this is no later position.
        bytes.copy_within(start..end, layout.offsets_at as usize);
        true
    }
}
