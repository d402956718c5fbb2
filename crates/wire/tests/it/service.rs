//! The service's messages: every variant survives a round trip through bytes. A message with a missing or unknown part is refused, and
//! the error names the part.

use std::fmt::Debug;

use crate::generator::Generator;
use fencepost_core::{
    BadWord, Bound, Epoch, GrantEnd, GrantId, Outcome, Principal, Push, Renewal, Repeat, Reply, ReplyTo, RequestNumber,
    SecretHash, Seen, SessionEnd, SessionId, SessionView,
};
use fencepost_wire::api::{self, admin, observe, watch};
use fencepost_wire::{WallClock, WireError, v1};
use prost::Message;

const ROUNDS: usize = 3_000;

#[test]
fn every_message_survives_a_round_trip() {
    let mut random = Generator::new(7);
    for round in 0..ROUNDS {
        stream_comes_back(&mut random, round);
        views_come_back(&mut random, round);
        events_and_acts_come_back(&mut random, round);
    }
    assert_eq!(random.met.missing_in_service(), Vec::<&str>::new(), "never generated: generate them");
}

fn stream_comes_back(random: &mut Generator, round: usize) {
    let open = random.open();
    // This "hash" is the secret itself, so the comparison shows that the secret arrives unchanged.
    let hash = |secret: &[u8]| SecretHash(secret.try_into().expect("a secret has 32 bytes"));
    let said = carried(&api::open_to_wire(open.session, &open.secret_hash.0.into(), open.ttl, &open.metadata));
    assert_eq!(api::open_from_wire(&said, open.principal.clone(), hash), Ok(open), "round {round}");

    let renewal = random.renewal();
    let heard = match &renewal {
        Renewal::KeepAlive { session, epoch, seen } => {
            api::keep_alive_from_wire(&carried(&api::keep_alive_to_wire(*session, *epoch, seen)))
        }
        Renewal::Attach { session, secret_hash, seen } => {
            let said = carried(&api::attach_to_wire(*session, &secret_hash.0.into(), seen));
            api::attach_from_wire(&said, hash)
        }
    };
    assert_eq!(heard, renewal, "round {round}");

    let request = random.request();
    assert_eq!(api::request_from_wire(carried(&api::request_to_wire(&request))), Ok(request), "round {round}");

    let (session, number) = (random.session(), random.maybe(|g| RequestNumber(g.number().max(1))));
    let repeat = random.maybe(|g| Repeat { answered_at: g.stamp(), stands: g.flag() });
    let reply = Reply { to: ReplyTo::Operation(0), outcome: random.outcome(), repeat };
    let heard = api::answer_from_wire(carried(&api::answer_to_wire(session, number, &reply)));
    assert_eq!(heard, Ok(api::Answer { session, number, outcome: reply.outcome, repeat }), "round {round}");

    let push = random.push();
    assert_eq!(api::push_from_wire(carried(&api::push_to_wire(&push))), Ok(push), "round {round}");
}

