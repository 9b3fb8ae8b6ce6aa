//! A ring between two sides of which either may be hostile, driven by any bytes.

use std::sync::atomic::Ordering::Relaxed;

use binder_uapi::BinderWriteRead;
use zerocopy::FromZeros;

use crate::page::{
    Area, CallResult, Files, MAX_FILES, Outcome, PARCEL_BYTES, Page, ParcelBytes, STREAM_BYTES,
    TakenCall,
};
use crate::turn::{Doorbell, Submitted, Turn, Watch};

/// Where the client says that its buffers are.
const COMMANDS_AT: u64 = 1 << 20;
const PARCEL_AT: u64 = 1 << 30;
const OFFSETS_AT: u64 = 1 << 40;

/// What the client has written, if nobody has changed it since.
struct Written {
    commands: Vec<u8>,
    parcel: Vec<u8>,
    arrived: Vec<u32>,
}

/// What the daemon has written, if nobody has changed it since.
struct Answered {
    returns: Vec<u8>,
    errno: u32,
    outcome: Outcome,
    closes: Vec<u32>,
}

/// Both sides.
struct Model {
    page: Box<Page>,
    doorbell: Doorbell,
    is_asleep: bool,
    taken: TakenCall,
    written: Option<Written>,
    answered: Option<Answered>,
}

/// Runs steps: a byte that selects one, its length, and so many bytes.
pub fn run(mut input: &[u8]) {
    let (page, taken) = (Box::new(Page::new()), TakenCall::default());
    let doorbell = Doorbell::new();
    let mut model =
        Model { page, doorbell, is_asleep: false, taken, written: None, answered: None };
    while let [step, len, rest @ ..] = input {
        let (bytes, rest) = rest.split_at(rest.len().min((*len).into()));
        model.step(*step, bytes);
        input = rest;
    }
}

impl Model {
    fn step(&mut self, step: u8, bytes: &[u8]) {
        match step % 7 {
            0 => self.change_memory(bytes),
            1 => self.submit(bytes),
            2 => {
                let was_submitted = self.page.words.turn() == Turn::Submitted;
                assert_eq!(self.page.words.withdraw(), was_submitted);
            }
            3 => self.set_watch(bytes),
            4 => self.take(bytes),
            5 => self.complete(bytes),
            _ => self.read_result(),
        }
    }

    /// A hostile side writes: an area, a word of it, and its value.
    fn change_memory(&mut self, bytes: &[u8]) {
        let [area, low, high, value @ ..] = bytes else { return };
        let (at, mut word) = (usize::from(u16::from_le_bytes([*low, *high])), [0; 8]);
        let len = value.len().min(word.len());
        word[..len].copy_from_slice(&value[..len]);
        let value = u64::from_le_bytes(word);
        let page = &self.page;
        match area % 6 {
            0 => page.words.set_raw(value as u32, (value >> 32) as u32),
            1 => set(&page.head, at, value),
            2 => set(&page.commands, at, value),
            3 => set(&page.returns, at, value),
            4 => set(&page.parcel, at, value),
            _ => {
                self.doorbell.set_raw(value as u32);
                self.is_asleep = value & 1 != 0;
            }
        }
        (self.written, self.answered) = (None, None);
    }

    /// The client writes a call of these bytes.
    fn submit(&mut self, bytes: &[u8]) {
        let (commands, parcel) = bytes.split_at(bytes.len() / 2);
        let arrived: Vec<_> = parcel.iter().map(|&byte| byte.into()).take(MAX_FILES).collect();
        let mut argument = BinderWriteRead::new_zeroed();
        (argument.write_size, argument.write_buffer) = (commands.len() as u64, COMMANDS_AT);
        argument.read_size = 256;
        let offsets = &commands[..commands.len() / 8 * 8];
        let place = (PARCEL_AT, OFFSETS_AT);
        let bytes = ParcelBytes { at: place.0, bytes: parcel, offsets_at: place.1, offsets };
        assert!(self.page.write_call(argument, commands, Some(bytes), &arrived));
        let (commands, parcel) = (commands.to_vec(), parcel.to_vec());
        (self.written, self.answered) = (Some(Written { commands, parcel, arrived }), None);
        let watch = self.page.words.watch();
        match self.page.words.submit(&self.doorbell) {
            Submitted::Seen => assert_eq!((watch, self.is_asleep), (Watch::On, false)),
            Submitted::WakeDaemon => assert_eq!((watch, self.is_asleep), (Watch::On, true)),
            Submitted::Withdrawn(found) => {
                assert_eq!(found, watch);
                assert_eq!(self.page.words.turn(), Turn::Idle);
            }
        }
    }

