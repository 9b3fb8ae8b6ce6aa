//! A process that allocates memory with tmalloc: executes one command per line of standard input,
//! answers each with a number, and exits at the end of its input.

use std::time::Duration;

const PIECE: usize = 4096;

/// Allocated pieces, none of them freed.
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

    /// Executes a command; returns its result.
    fn obey(&mut self, verb: &str, number: usize) -> u64 {
        match verb {
            // At most `number` pieces, each written to.
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
                    // SAFETY: allocated here, and removed from the list.
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

fn main() {
    let mut held = Held::default();
    held.pieces.reserve(1 << 16);
    assert_eq!(held.obey("fill", 1), 1, "the first page");
    println!("ready");
    for order in std::io::stdin().lines() {
        let order = order.expect("an order");
        let (verb, number) = order.split_once(' ').expect("an order is a verb and a number");
        println!("{}", held.obey(verb, number.parse().expect("a number")));
    }
}
