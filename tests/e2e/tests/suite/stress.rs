//! Many clients, killed at random.

use std::thread;
use std::time::Duration;

use e2e::peer::Word;
use e2e::random::Random;
use e2e::{Bus, Peer, wait};

use crate::support::{manager, peer, silent_peer};

crate::both_mappings! {
    thirty_two_clients_call_a_thousand_times_each_while_some_are_killed
}

const CLIENTS: u64 = 32;
const CALLS: u64 = 1000;
/// Maximum of kills of one client, after which it may finish.
const KILLS: u64 = 4;

fn thirty_two_clients_call_a_thousand_times_each_while_some_are_killed(bus: &Bus) {
    let seed = Random::fresh_seed();
    println!("seed {seed}");
    let _manager = manager(bus);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || killed_client(bus, number, seed + number)))
            .collect();
        let _service = killed_services(bus, seed);
        let killed: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert!(killed >= CLIENTS, "only {killed} clients were killed: nothing was tested");
    });
}

/// Runs clients in succession until they have made [`CALLS`] calls; returns how many were killed.
fn killed_client(bus: &Bus, number: u64, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let (mut done, mut killed) = (0, 0);
    while done < CALLS {
        let name = if number.is_multiple_of(2) { "manager" } else { "service" };
        let seed = random.below(1 << 32).to_string();
        let left = (CALLS - done).to_string();
        let mut client = silent_peer(bus, &["caller", name, &left, &seed]);
        // By lines, not by time: so it is killed in the middle of its work on any machine. Each
        // line means ten calls.
        let lines = if killed < KILLS { random.below(CALLS / 30) } else { u64::MAX };
        let (progress, ended) = follow(&client, lines);
        if ended {
            client.wait_for_success();
            done = CALLS;
        } else {
            thread::sleep(Duration::from_micros(random.below(3000)));
            client.kill();
            killed += 1;
            done += progress;
        }
    }
    killed
}

/// Reads a client's lines; returns the number of its calls, and whether it exited by itself.
fn follow(client: &Peer, lines: u64) -> (u64, bool) {
    let mut done = 0;
    let mut seen = 0;
    while seen < lines {
        // Thirty-two clients share two cores: allow more time, but not unlimited.
        match client.line_within(4 * wait::PATIENCE) {
            Word::Line(line) => done = line.parse().unwrap_or(done),
            Word::End => return (done, true),
            Word::Silence => panic!("a client hangs: {}", wait::describe(client.pid())),
        }
        seen += 1;
    }
    (done, false)
}

/// Restarts an echo service each time that it was killed; the last one keeps running.
fn killed_services(bus: &Bus, seed: u64) -> Peer {
    let mut random = Random::new(!seed);
    for _ in 0..5 {
        let mut service = peer(bus, &["echo", "service"]);
        thread::sleep(Duration::from_millis(50 + random.below(150)));
        service.kill();
    }
    peer(bus, &["echo", "service"])
}
