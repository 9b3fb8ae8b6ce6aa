//! The rules of the protocol, one per test. The driver's invariants are checked after every ioctl.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../../tests/contracts/host.rs"]
mod contract;

mod calls;
mod deaths;
mod descriptors;
mod freezes;
mod held;
mod hostile;
mod logs;
mod manager;
mod oneway;
mod prediction;
mod priorities;
mod quotas;
mod reclaim;
mod references;
mod scatter_gather;
mod threads;

#[test]
fn the_host_of_the_tests_fulfils_the_contract() {
    let (mut world, _, [caller]) = common::World::with_manager();
    let memory = world.place(caller, &[0; 64]);
    let (open_fd, closed_fd) = (world.host.install(caller.process, 5), 77);
    let client = contract::Client { caller, memory, open_fd, closed_fd };
    contract::check_client(&mut world.host, &client);
    contract::check_mapping(&mut world.host, caller.process, |host| {
        host.mappings.get(&caller.process).cloned()
    });
}
