//! One node and a driver that only turns it: how often the driver must do so, whether it may sleep in between, and when another entry
//! goes out.

use crate::cluster::open;
use fencepost_core::{Epoch, KnownVersions, Nanos, Outcome, Renewal, Seen, SessionId, Ticket};
use fencepost_replica::{BEAT_MS, GroupId, Log, Output, Replica, STAMP_EVERY_MS, Settings, TICK_MS, read_entry};

/// How long the driver sleeps if nothing arrives.
#[derive(Clone, Copy, Debug)]
enum Sleeps {
    /// Five milliseconds, needed or not.
    Briefly,
    /// Until the replica's next turn is due.
    UntilNextTurn,
}

struct Driver {
    replica: Replica,
    sleeps: Sleeps,
    now: Nanos,
    turns: u64,
    answers: Vec<(Ticket, Outcome)>,
}

impl Driver {
    fn new(sleeps: Sleeps) -> Driver {
        let group = GroupId { cluster: 1, group: 1 };
        let replica = Replica::new(Settings::new(1, group, 1), Log::new(&[1]), None, Nanos(0)).unwrap();
        let mut driver = Driver { replica, sleeps, now: Nanos(0), turns: 0, answers: Vec::new() };
        while !driver.replica.serves() {
            driver.sleep_and_turn();
        }
        driver
    }

    fn sleep_and_turn(&mut self) {
        let wake = match self.sleeps {
            Sleeps::Briefly => self.now.after_ms(5),
            Sleeps::UntilNextTurn => self.replica.next_turn(),
        };
        assert!(wake > self.now, "the driver would not sleep at all");
        assert!(wake <= self.now.after_ms(TICK_MS), "consensus counts time by ticks");
        self.now = wake;
        self.turn();
    }

    /// Turns until there is nothing to do. Every write is durable at once.
    fn turn(&mut self) {
        loop {
            self.turns += 1;
            let mut arrived = false;
            for output in self.replica.turn(self.now).unwrap() {
                match output {
                    Output::Write(write) => {
                        self.replica.handle_persisted(write.number);
                        arrived = true;
                    }
                    Output::Reply { ticket, reply, .. } => self.answers.push((ticket, reply.outcome)),
                    _ => {}
                }
            }
            if !arrived {
                return;
            }
        }
    }

    fn ms_until(&mut self, mut holds: impl FnMut(&Driver) -> bool) -> u64 {
        let began = self.now;
        while !holds(self) {
            self.sleep_and_turn();
        }
        (self.now.0 - began.0) / 1_000_000
    }
}

/// How long a session of two seconds lives, and how long its keep-alives, after 0.9 s, wait for their answers.
fn lived_and_waited(sleeps: Sleeps) -> (u64, u64) {
    let mut driver = Driver::new(sleeps);
    driver.replica.submit(open(1, 2_000)).unwrap();
    assert!(driver.replica.next_turn() <= driver.now, "an operation is not left waiting");
    driver.turn();
    let began = driver.now;
    // Before time alone causes an entry, which would use up the beat.
    driver.ms_until(|driver| driver.now >= began.after_ms(900));
    let (session, epoch, seen) = (SessionId(1), Epoch(1), Seen::default());
    for _ in 0..2 {
        // The first keep-alive gets a log entry at once. The second comes directly after it and waits for the next beat.
        let renewal = Renewal::KeepAlive { session, epoch, seen: seen.clone() };
        let ticket = driver.replica.submit_renewal(renewal).unwrap();
        driver.turn();
        driver.ms_until(|driver| driver.answers.iter().any(|(answered, _)| *answered == ticket));
    }
    let waited = (driver.now.0 - began.0) / 1_000_000 - 900;
    let lived = driver.ms_until(|driver| driver.replica.state().counts().sessions == 0);
    (lived, waited)
}

