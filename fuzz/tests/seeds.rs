//! The inputs that fuzzing begins with: each is what the code makes, and each passes its check. Runs on the stable compiler, without the
//! fuzzing engine.
//!
//! A changed format or rule changes the seeds. Make them again by
//!
//! ```text
//! FENCEPOST_WRITE_SEEDS=1 cargo test --manifest-path fuzz/Cargo.toml
//! ```

#[path = "../../crates/wire/tests/it/forge/mod.rs"]
mod forge;
#[path = "../../crates/wire/tests/it/generator/mod.rs"]
mod generator;

use std::collections::BTreeMap;
use std::path::PathBuf;

use fencepost_core::{
    Acquire, Action, Batch, Epoch, GrantId, KnownVersions, Lock, LockMode, LockState, Locks, LogicalMs, Metadata, Name,
    Operation, Request, RequestNumber, Seen, SessionId, Terms, Ttl, Wait,
};
use fencepost_fuzz::client_messages::Step;
use fencepost_fuzz::{client_messages, fence_header, frames, log_entries, snapshots};
use fencepost_wire::{Entry, SnapshotHeader, api, decode, encode, put_frame, v1};
use generator::Generator;
use prost::Message;
use prost::bytes::BytesMut;

/// All seeds together. They are part of every clone of the repository.
const SEEDS_BYTES_MAX: usize = 200_000;

type Seeds = BTreeMap<String, Vec<u8>>;

#[test]
fn seeds_of_frames_are_as_made_and_pass() {
    let mut seeds = Seeds::new();
    let streams = [vec![begin()], conversation(), vec![v1::ClientMessage::default(); 3]];
    for (name, messages) in ["begin", "conversation", "empty-messages"].into_iter().zip(streams) {
        let mut bytes = BytesMut::from(&[6][..]);
        messages.iter().for_each(|message| put_frame(message, &mut bytes));
        seeds.insert(name.to_owned(), bytes.to_vec());
    }
    seeds.insert("too-long".to_owned(), vec![0, 0xFF, 0xFF, 0xFF, 0xFF, 1, 2]);
    seeds.insert("no-message".to_owned(), vec![0, 0, 0, 0, 2, 0xFF, 0xFF]);
    compare("frames", seeds, frames::check);
}

#[test]
fn seeds_of_client_messages_are_as_made_and_pass() {
    let steps = |messages: &[(u8, v1::ClientMessage)]| {
        let step = |(stream, message): &(u8, v1::ClientMessage)| {
            let message = message.encode_to_vec();
            Step { stream: *stream, hangs_up: false, passes: 2, applies: true, message }
        };
        messages.iter().map(step).collect::<Vec<_>>()
    };
    let bytes = |steps: &[Step]| steps.iter().flat_map(Step::bytes).collect::<Vec<_>>();
    let mut seeds = Seeds::new();

    let alone: Vec<_> = conversation().into_iter().map(|message| (0, message)).collect();
    seeds.insert("one-client".to_owned(), bytes(&steps(&alone)));

    // Two sessions want one name, the holder falls silent, and the other is granted it.
    let (one, other) = (session_of(1), session_of(2));
    let contended = steps(&[
        (0, opens(1)),
        (1, opens(2)),
        (0, asks(&[(one, 1, acquire("a", LockMode::Exclusive, Wait::No))])),
        (1, asks(&[(other, 1, acquire("a", LockMode::Exclusive, Wait::Forever))])),
        (1, keeps_alive(2)),
        (1, keeps_alive(2)),
    ]);
    let silent = contended.iter().cloned().enumerate().map(|(at, step)| match at {
        4 | 5 => Step { passes: 5, ..step },
        _ => step,
    });
    seeds.insert("silent-holder".to_owned(), bytes(&silent.collect::<Vec<_>>()));
    let one_entry = contended.iter().cloned().map(|step| Step { applies: false, passes: 0, ..step });
    seeds.insert("one-entry".to_owned(), bytes(&one_entry.collect::<Vec<_>>()));

    // A session moves to another stream with its secret. A client without the secret tries to attach it, and to act for it.
    let closes =
        |epoch| v1::ClientMessage { requests: vec![request(one, epoch, 9, Action::Close)], ..Default::default() };
    let moved = steps(&[
        (0, opens(1)),
        (1, attaches(1, 1)),
        (2, attaches(1, 2)),
        (2, closes(2)),
        (0, asks(&[(one, 1, acquire("a", LockMode::Shared, Wait::No))])),
        (1, closes(2)),
    ]);
    seeds.insert("moved-session".to_owned(), bytes(&moved));
    let hung_up = steps(&[(0, opens(1)), (0, attaches(1, 1)), (0, keeps_alive(1))]);
    let hung_up = hung_up.into_iter().map(|step| Step { hangs_up: true, ..step });
    seeds.insert("hung-up".to_owned(), bytes(&hung_up.collect::<Vec<_>>()));

    // Every kind of request, by a session that is open.
    let mut random = Generator::brief(3);
    let mut messages = vec![(0, opens(1))];
    for number in 1..=40 {
        let action = random.request().action;
        messages.push((0, asks(&[(one, number, action)])));
    }
    seeds.insert("every-request".to_owned(), bytes(&steps(&messages)));
    compare("client_messages", seeds, client_messages::check);
}

