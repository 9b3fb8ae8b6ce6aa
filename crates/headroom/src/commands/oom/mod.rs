//! `headroom oom`: commands about the OOM manager itself.

pub mod detach;
pub mod margin;
pub mod observe;
pub mod upgrade;
