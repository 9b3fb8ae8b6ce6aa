//! Compiles the BPF program of the baseline that scans at every event.

#[path = "../crates/memory-watch/compile_bpf.rs"]
mod compile_bpf;

fn main() {
    println!("cargo:rerun-if-changed=../crates/memory-watch/compile_bpf.rs");
    println!("cargo:rerun-if-changed=../crates/memory-watch/bpf/kernel.h");
    compile_bpf::compile("scan_every_event");
}
