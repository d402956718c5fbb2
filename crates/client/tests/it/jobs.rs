//! Jobs that run once, with the library against the real server in the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use fencepost::{
    Client, Error, Event, GrantEnd, Job, JobFact, Once, OnceError, PositionedEvent, Refusal, Refused, Turn, Watch,
};
use fencepost_testing::TestServer;

use crate::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<Found>(what: &str, future: impl Future<Output = Found>) -> Found {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

async fn job(client: &Client, key: &str) -> Job {
    match client.lock("billing").once(key).no_wait().acquire().await.expect("it is free") {
        Turn::Yours(job) => job,
        Turn::Completed(completion) => panic!("{key} is completed: {completion:?}"),
    }
}

async fn works(job: fencepost::JobHold, runs: Arc<AtomicU32>) -> Result<String, Error> {
    runs.fetch_add(1, SeqCst);
    job.checkpoint("half").await?;
    Ok(format!("billed with {}", job.token()))
}

/// Ten clients ask for the same job at the same time. One runs it, the others wait and learn that it is done.
#[tokio::test]
async fn a_job_runs_once_however_many_ask() {
    let server = TestServer::start();
    let runs = Arc::new(AtomicU32::new(0));
    let mut asking = Vec::new();
    for _ in 0..10 {
        let (client, runs) = (server.client().await.unwrap(), runs.clone());
        asking.push(tokio::spawn(async move {
            client.lock("billing").once("2026-11").run(|job| works(job, runs)).await.unwrap()
        }));
    }
    let (mut ran, mut before) = (Vec::new(), Vec::new());
    for asked in asking {
        match soon("an answer", asked).await.unwrap() {
            Once::Ran(completion) => ran.push(completion),
            Once::Before(completion) => before.push(completion),
            Once::GaveUp(completion) => panic!("{completion:?}"),
        }
    }
    assert_eq!((runs.load(SeqCst), ran.len(), before.len()), (1, 1, 9));
    let expected = format!("billed with {}", ran[0].token.expect("a client completed it").0);
    assert!(before.iter().all(|it| *it == ran[0]), "{before:?}");
    assert_eq!(String::from_utf8_lossy(&ran[0].result), expected);
    assert_eq!((ran[0].succeeded, ran[0].attempts), (true, 1));

    // Another key of the same name is another job.
    let client = server.client().await.unwrap();
    let next = client.lock("billing").once("2026-12").run(|job| works(job, runs.clone())).await.unwrap();
    assert!(matches!(next, Once::Ran(_)), "{next:?}");
    assert_eq!(runs.load(SeqCst), 2);
}

/// An error of the work leaves the job open with its text; the next attempt finds the checkpoint; past the limit the job has failed.
#[tokio::test]
async fn attempts_are_counted_and_checkpoints_are_found_until_the_job_gives_up() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let ask = || client.lock("import").once("42").attempts(2);
    for attempt in 1..=2_u32 {
        let failed = ask()
            .run(|job| async move {
                let before = job.last_checkpoint().await?;
                assert_eq!(before.map(|it| (it.attempt, it.bytes)), (attempt > 1).then(|| (1, b"row 1".to_vec())));
                job.checkpoint(format!("row {attempt}")).await?;
                Err::<(), Error>(Error::Refused(Refused::Invalid(format!("no more rows in {attempt}"))))
            })
            .await
            .unwrap_err();
        assert!(matches!(failed, OnceError::Work(_)), "{failed}");
        let record = client.job("import", "42").await.unwrap().what.record.expect("an attempt was made");
        assert_eq!((record.attempts, record.completion), (u64::from(attempt), None));
        let ended = record.last.and_then(|last| last.ended).expect("the attempt ended");
        assert_eq!(ended.how, GrantEnd::Released);
        assert_eq!(ended.error.as_bytes(), format!("no more rows in {attempt}").as_bytes());
    }
    for _ in 0..2 {
        let worked = AtomicU32::new(0);
        let gave_up = ask().run(|_| async {
            worked.fetch_add(1, SeqCst);
            Ok::<(), Error>(())
        });
        let gave_up = gave_up.await;
        let gave_up = gave_up.unwrap();
        assert_eq!(worked.load(SeqCst), 0, "the attempts are used up");
        let Once::GaveUp(completion) = gave_up else { panic!("{gave_up:?}") };
        assert_eq!((completion.succeeded, completion.attempts), (false, 3));
        assert_eq!(completion.result, b"gave up after 2 attempts");
    }
}

