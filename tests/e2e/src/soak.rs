//! The two kinds of processes of `soak`: services, and clients that call them and each other in all
//! supported ways.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use binder_client::{
    Answer, Call, Client, ClientError, Echo, Options, Parcel, Payload, Received, Session, registry,
};
use binder_uapi::{
    BINDER_TYPE_BINDER, BINDER_TYPE_FD, FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject,
    TF_ACCEPT_FDS,
};

use crate::random::Random;

/// Services of a soak: `service0`...
pub const SERVICES: usize = 8;
/// Objects that each of its clients publishes: `client7.0`...
pub const OBJECTS: u64 = 10;
/// Mean interval of a client's calls, milliseconds. So a thousand clients make some 3,300 calls per
/// second.
const PAUSE_MS: u64 = 300;
/// Maximum of other clients' objects that a client keeps.
const KEPT: usize = 8;
const CALL: u32 = 1;
/// Line that a client prints after [`CALLS_OF_A_LINE`] calls.
pub const PROGRESS: &str = "calls";
const CALLS_OF_A_LINE: u32 = 8;
/// Line that a client prints for a call that its receiver could not take: see [`tolerate`].
pub const FAILED: &str = "failed";
/// Text that a service writes into each file that it receives.
const MARK: &[u8] = b"seen";

fn open(device: &str) -> Result<Client, String> {
    Client::open(Path::new(device), &Options::default()).map_err(|error| error.to_string())
}

/// Publishes an object that accepts files: it marks and closes them, and replies with their number;
/// all other calls are echoed.
pub fn service(device: &str, name: &str) -> Result<(), String> {
    let client = open(device)?;
    let mut session = Session::new(&client);
    publish(&mut session, name, 0).map_err(|error| error.to_string())?;
    println!("ready");
    let mut serve = |_: &mut Session<'_>, incoming: &Received<'_>| -> Answer {
        let objects = incoming.objects().unwrap_or_default();
        let mut files = 0_u32;
        for file in objects.iter().filter(|object| object.ty == BINDER_TYPE_FD) {
            // SAFETY: the driver made this descriptor for us.
            let mut file = unsafe { File::from_raw_fd(file.binder as i32) };
            files += u32::from(file.write_all(MARK).is_ok());
        }
        match files {
            0 => Answer::Echo,
            files => Answer::Reply(Parcel::new().bytes(&files.to_ne_bytes())),
        }
    };
    session.serve(&mut serve).map_err(|error| error.to_string())
}

/// Publishes this client's object `number`, which accepts files.
fn publish(session: &mut Session<'_>, name: &str, number: u64) -> Result<(), ClientError> {
    let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS;
    let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: number + 1, cookie: 0 };
    let name_len = (name.len() as u32).to_ne_bytes();
    let parcel = Parcel::new().bytes(&name_len).bytes(name.as_bytes()).object(object);
    let reply = session.call(0, registry::ADD, parcel.payload())?;
    session.free(reply);
    session.flush()
}

/// Publishes its objects, answers calls to them in a thread, and makes random calls to others
/// forever.
///
/// It is number `index` of `clients`; the seed determines its calls.
pub fn client(device: &str, index: u64, clients: u64, seed: u64) -> Result<(), String> {
    let client = open(device)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = Session::new(&client).serve(&mut Echo);
            eprintln!("client {index}: its server has ended: {end:?}");
            std::process::exit(1);
        });
        let mut caller = Caller {
            session: Session::new(&client),
            random: Random::new(seed),
            clients,
            services: [0; SERVICES],
            kept: Vec::new(),
        };
        for number in 0..OBJECTS {
            publish(&mut caller.session, &format!("client{index}.{number}"), number)
                .map_err(|error| error.to_string())?;
        }
        println!("ready");
        let Err(error) = caller.call_for_ever();
        eprintln!("client {index}: {error} ({:?})", client.extended_error());
        // The thread scope would keep the process running.
        std::process::exit(1);
    })
}

struct Caller<'c> {
    session: Session<'c>,
    random: Random,
    clients: u64,
    /// Handles; 0: not looked up yet.
    services: [u32; SERVICES],
    /// Handles of other clients' objects, each with a strong reference.
    kept: Vec<u32>,
}

