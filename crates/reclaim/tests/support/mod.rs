//! Children to be killed: this test program again, holding memory.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use reclaim::Identity;

const HELPER: &str = "holds_memory_for_another_test";
const MIB_VARIABLE: &str = "RECLAIM_TEST_HOLD_MIB";

/// The helper's body: call it from an ignored test named [`HELPER`].
pub fn hold_memory() {
    let Ok(mib) = std::env::var(MIB_VARIABLE) else { return };
    let mut memory = vec![0u8; mib.parse::<usize>().unwrap() << 20];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    println!("\nholding");
    std::thread::sleep(std::time::Duration::from_secs(120));
    std::hint::black_box(&memory);
}

/// A child, killed and reaped at the latest on drop.
pub struct Holder(pub Child);

impl Holder {
    /// Starts a child that holds so much memory.
    pub fn start(mib: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([HELPER, "--exact", "--ignored", "--nocapture"])
            .env(MIB_VARIABLE, mib.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.map(|line| line.unwrap()).find(|line| line == "holding").expect("never held it");
        Self(child)
    }

    pub fn identity(&self) -> Identity {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let uid = rustix::process::getuid().as_raw();
        Identity { pid: self.0.id(), uid, start_ticks: fields[19].parse().unwrap() }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