#[tokio::test]
async fn without_run_each_step_is_a_call() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let mut first = job(&client, "a").await;
    assert_eq!((first.name().as_str(), first.key().as_str()), ("billing", "a"));
    assert_eq!((first.begin().await.unwrap(), first.begin().await.unwrap()), (1, 1), "a grant begins one attempt");
    let busy = client.lock("billing").once("a").no_wait().acquire().await.unwrap_err();
    assert!(busy.busy().is_some(), "{busy}");
    first.fail("out of paper").await.unwrap();

    let mut second = job(&client, "a").await;
    assert_eq!(second.begin().await.unwrap(), 2);
    let completion = second.complete_failed("no printer").await.unwrap();
    assert!(!completion.succeeded && completion.token.is_some(), "{completion:?}");
    let again = second.complete("too late").await.unwrap_err();
    assert!(matches!(again, Error::Refused(Refused::NotHeld)), "{again}");
    let Turn::Completed(told) = client.lock("billing").once("a").acquire().await.unwrap() else { panic!() };
    assert_eq!(told, completion);

    // Unbegun: it counts nothing, and nothing is remembered.
    drop(job(&client, "b").await);
    soon("it is given back", async { while !client.explain("billing").await.unwrap().holders.is_empty() {} }).await;
    assert_eq!(client.job("billing", "b").await.unwrap().what.record, None);
}

/// The holder is evicted while it works, and another client completes the job. The first client's completion is refused.
#[tokio::test]
async fn a_holder_that_lost_its_lock_cannot_complete() {
    let server = TestServer::start();
    let (slow, fast, operator) =
        (server.client().await.unwrap(), server.client().await.unwrap(), server.client().await.unwrap());
    let mut lost = job(&slow, "a").await;
    lost.begin().await.unwrap();
    operator.admin().break_grant(lost.grant()).await.unwrap();
    let mut next = job(&fast, "a").await;
    assert_eq!(next.begin().await.unwrap(), 2);
    let refused = lost.complete("late").await.unwrap_err();
    assert!(refused.lost().is_some(), "{refused}");
    next.complete("in time").await.unwrap();
    let record = operator.job("billing", "a").await.unwrap().what.record.unwrap();
    assert_eq!(record.completion.unwrap().result.as_bytes(), b"in time");
}

#[tokio::test]
async fn a_lost_lock_stops_the_work() {
    let server = TestServer::start();
    let (client, operator) = (server.client().await.unwrap(), server.client().await.unwrap());
    let ran = client
        .lock("billing")
        .once("a")
        .run(|job| {
            let operator = operator.clone();
            async move {
                operator.admin().break_grant(job.grant()).await?;
                std::future::pending::<Result<(), Error>>().await
            }
        })
        .await;
    let error = soon("it stops", async { ran }).await.unwrap_err();
    let OnceError::Lock(error) = error else { panic!("{error}") };
    assert!(error.lost().is_some(), "{error}");
}

