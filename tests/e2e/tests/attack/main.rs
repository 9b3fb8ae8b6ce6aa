//! Attacks of ordinary users on the daemon, and their effect on others: an innocent client on
//! another device makes calls meanwhile, and afterwards the daemon has the same resources as
//! before.
//!
//! Each attack runs on both ways in which receive buffers reach clients, and with daemon, attacker
//! and innocent client on one CPU.

mod areas;
mod files;
mod identity;
mod innocent;
mod late_memory;
mod long_ioctls;
mod memory;
mod signals;

use std::time::Duration;

use e2e::{Bus, BusError, Mapping};

/// Time limit after which a test certainly hangs.
const LONGEST_TEST: Duration = Duration::from_secs(120);

/// Runs an attack on a fresh bus; afterwards no open may be left.
fn on_bus(mapping: Mapping, attack: fn(&Bus)) {
    on_bus_with(mapping, &[], attack);
}

/// As [`on_bus`], with further arguments of the daemon.
fn on_bus_with(mapping: Mapping, arguments: &[&str], attack: fn(&Bus)) {
    let bus = Bus::start_with(mapping, |command| {
        command.args(arguments);
    });
    let mut bus = match bus {
        Ok(bus) => bus,
        Err(BusError::Unavailable(reason)) => return test_support::skip(reason),
        Err(BusError::Broken(fault)) => panic!("{fault}"),
    };
    bus.limit_time(LONGEST_TEST);
    attack(&bus);
    bus.wait_until_empty().unwrap();
    bus.stop().unwrap();
}

/// As [`on_bus`], with all processes that this thread starts on one CPU.
fn on_one_cpu(mapping: Mapping, attack: fn(&Bus)) {
    let everywhere = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| everywhere.is_set(cpu));
    let mut one = rustix::thread::CpuSet::new();
    one.set(first.unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    on_bus(mapping, attack);
}

/// Makes tests of each attack.
#[macro_export]
macro_rules! attacks {
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
        mod one_cpu {
            $(#[test]
            fn $name() {
                $crate::on_one_cpu(e2e::Mapping::Auto, super::$name);
            })*
        }
    };
}
