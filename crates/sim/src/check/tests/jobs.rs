//! I26: each lie about a job is found.

use fencepost_core::{
    ActFacts, JobBytes, JobFact, JobKey, JobReport, JobTerms, Keep, LogicalMs, Refusal, SessionEnd, Verdict,
};

use super::*;

fn key(text: &str) -> JobKey {
    JobKey::new(text).expect("valid")
}

fn bytes(text: &str) -> JobBytes {
    JobBytes::new(text.as_bytes()).expect("short")
}

fn keyed(text: &str) -> Action {
    let job = Some(JobTerms { key: key(text), keep: Keep::new(60_000).expect("valid") });
    acquire(&["a"], LockMode::Exclusive, None, Terms { job, ..Terms::default() })
}

fn report(grant: GrantId, verdict: Verdict) -> Action {
    Action::Release { grant, report: Some(Box::new(JobReport { verdict, bytes: bytes("result") })) }
}

fn admin(act: Act) -> Operation {
    let (by, reason) = (Principal::new("root").expect("valid"), Reason::new("why").expect("valid"));
    Operation::Admin(Admin { by, reason, act })
}

impl World {
    /// The session gets the job, at once or as the successor of one that is about to give it back.
    fn takes(&mut self, session: SessionId, text: &str) -> GrantId {
        let take = self.ask(session, keyed(text));
        granted(&self.log([take]))
    }

    fn does(&mut self, session: SessionId, action: Action) -> LoggedEntry {
        let operation = self.ask(session, action);
        self.log([operation])
    }

    fn does_or_lies(
        &mut self,
        session: SessionId,
        action: Action,
        lie: bool,
        change: impl FnOnce(&mut LoggedEntry),
    ) -> LoggedEntry {
        let operation = self.ask(session, action);
        self.log_or_lie([operation], lie, change)
    }

    /// The log has grown, and the position is that of its last entry.
    fn reads(&mut self, text: &str, change: impl FnOnce(&mut Option<fencepost_core::JobRecord>)) {
        let mut view = self.state.job(&name("a"), &key(text));
        change(&mut view.record);
        let (position, stamp) = (self.position, view.stamp);
        self.tell(&Fact::JobRead { position, stamp, name: &name("a"), key: &key(text), record: view.record.as_ref() });
    }
}

fn job_facts(entry: &mut LoggedEntry) -> &mut JobFact {
    let events = entry.effects.events.iter_mut().rev();
    let mut facts = events.filter_map(|event| if let Event::Job { what, .. } = event { Some(what) } else { None });
    facts.next().expect("something happened to a job")
}

#[test]
fn i26_a_second_completion_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        let first = world.does(ANN, report(grant, Verdict::Succeeded));
        // It is sent again, under a new number. The lie is that it completes the job again.
        world.does_or_lies(ANN, report(grant, Verdict::Succeeded), lie, |again| {
            let completed = |event: &Event| matches!(event, Event::Job { what: JobFact::Completed { .. }, .. });
            again.effects.events.extend(first.effects.events.into_iter().filter(completed));
        });
    });
}

#[test]
fn i26_a_completion_by_a_grant_that_has_ended_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, Action::Begin { grant });
        world.does(ANN, Action::Release { grant, report: None });
        world.does_or_lies(ANN, report(grant, Verdict::Succeeded), lie, |late| {
            let completed = Outcome::Completed { token: Some(Token(grant.0)), succeeded: true };
            late.effects.replies[0].outcome = completed;
        });
    });
}

#[test]
fn i26_a_completion_that_no_request_asked_for_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does_or_lies(ANN, Action::Begin { grant }, lie, |begun| {
            let what = JobFact::Completed { token: Some(Token(grant.0)), succeeded: true };
            begun.effects.events.push(Event::Job { name: name("a"), key: key("1"), what });
        });
    });
}

#[test]
fn i26_a_completion_that_is_refused_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does_or_lies(ANN, report(grant, Verdict::Succeeded), lie, |entry| {
            entry.effects.events.clear();
            entry.effects.replies[0].outcome = Outcome::Refused(Refusal::Bound(fencepost_core::Bound::JobsPerName));
        });
    });
}

#[test]
fn i26_a_completed_answer_with_another_token_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, report(grant, Verdict::Failed));
        world.does_or_lies(BOB, keyed("1"), lie, |entry| {
            entry.effects.replies[0].outcome = Outcome::Completed { token: Some(Token(77)), succeeded: false };
        });
    });
}

#[test]
fn i26_a_grant_after_the_completion_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, report(grant, Verdict::Succeeded));
        let (ann, bob) = (if lie { "2" } else { "1" }, world.numbers.get(&BOB).copied().unwrap_or(0) + 1);
        // The lie: the request was for the completed job, and was granted as one for another key is.
        let mut entry = world.apply([request(BOB, bob, keyed(ann))]);
        entry.batch.operations = vec![request(BOB, bob, keyed("1"))];
        world.tell(&Fact::Logged(&entry));
    });
}

