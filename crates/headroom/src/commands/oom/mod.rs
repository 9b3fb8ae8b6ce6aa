//! `headroom oom`: commands about the OOM manager itself.

pub mod detach;
pub mod observe;