impl Caller<'_> {
    fn call_for_ever(&mut self) -> Result<Infallible, ClientError> {
        loop {
            for _ in 0..CALLS_OF_A_LINE {
                match self.random.below(20) {
                    0..2 => self.keep_another()?,
                    2..6 => self.call_another()?,
                    _ => self.call_service()?,
                }
                self.session.flush()?;
                thread::sleep(Duration::from_millis(self.random.below(2 * PAUSE_MS)));
            }
            println!("{PROGRESS}");
        }
    }

    /// Looks up some client's object and requests a death notification for it; releases the oldest
    /// one if there are too many.
    fn keep_another(&mut self) -> Result<(), ClientError> {
        let (client, number) = (self.random.below(self.clients), self.random.below(OBJECTS));
        let name = format!("client{client}.{number}");
        let found = match registry::find(&mut self.session, &name) {
            // An object of this client.
            Err(ClientError::Contents(_)) => None,
            other => other?,
        };
        if let Some(handle) = found {
            self.session.request_death(handle, handle.into());
            self.kept.push(handle);
        }
        if self.kept.len() > KEPT {
            let handle = self.kept.remove(0);
            if self.random.below(2) == 0 {
                self.session.clear_death(handle, handle.into());
            }
            self.session.release(handle);
        }
        Ok(())
    }

    fn call_another(&mut self) -> Result<(), ClientError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.kept.len() as u64) as usize;
        let handle = self.kept[at];
        let bytes = self.bytes();
        let called = match self.random.below(3) {
            0 => self.session.oneway(handle, CALL, Payload::bytes(&bytes)).map(drop),
            _ => self.checked_echo(handle, &bytes),
        };
        match called {
            Err(ClientError::DeadReply) => {
                self.kept.swap_remove(at);
                self.session.release(handle);
                Ok(())
            }
            other => tolerate(other),
        }
    }

    fn call_service(&mut self) -> Result<(), ClientError> {
        let which = self.random.below(SERVICES as u64) as usize;
        if self.services[which] == 0 {
            let found = registry::find(&mut self.session, &format!("service{which}"))?;
            // The restarted client has not published it yet.
            let Some(handle) = found else { return Ok(()) };
            self.services[which] = handle;
            self.session.request_death(handle, which as u64);
        }
        let handle = self.services[which];
        let bytes = self.bytes();
        let called = match self.random.below(8) {
            0 => self.session.oneway(handle, CALL, Payload::bytes(&bytes)).map(drop),
            1 => self.checked_echo(0, &bytes),
            2 => self.pass_files(handle),
            _ => self.checked_echo(handle, &bytes),
        };
        match called {
            Err(ClientError::DeadReply) => {
                self.session.release(handle);
                self.services[which] = 0;
                Ok(())
            }
            other => tolerate(other),
        }
    }

    /// Usually few bytes, sometimes tens of thousands, rarely hundreds.
    fn bytes(&mut self) -> Vec<u8> {
        let size = match self.random.below(200) {
            0 => self.random.below(300_000),
            1..10 => self.random.below(60_000),
            _ => self.random.below(500),
        };
        vec![self.random.below(256) as u8; size as usize]
    }

    /// The echo must equal the call, which sometimes includes an object of this client.
    fn checked_echo(&mut self, handle: u32, bytes: &[u8]) -> Result<(), ClientError> {
        let mut parcel = Parcel::new().bytes(bytes);
        let number = 1 + self.random.below(2 * OBJECTS);
        let with_object = self.random.below(5) == 0;
        if with_object {
            parcel = parcel.binder(number, 0);
        }
        let payload = parcel.payload();
        let call = Call { handle, code: CALL, flags: TF_ACCEPT_FDS, payload };
        let reply = self.session.call_with(call, &mut Echo)?;
        let data = reply.data()?;
        let right = data.len() == parcel.data.len() && data.starts_with(bytes);
        let objects = reply.objects()?;
        let right = right && objects.len() == usize::from(with_object);
        let right = right && objects.iter().all(|object| object.binder == number);
        self.session.free(reply);
        if right {
            Ok(())
        } else {
            Err(ClientError::Contents("the echo differs from what was sent"))
        }
    }

    /// The service must have marked each file.
    fn pass_files(&mut self, handle: u32) -> Result<(), ClientError> {
        let count = 1 + self.random.below(3) as usize;
        let mut parcel = Parcel::new();
        let mut ends = Vec::new();
        for _ in 0..count {
            let Ok((read, write)) = std::io::pipe() else { return Ok(()) };
            parcel = parcel.fd(write.as_fd());
            ends.push((read, write));
        }
        let reply = self.session.call(handle, CALL, parcel.payload())?;
        let right = reply.data()? == (count as u32).to_ne_bytes();
        self.session.free(reply);
        let marked = ends.into_iter().all(|(mut read, write)| {
            drop(write);
            let mut mark = Vec::new();
            read.read_to_end(&mut mark).is_ok() && mark == MARK
        });
        if right && marked { Ok(()) } else { Err(ClientError::Contents("a file came not through")) }
    }
}

/// Reports errors that occur if clients are stopped and frozen: the receiver is frozen, or has no
/// space left. All others are errors of the test.
fn tolerate(called: Result<(), ClientError>) -> Result<(), ClientError> {
    match called {
        Err(ClientError::FailedReply | ClientError::FrozenReply) => {
            println!("{FAILED}");
            Ok(())
        }
        other => other,
    }
}