#[test]
fn i26_a_waiter_that_is_left_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(BOB, keyed("1"));
        world.does_or_lies(ANN, report(grant, Verdict::Succeeded), lie, |entry| {
            entry.effects.events.retain(|event| !matches!(event, Event::NotGranted { .. }));
            entry.effects.pushes.clear();
        });
    });
}

#[test]
fn i26_a_waiter_that_is_granted_after_the_completion_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(BOB, keyed("1"));
        world.does_or_lies(ANN, report(grant, Verdict::Succeeded), lie, |entry| {
            for event in &mut entry.effects.events {
                if let Event::NotGranted { request, .. } = event {
                    let request = request.clone();
                    *event = Event::Granted { request, grant: GrantId(500), token: Token(500), count: 1 };
                }
            }
        });
    });
}

#[test]
fn i26_an_attempt_number_that_comes_twice_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, report(grant, Verdict::Open));
        let grant = world.takes(BOB, "1");
        world.does_or_lies(BOB, Action::Begin { grant }, lie, |entry| {
            entry.effects.replies[0].outcome = Outcome::Begun { attempt: 1 };
            *job_facts(entry) = JobFact::Begun { grant, attempt: 1 };
        });
    });
}

#[test]
fn i26_a_second_begin_with_another_number_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, Action::Begin { grant });
        world.does_or_lies(ANN, Action::Begin { grant }, lie, |entry| {
            entry.effects.replies[0].outcome = Outcome::Begun { attempt: 2 };
        });
    });
}

#[test]
fn i26_a_grant_that_counts_as_an_attempt_is_seen() {
    story("I26", |world, lie| {
        let take = world.ask(ANN, keyed("1"));
        world.log_or_lie([take], lie, |entry| {
            let grant = granted(entry);
            let what = JobFact::Begun { grant, attempt: 1 };
            entry.effects.events.push(Event::Job { name: name("a"), key: key("1"), what });
        });
    });
}

#[test]
fn i26_a_checkpoint_of_another_job_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        let operation = world.ask(ANN, Action::Checkpoint { grant, bytes: bytes("half") });
        world.log_or_lie([operation], lie, |entry| {
            for event in &mut entry.effects.events {
                if let Event::Job { key: its, what: JobFact::Checkpointed { .. }, .. } = event {
                    *its = key("2");
                }
            }
        });
    });
}

#[test]
fn i26_an_old_checkpoint_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        for text in ["a third", "half"] {
            world.does(ANN, Action::Checkpoint { grant, bytes: bytes(text) });
        }
        world.reads("1", |record| {
            if let (true, Some(checkpoint)) = (lie, record.as_mut().and_then(|record| record.checkpoint.as_mut())) {
                checkpoint.bytes = bytes("a third");
            }
        });
    });
}

#[test]
fn i26_a_read_that_forgot_a_job_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, report(grant, Verdict::Succeeded));
        world.reads("1", |record| *record = record.take().filter(|_| !lie));
        // After its time it counts as gone.
        world.log([admin(Act::ForgetJob { name: name("a"), key: key("1") })]);
        world.reads("1", |record| assert!(record.is_none()));
    });
}

#[test]
fn i26_a_read_of_a_node_that_is_behind_is_compared_with_its_position() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        let begun = world.does(ANN, Action::Begin { grant });
        let before = world.state.job(&name("a"), &key("1")).record;
        let stored = world.does(ANN, Action::Checkpoint { grant, bytes: bytes("half") });
        let entry = if lie { stored } else { begun };
        let (position, stamp) = (entry.position, entry.stamp);
        let fact = Fact::JobRead { position, stamp, name: &name("a"), key: &key("1"), record: before.as_ref() };
        world.tell(&fact);
    });
}

#[test]
fn i26_an_attach_that_names_another_attempt_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, Action::Begin { grant });
        world.does(BOB, keyed("1"));
        for session in [ANN, BOB] {
            let secret_hash = SecretHash([0; 32]);
            let renewals = vec![Renewal::Attach { session, secret_hash, seen: Seen::default() }];
            let mut entry = world.apply_batch(Batch { renewals, ..Batch::default() });
            if let (true, Outcome::Attached(attached)) = (lie, &mut entry.effects.replies[0].outcome) {
                attached.waits.iter_mut().for_each(|wait| wait.job_key = None);
                let jobs = attached.grants.iter_mut().filter_map(|grant| grant.job.as_mut());
                jobs.for_each(|job| job.attempt = None);
            }
            world.tell(&Fact::Logged(&entry));
        }
    });
}

