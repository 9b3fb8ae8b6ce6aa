//! Clients against the real daemon: operations that succeed, are refused, or must never hang.
//!
//! Every test runs twice, with each mapping of receive buffers, on a bus of its own. At its end no
//! open may be left, and the daemon must exit without a trace.

mod binderfs;
mod blocking;
mod calls;
mod deaths;
mod devices;
mod files;
mod freezing;
mod guardian;
mod hostile;
mod identity;
mod malice;
mod mount_helper;
mod priorities;
mod receiver_races;
mod reclaim;
mod rings;
mod service_manager;
mod stress;
mod support;
mod trace;
mod upgrade;
mod upgrade_kills;
mod upgrades_in_a_loop;

use std::time::Duration;

use e2e::{Bus, BusError, Mapping};

/// Time limit after which a test certainly hangs.
const LONGEST_TEST: Duration = Duration::from_secs(300);

/// Runs a test on a fresh bus; afterwards the bus must be empty.
fn on_bus(mapping: Mapping, test: fn(&Bus)) {
    on_this_bus(Bus::start(mapping), mapping, test);
}

/// As [`on_bus`], with clients under seccomp filters.
fn on_bus_with_filters(test: fn(&Bus)) {
    on_this_bus(Bus::start_with_filters(Mapping::NotifyStore), Mapping::NotifyStore, test);
}

fn on_this_bus(bus: Result<Bus, BusError>, mapping: Mapping, test: fn(&Bus)) {
    let mut bus = match bus {
        Ok(bus) => bus,
        Err(BusError::Unavailable(reason)) => {
            test_support::skip(reason);
            return;
        }
        Err(BusError::Broken(fault)) => panic!("{fault}"),
    };
    bus.limit_time(LONGEST_TEST);
    let status = bus.status().unwrap();
    assert_eq!(status.mapping, mapping.argument(), "the daemon uses the requested mapping");
    test(&bus);
    if let Err(left) = bus.wait_until_empty() {
        panic!("{left}");
    }
    if let Err(fault) = bus.stop() {
        panic!("{fault}");
    }
}

/// Makes a test of each function with clients under seccomp filters.
#[macro_export]
macro_rules! under_filters {
    ($($name:ident)*) => {
        mod under_filters {
            $(#[test]
            fn $name() {
                $crate::on_bus_with_filters(super::$name);
            })*
        }
    };
}

/// Makes a test of each function and each mapping.
#[macro_export]
macro_rules! both_mappings {
    ($($name:ident)*) => {
        mod passthrough {
            $(#[test]
            fn $name() {
                $crate::on_bus(e2e::Mapping::Passthrough, super::$name);
            })*
        }
        mod notify_store {
            $(#[test]
            fn $name() {
                $crate::on_bus(e2e::Mapping::NotifyStore, super::$name);
            })*
        }
    };
}
