//! Whether kills are carried out.

/// What happens after a decision to kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// The victim is killed.
    #[default]
    Kill,
    /// No signal is sent; the decision is recorded.
    Observe,
}