#[test]
fn i26_a_restored_cluster_that_grants_jobs_is_seen() {
    story("I26", |world, lie| {
        let backup: Vec<_> = world.state.records().collect();
        world.state = LockState::restore_backup(0, backup, 1_000).expect("a good backup");
        world.position = LogPosition { index: 1, term: 1 };
        world.tell(&Fact::Restored { cluster: 2 });
        world.log([open(BOB)]);
        world.does(BOB, keyed("1"));
        let allow = world.apply([admin(Act::AllowJobs)]);
        if !lie {
            world.tell(&Fact::Logged(&allow));
        }
        world.takes(BOB, "2");
    });
}

#[test]
fn i26_a_holder_that_stays_after_an_administrator_completed_its_job_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        world.does(ANN, Action::Begin { grant });
        let complete = Act::CompleteJob { name: name("a"), key: key("1"), keep: Keep::new(60_000).expect("valid") };
        world.log_or_lie([admin(complete)], lie, |entry| {
            entry.effects.events.retain(|event| !matches!(event, Event::Ended { .. }));
        });
    });
}

#[test]
fn i26_a_job_that_is_forgotten_while_it_is_held_is_seen() {
    story("I26", |world, lie| {
        world.takes(ANN, "1");
        world.log_or_lie([admin(Act::ForgetJob { name: name("a"), key: key("1") })], lie, |entry| {
            let (by, reason) = (Principal::new("root").expect("valid"), Reason::new("why").expect("valid"));
            let act = ActFacts::ForgotJob { name: name("a"), key: key("1") };
            entry.effects.events.push(Event::Administered { by, act, reason });
            entry.effects.replies[0].outcome = Outcome::Done;
        });
    });
}

#[test]
fn i26_a_report_that_its_client_dropped_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        let action = report(grant, Verdict::Succeeded);
        let number = RequestNumber(world.numbers[&ANN] + 1);
        world.tell(&Fact::Asked { request: RequestKey { session: ANN, number }, action: &action });
        let reports = world.ask(ANN, action);
        let close = world.ask(ANN, Action::Close);
        let operations = if lie { vec![close] } else { vec![reports, close] };
        let entry = world.log(operations);
        let closed = |event: &Event| matches!(event, Event::SessionEnded { how: SessionEnd::Closed, .. });
        assert!(entry.effects.events.iter().any(closed));
    });
}

#[test]
fn i26_a_client_that_guesses_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        if !lie {
            world.does(ANN, report(grant, Verdict::Succeeded));
        }
        let answer = Answer::Decided(Outcome::Completed { token: Some(Token(grant.0)), succeeded: true });
        world.tell(&Fact::Told { request: RequestKey { session: ANN, number: RequestNumber(2) }, answer: &answer });
    });
}

#[test]
fn i26_a_wrong_conclusion_from_a_read_is_seen() {
    for completed in [true, false] {
        story("I26", |world, lie| {
            let grant = world.takes(ANN, "1");
            let verdict = if completed != lie { Verdict::Succeeded } else { Verdict::Open };
            world.does(ANN, report(grant, verdict));
            let (name, key, token) = (&name("a"), &key("1"), Token(grant.0));
            world.tell(&Fact::JobConcluded { name, key, token, completed });
        });
    }
}

#[test]
fn i26_a_completion_after_a_user_was_sure_that_there_is_none_is_seen() {
    story("I26", |world, lie| {
        let grant = world.takes(ANN, "1");
        if lie {
            let (name, key, token) = (&name("a"), &key("1"), Token(grant.0));
            world.tell(&Fact::JobConcluded { name, key, token, completed: false });
        }
        world.does(ANN, report(grant, Verdict::Succeeded));
    });
}

#[test]
fn i26_a_row_that_stands_twice_or_not_at_all_is_seen() {
    for twice in [true, false] {
        story("I26", |world, lie| {
            let grant = world.takes(ANN, "1");
            let row = |is_new, accepted| Access {
                name: name("a"),
                session: ANN,
                token: Token(grant.0),
                key: Some(key("1")),
                what: AccessKind::Once { is_new },
                accepted,
            };
            world.tell(&Fact::Store(&row(!lie || twice, !lie || twice)));
            world.tell(&Fact::Store(&row(lie && twice, !lie || twice)));
            world.does(ANN, report(grant, Verdict::Succeeded));
        });
    }
}

#[test]
fn i26_a_job_whose_time_is_over_runs_again() {
    let mut world = World::new();
    let grant = world.takes(ANN, "1");
    world.does(ANN, report(grant, Verdict::Succeeded));
    world.stamp += 60_000;
    let dee = SessionId(4);
    world.log([open(dee)]);
    let again = world.takes(dee, "1");
    assert_ne!(again, grant);
    world.does(dee, Action::Begin { grant: again });
    assert_eq!(world.state.job(&name("a"), &key("1")).stamp, LogicalMs(world.stamp));
    world.reads("1", |record| assert_eq!(record.as_ref().map(|record| record.attempts), Some(1)));
    assert_eq!(world.checkers.violations(), []);
}