fn views_come_back(random: &mut Generator, round: usize) {
    let at = random.read_at();
    let heard = observe::read_at_from_wire(Some(carried(&observe::read_at_to_wire(at.clone()))));
    assert_eq!(heard, Ok(at.clone()), "round {round}");

    let grant = random.grant_view();
    assert_eq!(observe::grant_from_wire(carried(&observe::grant_to_wire(&grant))), Ok(grant), "round {round}");

    let view = random.session_view();
    let heard = observe::session_from_wire(carried(&observe::session_to_wire(&view)));
    let SessionView { record, deadline, grants, waits } = view;
    let session = observe::Session {
        id: record.id,
        principal: record.principal,
        ttl: record.ttl,
        metadata: record.metadata,
        opened_at: record.opened_at,
        renewed_at: record.renewed_at,
        deadline,
        grants,
        waits,
    };
    assert_eq!(heard, Ok(session), "round {round}");
    let id = random.session();
    assert_eq!(observe::session_id_from_wire(carried(&observe::session_id_to_wire(id))), id, "round {round}");

    let waiter = random.waiter_record();
    assert_eq!(observe::waiter_from_wire(carried(&observe::waiter_to_wire(&waiter))), Ok(waiter), "round {round}");
    let freeze = random.freeze_record();
    assert_eq!(observe::freeze_from_wire(carried(&observe::freeze_to_wire(&freeze))), Ok(freeze), "round {round}");
    let rest = random.rest_record();
    assert_eq!(observe::rest_from_wire(carried(&observe::rest_to_wire(&rest))), Ok(rest), "round {round}");
    let semaphore = random.semaphore_record();
    let heard = observe::semaphore_from_wire(carried(&observe::semaphore_to_wire(&semaphore)));
    assert_eq!(heard, Ok(semaphore), "round {round}");

    let explanation = random.explanation(at.stamp);
    let heard = observe::explanation_from_wire(carried(&observe::explanation_to_wire(at.clone(), &explanation)));
    assert_eq!(heard, Ok((at.clone(), explanation)), "round {round}");

    let job = random.job_view(at.stamp);
    let heard = observe::job_from_wire(carried(&observe::job_to_wire(at.clone(), &job)));
    assert_eq!(heard, Ok((at.clone(), job)), "round {round}");

    let wait = (random.session(), random.owner(), random.locks());
    let heard = observe::explained_wait_from_wire(carried(&observe::explained_wait_to_wire(wait.0, &wait.1, &wait.2)));
    assert_eq!(heard, Ok(wait), "round {round}");

    let (name, token) = (random.name(), fencepost_core::Token(random.number()));
    let heard = observe::check_request_from_wire(&carried(&observe::check_request_to_wire(&name, token)));
    assert_eq!(heard, Ok((name, token)), "round {round}");
    let check = random.token_check();
    let heard = observe::check_from_wire(carried(&observe::check_to_wire(at.clone(), check)));
    assert_eq!(heard, Ok((at, check)), "round {round}");

    let counts = random.counts();
    let heard = observe::counts_from_wire(Some(carried(&observe::counts_to_wire(&counts))));
    assert_eq!(heard, Ok(counts), "round {round}");
}

fn events_and_acts_come_back(random: &mut Generator, round: usize) {
    let position = random.position();
    assert_eq!(watch::position_from_wire(carried(&watch::position_to_wire(position))), position, "round {round}");
    let event = random.positioned_event();
    assert_eq!(watch::event_from_wire(carried(&watch::event_to_wire(&event))), Ok(event), "round {round}");

    let act = random.admin();
    let said = carried(&admin::act_to_wire(&act.reason, &act.act));
    assert_eq!(admin::act_from_wire(said, act.by.clone()), Ok(act), "round {round}");
    let (at, outcome) =
        (observe::ReadAt { wall_clock_ms: 0, wall_clock: WallClock::NONE, ..random.read_at() }, random.outcome());
    let heard = admin::acted_from_wire(carried(&admin::acted_to_wire(at.clone(), &outcome)));
    assert_eq!(heard, Ok((at, outcome)), "round {round}");
}

#[test]
fn observers_see_nothing_of_a_session_that_is_not_for_them() {
    let mut random = Generator::new(8);
    for _ in 0..100 {
        let (view, mut other) = (random.session_view(), random.session_view());
        let hash = view.record.secret_hash;
        // Two sessions that agree only in the fields for observers.
        let shown = view.record.clone();
        other.record.id = shown.id;
        other.record.principal = shown.principal;
        other.record.ttl = shown.ttl;
        other.record.metadata = shown.metadata;
        other.record.opened_at = shown.opened_at;
        other.record.renewed_at = shown.renewed_at;
        let other = SessionView { record: other.record, ..view };
        assert_ne!(other.record.secret_hash, hash);
        assert_eq!(observe::session_to_wire(&other), observe::session_to_wire(&view));
    }
}

