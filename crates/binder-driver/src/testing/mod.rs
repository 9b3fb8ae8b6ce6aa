//! For tests, simulators and fuzzers only: no program calls it, so none contains it.

mod invariants;
