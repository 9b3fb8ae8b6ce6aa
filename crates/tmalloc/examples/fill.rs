//! Allocates pieces of 4 KiB and writes to them until an allocation is refused; prints the total.

fn main() {
    let mut pieces = 0usize;
    loop {
        // SAFETY: checked for NULL, written to within its length, and never freed.
        let piece = unsafe { tmalloc::heap::malloc(4096) };
        if piece.is_null() || pieces == 1 << 20 {
            break;
        }
        // SAFETY: as above.
        unsafe { piece.cast::<u8>().write_bytes(1, 4096) };
        pieces += 1;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines().filter(|line| line.starts_with("Rss")) {
        println!("{line}");
    }
    println!("{} KiB", pieces * 4);
}