#[test]
fn an_empty_message_is_refused() {
    let tester = Principal::new("tester").unwrap();
    refused("open", api::open_from_wire(&v1::OpenSession::default(), tester.clone(), |_| SecretHash([7; 32])));
    refused("request", api::request_from_wire(v1::Request::default()));
    refused("outcome", api::outcome_from_wire(None));
    refused("outcome", api::outcome_from_wire(Some(v1::Outcome::default())));
    refused("answer", api::answer_from_wire(v1::Answer::default()));
    refused("push", api::push_from_wire(v1::Push::default()));
    refused("read at", observe::read_at_from_wire(None));
    refused("grant", observe::grant_from_wire(v1::GrantView::default()));
    refused("session", observe::session_from_wire(v1::SessionView::default()));
    refused("waiter", observe::waiter_from_wire(v1::WaiterRecord::default()));
    refused("freeze", observe::freeze_from_wire(v1::FreezeRecord::default()));
    refused("rest", observe::rest_from_wire(v1::RestRecord::default()));
    refused("semaphore", observe::semaphore_from_wire(v1::SemaphoreRecord::default()));
    refused("explanation", observe::explanation_from_wire(v1::ExplainResponse::default()));
    refused("job", observe::job_from_wire(v1::GetJobResponse::default()));
    refused("a job's name and key", observe::job_id_from_wire(None));
    refused("explained wait", observe::explained_wait_from_wire(v1::ExplainedWait::default()));
    refused("check", observe::check_request_from_wire(&v1::CheckRequest::default()));
    refused("check", observe::check_from_wire(v1::CheckResponse::default()));
    refused("counts", observe::counts_from_wire(None));
    refused("event", watch::event_from_wire(v1::WatchEvent::default()));
    refused("act", admin::act_from_wire(v1::ActRequest::default(), tester));
    refused("acted", admin::acted_from_wire(v1::ActResponse::default()));
}

#[test]
fn a_missing_choice_is_refused_by_name() {
    use v1::watch_event::What;
    let position = Some(v1::EventPosition::default());
    let session = Some(v1::SessionId::default());
    let held = Some(observe::rest_to_wire(&Generator::new(9).rest_record()).held.unwrap());
    let request = || v1::RequestFacts { session, wants: held.clone(), ..v1::RequestFacts::default() };
    let event =
        |what| watch::event_from_wire(v1::WatchEvent { position, stamp_ms: 1, wall_clock_ms: None, what: Some(what) });
    let granted = |request| event(What::Granted(v1::GrantedEvent { request, ..v1::GrantedEvent::default() }));
    let administered = |act| {
        let by = "root".to_owned();
        event(What::Administered(v1::AdministeredEvent { by, act, ..v1::AdministeredEvent::default() }))
    };

    assert!(
        granted(Some(request())).is_ok(),
        "what is whole is taken, so the refusals below are about what is missing"
    );
    assert_eq!(granted(None), unknown("the request of an event"));
    assert_eq!(granted(Some(v1::RequestFacts { session: None, ..request() })), unknown("a session's id"));
    assert_eq!(
        granted(Some(v1::RequestFacts { wants: None, ..request() })),
        unknown("the locks or permits of a grant")
    );
    let nothing_held = Some(v1::Held { kind: None });
    assert_eq!(
        granted(Some(v1::RequestFacts { wants: nothing_held, ..request() })),
        unknown("the locks or permits of a grant")
    );
    let not_granted = v1::NotGrantedEvent { request: Some(request()), outcome: None };
    assert_eq!(event(What::NotGranted(not_granted)), unknown("an outcome"));
    assert_eq!(event(What::SessionOpened(v1::SessionOpenedEvent::default())), unknown("a session's id"));
    assert_eq!(administered(None), unknown("the act of an event"));
    let froze = v1::administered_event::Act::Froze(v1::Freeze::default());
    assert_eq!(administered(Some(froze)), unknown("the scope of a freeze"));
    let nowhere = v1::WatchEvent::default();
    assert_eq!(watch::event_from_wire(nowhere), unknown("the position of an event"));

    let explained = |change: &dyn Fn(&mut v1::ExplainResponse)| {
        let mut response = whole_explanation();
        change(&mut response);
        observe::explanation_from_wire(response)
    };
    assert!(explained(&|_| ()).is_ok(), "a complete explanation is taken");
    assert_eq!(explained(&|it| it.at = None), unknown("the log position of an answer"));
    assert_eq!(explained(&|it| it.holders[0].holder = None), unknown("a holder"));
    assert_eq!(
        explained(&|it| it.holders[0].holder.as_mut().unwrap().takes = None),
        unknown("the mode or permits of a holder")
    );
    assert_eq!(explained(&|it| it.queue[0].waiter = None), unknown("a waiting request"));
    assert_eq!(explained(&|it| it.queue[0].wants = None), unknown("the mode or permits of a waiting request"));
    assert_eq!(explained(&|it| it.chain[0].by = None), unknown("the blocker of a request"));
    assert_eq!(explained(&|it| it.rests[0].held = None), unknown("the locks or permits of a grant"));
    assert_eq!(explained(&|it| it.freezes[0].scope = None), unknown("the scope of a freeze"));
}

