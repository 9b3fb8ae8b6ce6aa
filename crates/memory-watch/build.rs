//! Compiles the BPF programs.

mod compile_bpf;

fn main() {
    println!("cargo:rerun-if-changed=compile_bpf.rs");
    compile_bpf::compile("notifier");
}
