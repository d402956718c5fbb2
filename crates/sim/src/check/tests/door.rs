//! Tests of the checker of the edge (I27): each reports the same facts without and with a lie.

use fencepost_core::{Attached, Refusal, Repeat, Reply, ReplyTo, SessionEnd};
use fencepost_session::Tier;
use fencepost_session::bounds::OUTBOX_BYTES_MAX;
use fencepost_session::edge::StreamId;
use fencepost_wire::{api, v1};

use super::*;
use crate::fact::{Kind, StreamCommand};

const NODE: u64 = 7;
const ANNS: StreamId = StreamId(1);
const ANNS_NEXT: StreamId = StreamId(2);
const BOBS: StreamId = StreamId(3);

/// Three streams of two clients. Ann's session is bound to her first stream by entry 10.
fn with_a_session(world: &mut World) {
    for (stream, client) in [(ANNS, 1), (ANNS_NEXT, 1), (BOBS, 2)] {
        world.tell(&Fact::Connected { stream, client, node: NODE, tier: Tier::Correctness });
    }
    opens(world, ANNS, 10);
}

fn asks(world: &mut World, stream: StreamId, kind: Kind) -> StreamCommand {
    let command = StreamCommand { stream, session: ANN, kind };
    world.tell(&Fact::Submitted(command));
    command
}

fn decides(world: &mut World, command: StreamCommand, index: u64, outcome: Outcome, repeat: Option<Repeat>) {
    let reply = Reply { to: ReplyTo::Operation(0), outcome, repeat };
    world.tell(&Fact::Decided { command, position: LogPosition { index, term: 1 }, reply: &reply });
}

/// A stream opens the session and gets the answer.
fn opens(world: &mut World, stream: StreamId, index: u64) {
    let command = asks(world, stream, Kind::Open);
    decides(world, command, index, Outcome::Opened { epoch: Epoch(1) }, None);
    hears(world, stream, answer(0, index));
}

/// A stream attaches the session. The answer is not sent yet.
fn attaches(world: &mut World, stream: StreamId, index: u64) {
    let command = asks(world, stream, Kind::Attach);
    let (grants, waits, unseen, lost) = Default::default();
    let attached = Attached { epoch: Epoch(2), grants, waits, unseen, lost };
    decides(world, command, index, Outcome::Attached(Box::new(attached)), None);
}

fn pushes(world: &mut World, index: u64) -> v1::ServerMessage {
    let push = Push::SessionEnded { session: ANN, how: SessionEnd::Expired };
    let position = LogPosition { index, term: 1 };
    world.tell(&Fact::Pushed { node: NODE, tier: Tier::Correctness, position, push: &push });
    let decided = v1::Decided { index, pushes: vec![api::push_to_wire(&push)], ..v1::Decided::default() };
    v1::ServerMessage { decided: vec![decided], ..v1::ServerMessage::default() }
}

fn answer(number: u64, index: u64) -> v1::ServerMessage {
    let (session_high, session_low) = api::halves(ANN.0);
    let answers = vec![v1::Answer { session_high, session_low, number, ..v1::Answer::default() }];
    let decided = v1::Decided { index, answers, ..v1::Decided::default() };
    v1::ServerMessage { decided: vec![decided], ..v1::ServerMessage::default() }
}

fn detached() -> v1::ServerMessage {
    let (session_high, session_low) = api::halves(ANN.0);
    let detached = vec![v1::Detached { session_high, session_low, epoch: 2 }];
    v1::ServerMessage { detached, ..v1::ServerMessage::default() }
}

fn not_taken(message: String) -> v1::NotTaken {
    let (session_high, session_low) = api::halves(ANN.0);
    v1::NotTaken { session_high, session_low, message, ..v1::NotTaken::default() }
}

fn hears(world: &mut World, stream: StreamId, message: v1::ServerMessage) {
    world.tell(&Fact::Sent { stream, message: &message });
}

#[test]
fn i27_a_command_of_an_unbound_stream_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        asks(world, if lie { BOBS } else { ANNS }, Kind::KeepAlive);
    });
}

#[test]
fn i27_a_command_of_an_earlier_term_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        if lie {
            world.tell(&Fact::TermOver { node: NODE });
        }
        asks(world, ANNS, Kind::KeepAlive);
    });
}

#[test]
fn i27_a_command_of_the_old_stream_after_an_attach_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        let command = asks(world, ANNS, Kind::Request(RequestNumber(1)));
        attaches(world, ANNS_NEXT, 11);
        let refused = Outcome::Refused(Refusal::WrongEpoch { current: Epoch(2) });
        decides(world, command, 11, if lie { Outcome::NotOwner } else { refused }, None);
    });
}