#[test]
fn an_unknown_number_of_an_enumeration_is_refused_by_name() {
    // Unspecified, a number of a later version, and an impossible one.
    for number in [0, 99, -1] {
        let mut response = whole_explanation();
        response.queue[0].wants = Some(v1::queue_view::Wants::Mode(number));
        assert_eq!(observe::explanation_from_wire(response), unknown("a mode"));

        let mut response = whole_explanation();
        response.holders[0].holder.as_mut().unwrap().takes = Some(v1::holder::Takes::Mode(number));
        assert_eq!(observe::explanation_from_wire(response), unknown("a mode"));

        let mut grant = observe::grant_to_wire(&Generator::new(10).grant_view());
        let locks = vec![v1::Lock { name: "orders".to_owned(), mode: number }];
        grant.grant.as_mut().unwrap().held = Some(v1::Held { kind: Some(v1::held::Kind::Locks(v1::Locks { locks })) });
        assert_eq!(observe::grant_from_wire(grant), unknown("a lock mode"));
    }
}

#[test]
fn an_end_that_is_missing_or_of_a_later_version_is_refused_by_name() {
    let session_unknown = "the reason why a session ended";
    let grant_unknown = "the reason why a grant ended";
    let of_later = || v1::SessionEnd { how: None };
    for how in [None, Some(of_later())] {
        let ended = v1::SessionEndedEvent { session: Some(v1::SessionId::default()), how };
        let what = Some(v1::watch_event::What::SessionEnded(ended));
        let position = Some(v1::EventPosition::default());
        let event = v1::WatchEvent { position, what, ..v1::WatchEvent::default() };
        assert_eq!(watch::event_from_wire(event), unknown(session_unknown));
    }
    let mut push = api::push_to_wire(&Push::SessionEnded { session: SessionId(1), how: SessionEnd::Expired });
    push.what = Some(v1::push::What::SessionEnded(of_later()));
    assert_eq!(api::push_from_wire(push), unknown(session_unknown));

    let with_its_session = v1::GrantEnd { how: Some(v1::grant_end::How::Session(of_later())) };
    for (how, what) in [
        (None, grant_unknown),
        (Some(v1::GrantEnd { how: None }), grant_unknown),
        (Some(with_its_session), session_unknown),
    ] {
        let mut push = api::push_to_wire(&Push::Lost { session: SessionId(1), grant: GrantId(2), how: GrantEnd::Ttl });
        push.what = Some(v1::push::What::Lost(v1::LostGrant { grant: 2, how }));
        assert_eq!(api::push_from_wire(push), unknown(what));
    }
    let outcome = Some(v1::Outcome { kind: Some(v1::outcome::Kind::Expired(v1::GrantEnd { how: None })) });
    let response = v1::ActResponse { outcome, ..v1::ActResponse::default() };
    assert_eq!(admin::acted_from_wire(response), unknown(grant_unknown));
}