#[tokio::test]
async fn bad_input_is_refused_with_its_reason() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let cases = [
        (client.lock("a").once(""), "empty"),
        (client.lock("a").once("k".repeat(257)), "at most 256 bytes"),
        (client.lock("a").once("new\nline"), "control characters"),
        (client.lock("a").once("k").keep(Duration::from_secs(59)), "at least 60000 ms"),
        (client.lock("a").once("k").keep(Duration::from_secs(366 * 24 * 3600)), "at most"),
        (client.lock_all(["a", "b"]).once("k"), "only an exclusive lock on one name"),
        (client.lock("a").owner("twice").once("k"), "a job has a grant of its own"),
        (client.lock("a").at_least(PATIENCE).once("k"), "a job has no `at_least`"),
    ];
    let _held = client.lock("a").owner("twice").acquire().await.unwrap();
    for (request, reason) in cases {
        let error = request.no_wait().acquire().await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error} instead of {reason}");
    }
    let mut held = job(&client, "a").await;
    let long = vec![0; 4097];
    let refused = [held.checkpoint(&long).await.unwrap_err(), held.complete(long).await.unwrap_err()];
    for error in refused {
        assert!(error.to_string().contains("at most 4096 bytes"), "{error}");
    }
    held.complete(vec![1; 4096]).await.expect("after a result that was too long, the job is still held");
}

#[tokio::test]
async fn the_owner_entered_again_so_the_completion_is_refused_and_nothing_stays_held() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let Turn::Yours(mut first) = client.lock("billing").owner("one").once("a").acquire().await.unwrap() else {
        panic!()
    };
    let entered = client.lock("billing").owner("one").acquire().await.unwrap();
    let refused = first.complete("done").await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(Refused::Rule(Refusal::CountAboveOne))), "{refused}");
    entered.release().await.unwrap();
    soon("both counts are given back", async { while !client.explain("billing").await.unwrap().holders.is_empty() {} })
        .await;
    assert!(client.job("billing", "a").await.unwrap().record.as_ref().is_none_or(|it| it.completion.is_none()));
}

#[tokio::test]
async fn administrators_complete_and_forget_jobs() {
    let server = TestServer::start();
    let (client, operator) = (server.client().await.unwrap(), server.client().await.unwrap());
    let held = job(&client, "a").await;
    held.begin().await.unwrap();
    let waits = tokio::spawn({
        let client = server.client().await.unwrap();
        async move { client.lock("billing").once("a").run(|_| async { Ok::<_, Error>(()) }).await }
    });
    soon("it waits", async { while operator.waiters("billing", None).await.unwrap().rows.is_empty() {} }).await;
    let refused = operator.admin().forget_job("billing", "a").await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refused::Rule(Refusal::JobHeld { .. }))), "{refused}");
    operator.admin().reason("OPS-1").complete_job("billing", "a").await.unwrap();
    let told = soon("the waiter is told", waits).await.unwrap().unwrap();
    let Once::Before(completion) = told else { panic!("{told:?}") };
    assert_eq!((completion.token, completion.by.is_some()), (None, true));
    soon("the holder is told", held.lost()).await;

    operator.admin().forget_job("billing", "a").await.unwrap();
    let missing = operator.admin().forget_job("billing", "a").await.unwrap_err();
    assert!(matches!(missing, Error::Refused(Refused::NotFound)), "{missing}");
    assert_eq!(job(&client, "a").await.begin().await.unwrap(), 1, "a forgotten job begins again");
    operator.admin().allow_jobs().await.unwrap();
}

#[tokio::test]
async fn jobs_are_listed_by_page_and_watched_without_their_bytes() {
    let server = TestServer::start();
    let client = server.client().await.unwrap();
    let mut events: Watch = client.watch("billing").start().await.unwrap();
    for key in ["b", "a", "c"] {
        let mut held = job(&client, key).await;
        held.checkpoint("a secret of the application").await.unwrap();
        held.complete("another secret").await.unwrap();
    }
    let page = client.jobs("billing", None).await.unwrap();
    let keys: Vec<&str> = page.rows.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert!(page.rows.iter().all(|row| row.completion.as_ref().is_some_and(|it| it.result.as_bytes().is_empty())));
    let after = (page.rows[0].name.clone(), page.rows[0].key.clone());
    assert_eq!(client.jobs("billing", Some(&after)).await.unwrap().rows.len(), 2);
    assert!(client.jobs("other", None).await.unwrap().rows.is_empty());

    let mut seen = Vec::new();
    while seen.len() < 9 {
        let PositionedEvent { event, .. } = soon("an event", events.next()).await.unwrap().unwrap();
        assert!(!format!("{event:?}").contains("secret of"), "{event:?}");
        if let Event::Job { what, .. } = event {
            seen.push(what);
        }
    }
    assert!(matches!(seen[0], JobFact::Begun { attempt: 1, .. }), "{seen:?}");
    assert!(matches!(seen[1], JobFact::Checkpointed { attempt: 1, .. }), "{seen:?}");
    assert!(matches!(seen[2], JobFact::Completed { succeeded: true, token: Some(_) }), "{seen:?}");
}

