//! The daemon's backends for watching memory.

use clap::ValueEnum;

/// How the daemon watches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The BPF notifier.
    Bpf,
    /// Polling of `/proc`.
    Proc,
}

impl Backend {
    /// The value of the daemon's option `--notifier`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::Proc => "proc",
        }
    }
}

/// The option `--backend` of a suite.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Backends {
    /// Only the BPF notifier.
    Bpf,
    /// Only polling of `/proc`.
    Proc,
    /// Each scenario with both, in turn.
    Both,
}

impl Backends {
    /// The backends in the order in which they run.
    pub fn list(self) -> &'static [Backend] {
        match self {
            Self::Bpf => &[Backend::Bpf],
            Self::Proc => &[Backend::Proc],
            Self::Both => &[Backend::Bpf, Backend::Proc],
        }
    }
}
