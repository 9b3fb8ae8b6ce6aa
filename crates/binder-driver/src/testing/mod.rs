//! For tests, simulators and fuzzers only; not called by any program.

mod invariants;