#[test]
fn seeds_of_log_entries_are_as_made_and_pass() {
    let mut seeds = Seeds::new();
    seeds.insert("golden-v1".to_owned(), golden("v1-entry.bin"));
    let mut random = Generator::brief(11);
    for number in 0..8 {
        seeds.insert(format!("random-{number}"), encode(&random.entry()));
    }
    seeds.insert("story".to_owned(), encode(&story()));
    // The commands of the golden file, by sessions that exist: so they are carried out and not refused.
    let mut entry = decode(&golden("v1-entry.bin"), KnownVersions::THIS_BUILD).expect("it is golden");
    let open = story().batch.operations.swap_remove(0);
    for (number, operation) in (1..).zip(&mut entry.batch.operations) {
        if let Operation::Request(request) = operation {
            (request.session, request.epoch, request.seen) = (session_of(1), Epoch(1), Seen::default());
            request.number = RequestNumber(number);
        }
    }
    entry.batch.operations.insert(0, open);
    seeds.insert("carried-out".to_owned(), encode(&entry));
    compare("log_entries", seeds, log_entries::check);
}

#[test]
fn seeds_of_snapshots_are_as_made_and_pass() {
    let mut seeds = Seeds::new();
    seeds.insert("golden-v1".to_owned(), golden("v1-snapshot.bin"));
    let mut state = LockState::new(0);
    let Entry { stamp, batch, .. } = story();
    state.apply(stamp, batch);
    let header = SnapshotHeader { members: forge::some_members(), wall_clock: forge::some_wall_clock(), ..SnapshotHeader::default() };
    seeds.insert("story".to_owned(), forge::write(&header, &state.records().collect::<Vec<_>>()).concat());
    seeds.insert(
        "empty-state".to_owned(),
        forge::write(&header, &[LockState::new(0).records().next().expect("a header")]).concat(),
    );
    // The same without header and checksums, which the target adds.
    let raw = |records: &[fencepost_core::Record]| {
        let snapshot = forge::write(&SnapshotHeader::default(), records).concat();
        let head = forge::header_bytes(&snapshot);
        let raw_bytes = u32::from_le_bytes(snapshot[head + 8..head + 12].try_into().expect("four bytes"));
        let packed = &snapshot[head + 20..snapshot.len() - 24];
        lz4_flex::block::decompress(packed, raw_bytes as usize).expect("the writer has just packed it")
    };
    seeds.insert("records-of-story".to_owned(), raw(&state.records().collect::<Vec<_>>()));
    let mut random = Generator::brief(12);
    for number in 0..8 {
        seeds.insert(format!("records-random-{number}"), raw(&[random.record(), random.record()]));
    }
    compare("snapshots", seeds, snapshots::check);
}

#[test]
fn seeds_of_fence_header_are_as_made_and_pass() {
    let texts = [
        ("token", "42"),
        ("greatest", "9007199254740991"),
        ("read", "42, 17;read=\"price:3\""),
        ("write", "42, 43;write=\"wallet:8\""),
        ("display", "42, 17;read=%\"pric%65 %c3%bc\""),
        ("escaped", "42, 17;read=\"a \\\"b\\\" \\\\\""),
        ("lines", "42\n17;read=\"/b/c\"\n18;write=\"a\""),
        ("many", "42, 1;read=\"a\", 2;write=\"/b/c\", 3;write=\"wallet:8\", 4;read=\"d\""),
        ("refused", "42, 43"),
    ];
    let seeds = texts.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    compare("fence_header", seeds.into(), fence_header::check);
}

#[test]
fn seeds_are_small() {
    let mut bytes = 0;
    for target in std::fs::read_dir(directory()).expect("the seeds are there") {
        let files = std::fs::read_dir(target.expect("it can be read").path()).expect("each target has a directory");
        bytes += files.map(|file| file.and_then(|file| file.metadata()).expect("it can be read").len()).sum::<u64>();
    }
    assert!(bytes <= SEEDS_BYTES_MAX as u64, "the seeds have {bytes} bytes: leave some out");
}

// ---- Comparing

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds")
}

