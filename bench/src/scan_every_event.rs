//! A baseline for the notifier: every change of a limited user's memory makes the kernel scan all
//! processes.

use anyhow::{Context, Result, ensure};
use control::Uid;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder};

/// libelf requires that an object which it reads in place is aligned.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static PROGRAM: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/scan_every_event.bpf.o")));

/// The program, loaded.
pub struct ScanEveryEvent(Object);

/// Counters of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Pages of the user, at the last scan.
    pub pages: u64,
    /// Scans.
    pub looks: u64,
    /// Processes visited by all scans.
    pub processes: u64,
}

impl ScanEveryEvent {
    /// Loads the program for one user. Needs Linux 6.7.
    pub fn load(uid: Uid) -> Result<Self> {
        let builder = &mut ObjectBuilder::default();
        let mut open = builder.open_memory(&PROGRAM.0).context("the scanning program")?;
        let mut constants = open
            .maps_mut()
            .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
            .context("it has no constants")?;
        let bytes = constants.initial_value_mut().and_then(|bytes| bytes.first_chunk_mut());
        *bytes.context("it has too few constants")? = uid.0.to_ne_bytes();
        Ok(Self(open.load().context("this kernel does not take the scanning program")?))
    }

    /// Runs the program at every event, until the returned link is dropped.
    pub fn attach(&self) -> Result<Link> {
        let program = self.0.progs_mut().next().context("it has no program")?;
        program.attach().context("the scanning program cannot be attached")
    }

    /// The counters since it was loaded.
    pub fn looks(&self) -> Result<Looks> {
        let found = self
            .0
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))
            .context("it has no variables")?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .unwrap_or_default();
        let mut words = found.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        ensure!(words.len() >= 3, "it has too few variables");
        let mut next = || words.next().unwrap_or_default();
        Ok(Looks { pages: next(), looks: next(), processes: next() })
    }
}
