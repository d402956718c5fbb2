//! A randomized test of the promises: clients acquire, drop and release at random, on streams that break at every point, with
//! messages of dead streams that arrive late. Every run follows from its seed.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::{Outcome, Wait};

use super::world::{World, up_to};
use crate::client::{Answer, Failure, GrantKey, RequestKey};
use crate::seeds::Seeds;

const NAMES: [&str; 3] = ["a", "b", "/c/d"];

#[derive(Default)]
struct Tally {
    granted: u32,
    ended_otherwise: u32,
    lost: u32,
    unknown: u32,
    declined: u32,
    entered_again: u32,
}

#[test]
fn no_lock_is_granted_twice_and_none_is_left_behind() {
    let mut tally = Tally::default();
    for seed in 0..2000 {
        run(seed, &mut tally);
    }
    let Tally { granted, ended_otherwise, lost, unknown, declined, entered_again } = tally;
    let reached =
        [(granted, 1_000), (ended_otherwise, 1_000), (lost, 50), (unknown, 20), (declined, 100), (entered_again, 20)];
    for (at, (reached, least)) in reached.into_iter().enumerate() {
        assert!(reached >= least, "too few cases: count {at} of the tally is {reached}, not {least}");
    }
}

fn run(seed: u64, tally: &mut Tally) {
    let mut seeds = Seeds::new(seed);
    let mut world = World::with_ttl(3, 2_000 + seeds.below(6_000));
    // The requests of each client, and the grants that it believes to hold.
    let mut asked: Vec<BTreeMap<RequestKey, &str>> = vec![BTreeMap::new(); 3];
    let mut guards: Vec<Vec<(GrantKey, &str)>> = vec![Vec::new(); 3];
    for _ in 0..600 {
        let client = seeds.below(3) as usize;
        match seeds.below(20) {
            0 | 1 if world.clients[client].machine.is_alive(world.clients[client].session) => {
                let name = NAMES[seeds.below(3) as usize];
                let wait = if seeds.one_in(3) { Wait::No } else { up_to(seeds.below(3_000)) };
                let limit = Duration::from_millis(500 + seeds.below(4_000));
                let key = match seeds.below(3) {
                    0 => world.acquire_as(client, "job", name, limit),
                    _ => world.acquire(client, name, wait, limit),
                };
                asked[client].insert(key, name);
            }
            2 if !asked[client].is_empty() => {
                let nth = seeds.below(asked[client].len() as u64) as usize;
                let key = *asked[client].keys().nth(nth).unwrap();
                if world.answer(key).is_none() {
                    asked[client].remove(&key);
                    world.clients[client].machine.abandon(key);
                    world.transmit(client);
                }
            }
            3 | 4 if !guards[client].is_empty() => {
                let nth = seeds.below(guards[client].len() as u64) as usize;
                let (grant, _) = guards[client].swap_remove(nth);
                world.release(client, grant);
            }
            5 if world.clients[client].up => {
                world.cut(client);
                if seeds.one_in(2) {
                    world.lose_what_is_under_way(client);
                }
            }
            6 | 7 if !world.clients[client].up => world.connect(client),
            8 | 9 => world.pass(Duration::from_millis(seeds.below(1_200))),
            10 => world.beat(),
            // Messages of different streams may overtake each other; those of one stream keep their order.
            11..=14 if !world.to_server.is_empty() => {
                let at = seeds.below(world.to_server.len() as u64) as usize;
                let stream = world.to_server[at].0;
                let first = world.to_server.iter().position(|(of, _)| *of == stream).unwrap();
                match seeds.below(12) {
                    0 => world.decline_one(first),
                    _ => world.serve_one(first),
                }
            }
            _ if world.clients[client].up => world.hear_one(client),
            _ => {}
        }
        for client in 0..3 {
            take_answers(&mut world, client, &mut asked[client], &mut guards[client], tally);
            guards[client].retain(|(grant, _)| {
                let held = world.believes(client, *grant);
                if !held {
                    tally.lost += 1;
                    world.release(client, *grant);
                }
                held
            });
        }
        let mut holders = BTreeMap::new();
        for (client, held) in guards.iter().enumerate() {
            for (grant, name) in held {
                let other = holders.insert(*name, *grant);
                assert!(other.is_none_or(|other| other == *grant), "seed {seed}: two holders of {name}");
                // No client believes in a grant that the cluster has ended.
                let stands = world.lone.state.grant_view(grant.grant).is_some();
                assert!(stands, "seed {seed}: client {client} believes in {grant:?}");
            }
        }
    }
    // In the end the network heals and all clients release their locks.
    for client in 0..3 {
        if world.clients[client].up {
            world.cut(client);
        }
        world.connect(client);
    }
    world.settle();
    for client in 0..3 {
        take_answers(&mut world, client, &mut asked[client], &mut guards[client], tally);
    }
    for _ in 0..20 {
        world.pass(Duration::from_millis(500));
        world.settle();
        for client in 0..3 {
            take_answers(&mut world, client, &mut asked[client], &mut guards[client], tally);
            for (grant, _) in guards[client].drain(..) {
                world.release(client, grant);
            }
        }
    }
    world.settle();
    assert!(asked.iter().all(BTreeMap::is_empty), "seed {seed}: never ended: {asked:?}");
    let counts = world.lone.state.counts();
    assert_eq!((counts.grants, counts.waiters), (0, 0), "seed {seed}: left behind");
}

fn take_answers<'a>(
    world: &mut World,
    client: usize,
    asked: &mut BTreeMap<RequestKey, &'a str>,
    guards: &mut Vec<(GrantKey, &'a str)>,
    tally: &mut Tally,
) {
    asked.retain(|key, name| {
        match world.clients[client].answers.get(key) {
            None => return true,
            Some(Answer::Decided(Outcome::Granted { grant, .. })) => {
                tally.granted += 1;
                let grant = GrantKey::new(key.session, *grant);
                tally.entered_again += u32::from(guards.iter().any(|(other, _)| *other == grant));
                guards.push((grant, name));
            }
            Some(Answer::Unknown) => tally.unknown += 1,
            Some(Answer::Failed(Failure::NotTaken { .. })) => tally.declined += 1,
            Some(_) => tally.ended_otherwise += 1,
        }
        false
    });
}