#[test]
fn a_word_that_is_not_valid_is_refused_with_its_bound() {
    let open = api::open_to_wire(
        SessionId(1),
        &[7; 32].into(),
        fencepost_core::Ttl::new(10_000).unwrap(),
        &fencepost_core::Metadata::default(),
    );
    let opened = |change: fn(&mut v1::OpenSession)| {
        let mut open = open.clone();
        change(&mut open);
        api::open_from_wire(&open, Principal::new("payments").unwrap(), |_| SecretHash([7; 32]))
    };
    assert!(opened(|_| {}).is_ok());
    let at_once = opened(|open| open.ttl_ms = 999);
    assert_eq!(at_once, bad_word("a time to live", BadWord::Bound(Bound::TtlLeast)));
    let long = opened(|open| open.metadata = vec![0; 4_097]);
    assert_eq!(long, bad_word("metadata", BadWord::Bound(Bound::MetadataBytes)));
    let short = opened(|open| open.secret = vec![7; 31]);
    assert!(matches!(short, Err(WireError::Damaged { what: "the secret of a session", .. })));

    let by = Principal::new("root").unwrap();
    let act = |reason: String, name: &str, limit| {
        let act = Some(v1::act_request::Act::SetLimit(v1::SetLimit { name: name.to_owned(), limit }));
        admin::act_from_wire(v1::ActRequest { reason, act }, by.clone())
    };
    assert!(act(String::new(), "pool", None).is_ok(), "an administrator need not give a reason");
    assert_eq!(act("r".repeat(1_025), "pool", None), bad_word("a reason", BadWord::Bound(Bound::ReasonBytes)));
    assert_eq!(act(String::new(), "/pool/", Some(1)), bad_word("a resource name", BadWord::EmptySegment));
    assert_eq!(act(String::new(), "pool", Some(0)), bad_word("a number of permits", BadWord::Zero));

    let told = |reason: &str| {
        let evicted = v1::SessionEnd { how: Some(v1::session_end::How::Evicted(reason.to_owned())) };
        let what = Some(v1::push::What::SessionEnded(evicted));
        api::push_from_wire(v1::Push { what, ..v1::Push::default() }).map(drop)
    };
    assert_eq!(told(&"r".repeat(128)), Ok(()));
    let what = "a reason that clients are told";
    assert_eq!(told(&"r".repeat(129)), bad_word(what, BadWord::Bound(Bound::ToldReasonBytes)));
    assert_eq!(told("two\nlines"), bad_word(what, BadWord::ControlCharacter));
}

#[test]
fn an_answer_without_a_number_belongs_to_no_request() {
    let reply = Reply { to: ReplyTo::Renewal(0), outcome: Outcome::Renewed, repeat: None };
    let said = api::answer_to_wire(SessionId(3), None, &reply);
    assert_eq!(said.number, 0, "as lock.proto says");
    assert_eq!(api::answer_from_wire(said).unwrap().number, None);
    let (session, epoch) = (SessionId(u128::MAX - 1), Epoch(2));
    let said = api::keep_alive_to_wire(session, epoch, &Seen::default());
    assert_eq!(api::whole(said.session_high, said.session_low), session.0);
    assert_eq!(api::halves(session.0), (said.session_high, said.session_low));
}

