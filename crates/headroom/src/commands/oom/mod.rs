//! `headroom oom`: commands about the OOM management itself.

pub mod detach;
pub mod margin;
pub mod observe;