    /// The daemon watches the ring or does not, and sleeps or does not.
    fn set_watch(&mut self, bytes: &[u8]) {
        let choice = bytes.first().copied().unwrap_or(0);
        let watch = [Watch::Off, Watch::On, Watch::On, Watch::Ended][usize::from(choice % 4)];
        self.page.words.set_watch(watch);
        self.is_asleep = choice & 4 != 0;
        if self.is_asleep {
            let value = self.doorbell.fall_asleep();
            assert_eq!(self.doorbell.fall_asleep(), value);
        } else {
            self.doorbell.wake_up();
        }
    }

    /// The daemon takes a call, and looks for the bytes at an address.
    fn take(&mut self, bytes: &[u8]) {
        let is_submitted = self.page.words.turn() == Turn::Submitted;
        assert_eq!(self.page.words.take(), is_submitted);
        if !is_submitted {
            return;
        }
        assert_eq!(self.page.words.turn(), Turn::Taken);
        self.page.read_call(&mut self.taken);
        let call = &self.taken;
        assert!(call.len() <= STREAM_BYTES + PARCEL_BYTES);
        assert!(call.arrived.numbers().len() <= MAX_FILES);
        let mut word = [0; 8];
        let len = bytes.len().min(word.len());
        word[..len].copy_from_slice(&bytes[..len]);
        let (address, wanted) = (u64::from_le_bytes(word), bytes.len() * 97);
        for at in [address, COMMANDS_AT, PARCEL_AT, OFFSETS_AT, call.argument.write_buffer] {
            assert!(call.bytes(at, wanted).is_none_or(|bytes| bytes.len() == wanted));
        }
        if let Some(Written { commands, parcel, arrived }) = &self.written {
            assert_eq!(call.bytes(COMMANDS_AT, commands.len()), Some(&commands[..]));
            assert_eq!(call.bytes(PARCEL_AT, parcel.len()), Some(&parcel[..]));
            assert_eq!(call.arrived.numbers(), arrived);
        }
    }

    /// The daemon completes a call with these returns.
    fn complete(&mut self, bytes: &[u8]) {
        let outcome = match bytes.first().copied().unwrap_or(0) % 3 {
            0 => Outcome::Returned,
            1 => Outcome::Unfinished,
            _ => Outcome::FetchFiles,
        };
        let errno = bytes.len() as u32;
        let closes: Vec<u32> = bytes.iter().map(|&byte| byte.into()).take(MAX_FILES).collect();
        let argument = self.taken.argument;
        let result = CallResult { argument, errno, outcome, closes: Files::new(&closes) };
        self.page.write_result(&result, bytes);
        self.page.words.complete();
        self.written = None;
        self.answered = Some(Answered { returns: bytes.to_vec(), errno, outcome, closes });
    }

    /// The client reads a result.
    fn read_result(&mut self) {
        let result = self.page.read_result();
        assert!(result.closes.numbers().len() <= MAX_FILES);
        let Some(Answered { returns, errno, outcome, closes }) = &self.answered else { return };
        assert_eq!((result.errno, result.outcome), (*errno, *outcome));
        assert_eq!(result.closes.numbers(), closes);
        let mut read = vec![0; returns.len()];
        self.page.read_returns(&mut read);
        assert_eq!(&read, returns);
    }
}

fn set<const WORDS: usize>(area: &Area<WORDS>, at: usize, value: u64) {
    area.0[at % WORDS].store(value, Relaxed);
}
