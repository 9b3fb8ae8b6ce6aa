//! Processes that use tmalloc when told to: this test program again, as another user.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use super::eventually;
use super::helper::Helper;

/// Name of the ignored test that has [`obey`] as its body.
const HELPER: &str = "leaser_that_other_tests_start";
const VARIABLE: &str = "HEADROOM_TEST_LEASER";
const PIECE: usize = 4096;

/// A process that obeys.
pub struct Leaser {
    helper: Helper,
}

impl Leaser {
    /// Starts one that leases from the daemon at `socket`, and has its first page already.
    pub fn start(uid: u32, socket: &Path) -> Self {
        let socket = socket.to_str().unwrap();
        let environment = [(VARIABLE, "1"), ("HEADROOM_LEASE_SOCKET", socket)];
        let mut leaser = Self { helper: Helper::start(HELPER, uid, &environment, "leaser: ") };
        assert_eq!(leaser.answer().as_deref(), Some("1"));
        leaser
    }

    pub fn pid(&self) -> u32 {
        self.helper.child.id()
    }

    /// Gives an order without waiting.
    pub fn order(&mut self, order: &str) {
        writeln!(self.helper.orders, "{order}").unwrap();
    }

    /// What it answered; `None`: it is dead.
    pub fn answer(&mut self) -> Option<String> {
        self.helper.answer()
    }

    /// Gives an order and waits for its answer: a number.
    pub fn ask(&mut self, order: &str) -> u64 {
        self.order(order);
        let answer = self.answer();
        let answer = answer
            .unwrap_or_else(|| panic!("it died over {order:?}: {:?}", self.helper.child.wait()));
        answer.parse().unwrap()
    }

    pub fn is_alive(&mut self) -> bool {
        self.helper.child.try_wait().unwrap().is_none()
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.helper.child.kill().unwrap();
        let status = eventually("it dies", || self.helper.child.try_wait().unwrap());
        assert_eq!(status.signal(), Some(9));
    }
}

/// Pieces that were got, none of them freed.
#[derive(Default)]
struct Held {
    pieces: Vec<*mut u8>,
    blocks: Vec<(*mut u8, usize)>,
    leases: Vec<tmalloc::Lease>,
}

impl Held {
    fn one_piece(&mut self) -> bool {
        // SAFETY: checked for NULL; written to within its length.
        unsafe {
            let piece: *mut u8 = tmalloc::heap::malloc(PIECE).cast();
            if piece.is_null() {
                return false;
            }
            piece.write_bytes(1, PIECE);
            self.pieces.push(piece);
        }
        true
    }

    /// What an order comes to, as a number.
    fn obey(&mut self, verb: &str, number: usize) -> u64 {
        match verb {
            // So many pieces at the most, each written to.
            "fill" => (0..number).take_while(|_| self.one_piece()).count() as u64,
            // One block, not written to.
            "allocate" => {
                // SAFETY: checked for NULL.
                let block: *mut u8 = unsafe { tmalloc::heap::malloc(number).cast() };
                if block.is_null() {
                    return 0;
                }
                self.blocks.push((block, number));
                1
            }
            "touch" => {
                for (block, len) in &self.blocks {
                    for at in (0..*len).step_by(PIECE) {
                        // SAFETY: inside the block.
                        unsafe { block.add(at).write(1) };
                    }
                }
                1
            }
            "free" => {
                for (block, _) in self.blocks.drain(..) {
                    // SAFETY: allocated here, and forgotten with this.
                    unsafe { tmalloc::heap::free(block.cast()) };
                }
                tmalloc::give_back();
                1
            }
            "reserve" => match tmalloc::reserve(number) {
                Ok(lease) => {
                    self.leases.push(lease);
                    1
                }
                Err(_) => 0,
            },
            "reserve-within-10s" => {
                match tmalloc::reserve_within(number, Duration::from_secs(10)) {
                    Ok(lease) => {
                        self.leases.push(lease);
                        1
                    }
                    Err(_) => 0,
                }
            }
            "commit" => {
                self.leases.drain(..).for_each(tmalloc::Lease::commit);
                1
            }
            "release" => {
                self.leases.clear();
                1
            }
            "headroom" => tmalloc::headroom().unwrap_or(0),
            _ => panic!("{verb:?}"),
        }
    }
}

/// The leaser's life: orders from standard input until it ends.
pub fn obey() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut held = Held::default();
    held.pieces.reserve(1 << 16);
    println!("\nleaser: {}", held.obey("fill", 1));
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (verb, number) = order.split_once(' ').unwrap();
        println!("\nleaser: {}", held.obey(verb, number.parse().unwrap()));
    }
}