#[test]
fn i27_an_attach_by_another_client_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        attaches(world, if lie { BOBS } else { ANNS_NEXT }, 11);
    });
}

#[test]
fn i27_an_answer_on_another_stream_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        let command = asks(world, ANNS, Kind::Request(RequestNumber(1)));
        decides(world, command, 11, Outcome::NotOwner, None);
        hears(world, if lie { BOBS } else { ANNS }, answer(1, 11));
    });
}

#[test]
fn i27_a_message_that_leaves_an_answer_out_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        for number in [1, 2] {
            let command = asks(world, ANNS, Kind::Request(RequestNumber(number)));
            decides(world, command, 10 + number, Outcome::NotOwner, None);
            if !lie || number == 2 {
                hears(world, ANNS, answer(number, 10 + number));
            }
        }
    });
}

#[test]
fn i27_a_push_to_the_old_stream_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        attaches(world, ANNS_NEXT, 11);
        hears(world, ANNS, detached());
        hears(world, ANNS_NEXT, answer(0, 11));
        let ended = pushes(world, 12);
        hears(world, if lie { ANNS } else { ANNS_NEXT }, ended);
    });
}

#[test]
fn i27_a_dropped_push_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        let ended = pushes(world, 11);
        hears(world, ANNS, if lie { v1::ServerMessage::default() } else { ended });
    });
}

#[test]
fn i27_an_ended_stream_is_owed_nothing() {
    let mut world = World::new();
    with_a_session(&mut world);
    pushes(&mut world, 11);
    world.tell(&Fact::StreamOver { stream: ANNS });
    assert_eq!(world.checkers.violations(), []);
}

#[test]
fn i27_an_old_stream_that_is_not_told_of_the_attach_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        attaches(world, ANNS_NEXT, 11);
        hears(world, ANNS, if lie { v1::ServerMessage::default() } else { detached() });
    });
}

#[test]
fn i27_a_repeated_open_that_takes_the_session_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        let command = asks(world, ANNS_NEXT, Kind::Open);
        let repeat = Some(Repeat { answered_at: LogicalMs(1), stands: false });
        decides(world, command, 11, Outcome::Opened { epoch: Epoch(1) }, repeat);
        if lie {
            hears(world, ANNS_NEXT, answer(0, 11));
        }
    });
}

#[test]
fn i27_an_end_that_reaches_the_next_session_of_the_same_id_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        world.tell(&Fact::StreamOver { stream: ANNS });
        opens(world, BOBS, 11);
        let ended = pushes(world, 11);
        if lie {
            hears(world, BOBS, ended);
        }
        asks(world, BOBS, Kind::KeepAlive);
    });
}

#[test]
fn i27_a_refusal_on_another_stream_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        let keep_alive = api::keep_alive_to_wire(ANN, Epoch(1), &Seen::default());
        let message = v1::ClientMessage { keep_alives: vec![keep_alive], ..v1::ClientMessage::default() };
        world.tell(&Fact::Said { stream: BOBS, message: &message });
        let refused = v1::ServerMessage { not_taken: vec![not_taken(String::new())], ..v1::ServerMessage::default() };
        hears(world, if lie { ANNS } else { BOBS }, refused);
    });
}

#[test]
fn i27_an_unbounded_send_buffer_is_seen() {
    story("I27", |world, lie| {
        with_a_session(world);
        let keep_alive = api::keep_alive_to_wire(ANN, Epoch(1), &Seen::default());
        let message = v1::ClientMessage { keep_alives: vec![keep_alive], ..v1::ClientMessage::default() };
        world.tell(&Fact::Said { stream: BOBS, message: &message });
        // One item may exceed the bound: the buffer accepts an item while it is below the bound.
        let items = if lie { 3 } else { 1 };
        let refusals = vec![not_taken("x".repeat(OUTBOX_BYTES_MAX - 100)); items];
        hears(world, BOBS, v1::ServerMessage { not_taken: refusals, ..v1::ServerMessage::default() });
    });
}

#[test]
fn i27_a_client_may_open_an_id_again_though_no_node_heard_of_its_end() {
    story("I27", |world, lie| {
        with_a_session(world);
        let close = world.ask(ANN, Action::Close);
        world.log([close]);
        if !lie {
            world.log([open(ANN)]);
        }
        // The node that decided the open has crashed, so only the attach is reported.
        attaches(world, BOBS, 20);
    });
}