/// Without a key, `at_least` keeps the lock after the work, and no longer than the lock is held.
#[tokio::test]
async fn a_run_holds_on_for_at_least_its_time() {
    let server = TestServer::start();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let began = std::time::Instant::now();
    let short = Duration::from_millis(50);
    assert_eq!(client.lock("report").at_least(short).run(|_| async { 7 }).await.unwrap(), 7);
    assert!(began.elapsed() >= short);

    let (done, is_done) = tokio::sync::oneshot::channel();
    let long = client.lock("report").at_least(Duration::from_secs(3600));
    let running = tokio::spawn(long.run(|lock| async move { done.send(lock.grant()).unwrap() }));
    let grant = soon("the work is done", is_done).await.unwrap();
    assert!(other.lock("report").try_acquire().await.unwrap().is_none(), "the lock is kept");
    other.admin().break_grant(grant).await.unwrap();
    soon("it ends with its lock", running).await.unwrap().expect("the work was done under the lock");
}

/// The connection is cut again and again while jobs are completed. Each is completed once, and the client knows it.
#[tokio::test]
async fn a_completion_whose_answer_is_cut_off_is_found() {
    let (cluster, address) = Cluster::start().await;
    let client = Client::connect(&format!("fencepost://{address}")).await.unwrap();
    for round in 0..20 {
        let mut held = job(&client, &round.to_string()).await;
        held.begin().await.unwrap();
        let (completed, ()) = tokio::join!(held.complete("done"), async {
            for _ in 0..round % 4 {
                tokio::task::yield_now().await;
            }
            cluster.cut();
        });
        let completion = completed.unwrap();
        assert_eq!(completion.token.map(|token| token.0), Some(held.grant().0), "round {round}");
    }
}

#[cfg(feature = "blocking")]
#[test]
fn the_blocking_twin_runs_jobs_once() {
    use fencepost::blocking;

    let server = TestServer::start();
    let client = blocking::Client::connect(&format!("fencepost://{}", server.address())).unwrap();
    let ask = || client.lock("billing").once("a").attempts(2);
    let failed = client.run_once(ask(), |job| {
        job.checkpoint("half")?;
        Err::<(), Error>(Error::Refused(Refused::Invalid("broken".to_owned())))
    });
    assert!(matches!(failed, Err(OnceError::Work(_))), "{failed:?}");
    let ran = client.run_once(ask(), |job| {
        let found = job.last_checkpoint()?.expect("the first attempt stored one");
        Ok::<_, Error>(found.bytes)
    });
    let Ok(Once::Ran(completion)) = ran else { panic!("{ran:?}") };
    assert_eq!((completion.result.as_slice(), completion.attempts), (b"half".as_slice(), 2));
    let before = client.run_once(ask(), |_| -> Result<(), Error> { panic!("it is completed") });
    assert!(matches!(before, Ok(Once::Before(_))), "{before:?}");

    let Ok(blocking::Turn::Yours(mut held)) = client.acquire_job(client.lock("billing").once("b")) else { panic!() };
    assert_eq!(held.begin().unwrap(), 1);
    held.fail("no").unwrap();
    for attempt in 2..=3 {
        let gave_up = client.run_once(client.lock("billing").once("b").attempts(2), |_| Err::<(), _>("no"));
        assert_eq!(matches!(gave_up, Ok(Once::GaveUp(_))), attempt == 3, "{gave_up:?}");
    }
    let Ok(blocking::Turn::Completed(completion)) = client.acquire_job(client.lock("billing").once("b")) else {
        panic!()
    };
    assert!(!completion.succeeded);
}