#[test]
fn a_driver_that_sleeps_until_the_next_turn_is_as_timely_as_one_that_hardly_sleeps() {
    let (brief, asleep) = (lived_and_waited(Sleeps::Briefly), lived_and_waited(Sleeps::UntilNextTurn));
    println!("(lived, waited) in ms: {brief:?} with turns every 5 ms, {asleep:?} with turns when they are due");
    assert!((2_000..=2_005).contains(&asleep.0), "the session lived {} ms after its last keep-alive", asleep.0);
    assert!(brief.0.abs_diff(asleep.0) <= 5, "{} and {} ms", brief.0, asleep.0);
    assert!((1..=BEAT_MS).contains(&asleep.1), "the keep-alive waited {} ms", asleep.1);
    assert!(brief.1.abs_diff(asleep.1) <= 5, "{} and {} ms", brief.1, asleep.1);
}

#[test]
fn an_idle_node_is_turned_only_by_its_ticks_and_by_an_entry_each_second_while_something_can_expire() {
    let mut driver = Driver::new(Sleeps::UntilNextTurn);
    let turns_in_ten_seconds = |driver: &mut Driver| {
        let (turns, entries, began) = (driver.turns, driver.replica.applied().index, driver.now);
        driver.ms_until(|driver| driver.now >= began.after_ms(10_000));
        (driver.turns - turns, driver.replica.applied().index - entries)
    };
    let (turns, entries) = turns_in_ten_seconds(&mut driver);
    assert!(turns <= 10_000 / TICK_MS + 1, "{turns} turns in ten seconds");
    assert_eq!(entries, 0);

    // While something can expire, there is an entry each second. Writing it takes a turn, and making it durable another one.
    driver.replica.submit(open(1, 600_000)).unwrap();
    driver.turn();
    let (turns, entries) = turns_in_ten_seconds(&mut driver);
    assert!(turns <= 10_000 / TICK_MS + 1 + 2 * entries, "{turns} turns in ten seconds");
    assert!((9..=10_000 / STAMP_EVERY_MS).contains(&entries), "{entries} entries in ten seconds");
}

/// The number of operations in each entry that one turn writes.
fn entries_of_a_turn(driver: &mut Driver, writes: &mut Vec<u64>) -> Vec<usize> {
    let mut entries = Vec::new();
    for output in driver.replica.turn(driver.now).unwrap() {
        match output {
            Output::Write(write) => {
                let read =
                    write.entries.iter().filter_map(|entry| read_entry(entry, KnownVersions::THIS_BUILD).unwrap());
                entries.extend(read.map(|entry| entry.batch.operations.len()));
                writes.push(write.number);
            }
            Output::Reply { ticket, reply, .. } => driver.answers.push((ticket, reply.outcome)),
            _ => {}
        }
    }
    entries
}

#[test]
fn while_an_entry_is_in_flight_another_one_goes_out_only_with_enough_operations() {
    let mut driver = Driver::new(Sleeps::UntilNextTurn);
    let mut next_session = 0;
    let mut submitted = Vec::new();
    let mut writes = Vec::new();
    let mut submit = |driver: &mut Driver, operations: u64| {
        for _ in 0..operations {
            next_session += 1;
            submitted.push(driver.replica.submit(open(next_session, 600_000)).unwrap());
        }
        entries_of_a_turn(driver, &mut writes)
    };
    assert_eq!(submit(&mut driver, 1), [1], "no entry was in flight");
    assert_eq!(submit(&mut driver, 15), [0_usize; 0], "too few to be worth an entry of their own");
    assert!(driver.replica.next_turn() > driver.now, "another turn would change nothing");
    assert_eq!(submit(&mut driver, 1), [16]);
    assert_eq!(submit(&mut driver, 200), [200]);
    assert_eq!(submit(&mut driver, 49), [0_usize; 0], "less than a quarter of the last entry");
    assert_eq!(submit(&mut driver, 1), [50]);
    assert_eq!(submit(&mut driver, 10_000), [0_usize; 0], "four entries are in flight");
    assert!(driver.answers.is_empty(), "nothing is durable yet");

    // The first entry is durable, so another one may go out.
    driver.replica.handle_persisted(writes[0]);
    assert_eq!(entries_of_a_turn(&mut driver, &mut Vec::new()), [10_000]);
    driver.replica.handle_persisted(*writes.last().unwrap());
    driver.turn();
    driver.sleep_and_turn();
    let answered: Vec<Ticket> = driver.answers.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(answered[..268], submitted[..268], "in the order of submission");
}