#[test]
fn changed_bytes_never_panic() {
    let mut random = Generator::brief(11);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..30_000 {
        let by = Principal::new("root").unwrap();
        let heard = match round % 6 {
            0 => {
                let said = api::request_to_wire(&random.request());
                changed(&mut random, &said).map(|it| api::request_from_wire(it).err())
            }
            1 => {
                let said = api::push_to_wire(&random.push());
                changed(&mut random, &said).map(|it| api::push_from_wire(it).err())
            }
            2 => {
                let at = random.read_at();
                let said = observe::explanation_to_wire(at.clone(), &random.explanation(at.stamp));
                changed(&mut random, &said).map(|it| observe::explanation_from_wire(it).err())
            }
            3 => {
                let said = observe::session_to_wire(&random.session_view());
                changed(&mut random, &said).map(|it| observe::session_from_wire(it).err())
            }
            4 => {
                let act = random.admin();
                let said = admin::act_to_wire(&act.reason, &act.act);
                changed(&mut random, &said).map(|it| admin::act_from_wire(it, by).err())
            }
            _ => {
                let said = watch::event_to_wire(&random.positioned_event());
                changed(&mut random, &said).map(|it| watch::event_from_wire(it).err())
            }
        };
        match heard {
            Some(None) => taken += 1,
            Some(Some(_)) => refused += 1,
            // Protobuf could not read it, so gRPC would refuse it before.
            None => {}
        }
    }
    assert!(taken > 1_000 && refused > 1_000, "too few of one kind: {taken} taken, {refused} refused");
}

/// The message with some of its bytes changed, if Protobuf still reads it.
fn changed<M: Message + Default>(random: &mut Generator, message: &M) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            _ => bytes.truncate(at),
        }
    }
    M::decode(bytes.as_slice()).ok()
}

/// The message after a round trip through bytes.
fn carried<M: Message + Default + PartialEq + Debug>(message: &M) -> M {
    let arrived = M::decode(message.encode_to_vec().as_slice()).expect("encoded bytes can be decoded");
    assert_eq!(&arrived, message);
    arrived
}

/// An explanation with at least one element in every list.
fn whole_explanation() -> v1::ExplainResponse {
    let mut random = Generator::brief(12);
    loop {
        let at = random.read_at();
        let explanation = random.explanation(at.stamp);
        let lists = [
            explanation.holders.len(),
            explanation.rests.len(),
            explanation.freezes.len(),
            explanation.queue.len(),
            explanation.chain.len(),
        ];
        if lists.iter().all(|len| *len > 0) {
            return observe::explanation_to_wire(at, &explanation);
        }
    }
}

fn refused<T: Debug>(what: &str, heard: Result<T, WireError>) {
    assert!(heard.is_err(), "an empty {what} was taken: {heard:?}");
}

fn unknown<T>(what: &'static str) -> Result<T, WireError> {
    Err(WireError::Unknown { what })
}

fn bad_word<T>(what: &'static str, source: BadWord) -> Result<T, WireError> {
    Err(WireError::BadWord { what, source })
}

#[test]
fn a_listed_job_has_no_bytes_of_the_application() {
    let mut random = Generator::new(7);
    let mut with_bytes = 0;
    for _ in 0..200 {
        let job = random.job_record();
        let listed = observe::job_record_from_wire(carried(&observe::listed_job_to_wire(&job))).unwrap();
        with_bytes += usize::from(job.bytes() > listed.bytes());
        let (texts, bytes_max) = (job.name.as_str().len() + job.key.as_str().len(), 600);
        assert!(observe::listed_job_to_wire(&job).encoded_len() < texts + bytes_max, "{job:?}");
        assert_eq!((listed.attempts, listed.until), (job.attempts, job.until));
        assert_eq!(listed.completion.is_some(), job.completion.is_some());
        assert_eq!(listed.checkpoint.is_some(), job.checkpoint.is_some());
    }
    assert!(with_bytes > 50, "{with_bytes} of 200 jobs had bytes");
}