fn golden(name: &str) -> Vec<u8> {
    let path = directory().join("../../crates/wire/tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The files of a target are these seeds and inputs that once failed (`found-...`), and all of them pass.
fn compare(target: &str, seeds: Seeds, check: fn(&[u8])) {
    let directory = directory().join(target);
    if std::env::var_os("FENCEPOST_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(&directory).expect("the directory can be made");
        for (name, bytes) in &seeds {
            std::fs::write(directory.join(name), bytes).expect("the directory is there");
        }
    }
    let mut files = Seeds::new();
    for file in std::fs::read_dir(&directory).expect("each target has seeds") {
        let path = file.expect("it can be read").path();
        let name = path.file_name().expect("it has one").to_string_lossy().into_owned();
        files.insert(name, std::fs::read(&path).expect("it can be read"));
    }
    files.values().for_each(|bytes| check(bytes));
    files.retain(|name, _| !name.starts_with("found-"));
    assert!(
        files == seeds,
        "the seeds of {target} are not what the code makes: the top of this test says how to make them again"
    );
}

// ---- What clients say

fn begin() -> v1::ClientMessage {
    let begin = v1::StreamBegin { client: "fuzz".to_owned(), efficiency: false };
    v1::ClientMessage { begin: Some(begin), ..Default::default() }
}

/// A client that opens a session, takes a lock, keeps it alive and gives it back.
fn conversation() -> Vec<v1::ClientMessage> {
    let session = session_of(1);
    vec![
        v1::ClientMessage { begin: begin().begin, ..opens(1) },
        asks(&[
            (session, 1, acquire("wallet:7", LockMode::Exclusive, Wait::Forever)),
            (session, 2, acquire("/a/b", LockMode::Shared, Wait::No)),
        ]),
        keeps_alive(1),
        asks(&[(session, 3, Action::Release { grant: GrantId(1), report: None }), (session, 4, Action::Close)]),
    ]
}

fn session_of(number: u8) -> SessionId {
    SessionId(u128::from(number))
}

fn opens(number: u8) -> v1::ClientMessage {
    let ttl = Ttl::new(20_000).expect("a usual one");
    let open = api::open_to_wire(session_of(number), &[number; 32].into(), ttl, &Metadata::default());
    v1::ClientMessage { opens: vec![open], ..Default::default() }
}

fn attaches(number: u8, secret: u8) -> v1::ClientMessage {
    let attach = api::attach_to_wire(session_of(number), &[secret; 32].into(), &Seen::default());
    v1::ClientMessage { attaches: vec![attach], ..Default::default() }
}

fn keeps_alive(number: u8) -> v1::ClientMessage {
    let keep_alive = api::keep_alive_to_wire(session_of(number), Epoch(1), &Seen::default());
    v1::ClientMessage { keep_alives: vec![keep_alive], ..Default::default() }
}

fn asks(asked: &[(SessionId, u64, Action)]) -> v1::ClientMessage {
    let requests = asked.iter().map(|(session, number, action)| request(*session, 1, *number, action.clone()));
    v1::ClientMessage { requests: requests.collect(), ..Default::default() }
}

fn request(session: SessionId, epoch: u64, number: u64, action: Action) -> v1::Request {
    let (epoch, number, seen) = (Epoch(epoch), RequestNumber(number), Seen::default());
    api::request_to_wire(&Request { session, epoch, number, seen, action })
}

fn acquire(name: &str, mode: LockMode, wait: Wait) -> Action {
    let name = Name::new(name).expect("a short name");
    Action::Acquire(Acquire {
        locks: Locks::from_buf([Lock { name, mode }]),
        owner: None,
        wait,
        terms: Terms::default(),
    })
}

/// An entry that opens two sessions, of which one holds what the other waits for.
fn story() -> Entry {
    let open = |number: u8| {
        let principal = fencepost_core::Principal::new("fuzz").expect("a short word");
        let hash = |_: &[u8]| fencepost_core::SecretHash([number; 32]);
        Operation::Open(api::open_from_wire(&opens(number).opens[0], principal, hash).expect("it was just made"))
    };
    let ask = |number: u8, action| {
        let (session, epoch, seen) = (session_of(number), Epoch(1), Seen::default());
        Operation::Request(Request { session, epoch, number: RequestNumber(1), seen, action })
    };
    let operations = vec![
        open(1),
        open(2),
        ask(1, acquire("wallet:7", LockMode::Exclusive, Wait::No)),
        ask(2, acquire("wallet:7", LockMode::Exclusive, Wait::Forever)),
    ];
    Entry { stamp: LogicalMs(1_000), term: 1, batch: Batch { operations, ..Batch::default() }, ..Entry::default() }
}
