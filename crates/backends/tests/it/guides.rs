//! Runs the code of `docs/guides/choosing.md` and of the pages about moving, against real servers.
//!
//! SQL and TOML are read from the pages. Rust code is here, between two comments, and the pages must show the same text. Code that
//! locks runs at every address that the page names, if that server is installed.

use std::path::Path;
use std::time::{Duration, Instant};

use fencepost::{Exclusive, FencingToken, Once, Refused, Token};
use fencepost_backends::{Client, Error, Guard, Promise, Rules, System, Tier};
use fencepost_fence::{self as fence, Access, postgres};
use fencepost_testbed::{Kind, Server, own, shared};
use fencepost_testing::TestServer;
use redis::Script;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

const PAGES: [(&str, &str); 7] = [
    ("docs/guides/choosing.md", include_str!("../../../../docs/guides/choosing.md")),
    ("docs/guides/moving.md", include_str!("../../../../docs/guides/moving.md")),
    ("docs/guides/moving/redlock.md", include_str!("../../../../docs/guides/moving/redlock.md")),
    ("docs/guides/moving/etcd.md", include_str!("../../../../docs/guides/moving/etcd.md")),
    ("docs/guides/moving/zookeeper.md", include_str!("../../../../docs/guides/moving/zookeeper.md")),
    ("docs/guides/moving/postgres.md", include_str!("../../../../docs/guides/moving/postgres.md")),
    ("docs/guides/jobs.md", include_str!("../../../../docs/guides/jobs.md")),
];
const HERE: &str = include_str!("guides.rs");

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// The code block in the pages after `<!-- runs: name -->`.
fn shown(name: &str) -> &'static str {
    let mark = format!("<!-- runs: {name} -->");
    let from_here = PAGES.iter().find_map(|(_, page)| Some(page.split_once(&mark)?.1));
    let from_here = from_here.unwrap_or_else(|| panic!("no {name}"));
    let (_, code) = from_here.split_once("```").and_then(|(_, rest)| rest.split_once('\n')).expect("code follows");
    code.split_once("```").expect("the code ends").0
}

/// The code in this file after `// guide: name`, without its indentation.
fn run_here(name: &str) -> String {
    let (_, from_here) =
        HERE.split_once(&format!("// guide: {name}\n")).unwrap_or_else(|| panic!("{name} does not run"));
    let (code, _) = from_here.split_once("// guide end").expect("it ends");
    let margin = code.len() - code.trim_start().len();
    code.lines().map(|line| line.get(margin..).unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_guides_show_what_runs_here() {
    let lines = PAGES.iter().flat_map(|(_, page)| page.lines());
    let names: Vec<&str> = lines.filter_map(|line| line.strip_prefix("<!-- runs: ")?.strip_suffix(" -->")).collect();
    assert!(names.len() >= 18, "{names:?}");
    for name in names {
        if HERE.contains(&format!("shown(\"{name}\")")) {
            continue;
        }
        assert_eq!(shown(name).trim_end(), run_here(name).trim_end(), "{name}");
    }
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut links = 0;
    for (path, page) in PAGES {
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = root.join(path).parent().expect("it is in a directory").join(file);
            let text = std::fs::read_to_string(&target).unwrap_or_else(|error| panic!("{path}: {link}: {error}"));
            let is_there = text.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
            assert!(heading.is_empty() || is_there, "{path}: {link}: no such heading");
        }
    }
    assert!(links >= 20, "{links}");
}

/// The anchor of a heading in a link.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|letter| letter.is_alphanumeric() || *letter == ' ' || *letter == '-');
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

fn fencepost() -> (TestServer, String) {
    let server = TestServer::start();
    let address = format!("fencepost://{}", server.address());
    (server, address)
}

/// A store with a wallet and the guard.
async fn shop(url: &str) -> tokio_postgres::Client {
    let (mut database, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("it is up");
    tokio::spawn(connection);
    postgres::install(&mut database).await.expect("the role may create the schema");
    let wallet =
        "CREATE TABLE wallet (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fencing_token BIGINT NOT NULL DEFAULT 0);
        INSERT INTO wallet (id, balance) VALUES (7, 500)";
    database.batch_execute(wallet).await.expect("valid SQL");
    database
}

async fn balance_in(database: &tokio_postgres::Client) -> i64 {
    database.query_one("SELECT balance FROM wallet WHERE id = 7", &[]).await.expect("valid SQL").get(0)
}

async fn make_report() {}

async fn report(token: FencingToken) -> u64 {
    token.get()
}

async fn withdraw(token: FencingToken, _: u64) -> Outcome {
    assert!(token.get() > 0);
    Ok(())
}

async fn withdraw_by_zxid(_: i64, _: u64) -> Outcome {
    Ok(())
}

async fn call_the_bank(_: u64) -> Outcome {
    Ok(())
}

async fn call_the_bank_with(token: FencingToken, amount: u64) -> Outcome {
    withdraw(token, amount).await
}

fn random_value() -> String {
    format!("{:p} {:?}", &HERE, Instant::now())
}

// ---- choosing.md

fn rules() -> Rules {
    toml::from_str(shown("rules")).expect("valid rules")
}

#[tokio::test]
async fn names_go_where_the_rules_say() -> Outcome {
    let client = Client::builder().rules(rules()).dry_run(true).connect().await?;
    let expected = [("order:42", System::Fencepost), ("thumbnails/42", System::Redis), ("wallet:7", System::Etcd)];
    for (name, system) in expected {
        assert_eq!(client.system(name, Tier::Correctness)?, system, "{name}");
    }
    // guide: plan
    let plan = client.lock("thumbnails/42").efficiency().plan()?;
    println!("{} is locked by {}", plan.name, plan.system.name());
    let refused = client.lock("thumbnails/42").plan(); // wants a token where the rule says efficiency
    // guide end
    assert_eq!(plan.system, System::Redis);
    assert!(matches!(&refused, Err(Error::AgainstTheRule { prefix, .. }) if prefix == "thumbnails/"), "{refused:?}");

    let mut moved = rules();
    for rule in moved.rules.iter_mut().filter(|rule| rule.prefix == "wallet:") {
        rule.address = "redis://cache.example/".to_owned();
    }
    let refused = Client::builder().rules(moved).dry_run(true).connect().await;
    assert!(matches!(refused, Err(Error::NotPromised(_))), "Redis cannot keep a rule for correctness");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_connects_to_no_server() -> Outcome {
    let text = shown("rules").to_owned();
    // guide: dry-run
    let rules: Rules = toml::from_str(&text)?;
    let client = Client::builder().rules(rules).dry_run(true).connect().await?;
    let lock = client.lock("thumbnails/42").efficiency().acquire().await?;
    // guide end
    assert!(lock.is_held());
    let refused = client.lock("wallet:7").acquire().await;
    assert!(matches!(refused, Err(Error::AgainstTheRule { .. })), "a dry run has no token");
    Ok(())
}

#[tokio::test]
async fn a_request_that_needs_an_unkept_promise_is_refused() -> Outcome {
    let Some(server) = shared(Kind::Redis) else { return Ok(()) };
    let client = Client::connect(&server.url()).await?;
    // guide: needs
    let lock = client.lock("nightly").efficiency().needs(Promise::SurvivesFailover).acquire().await;
    // guide end
    assert!(matches!(&lock, Err(Error::NotPromised(not)) if not.promise == Promise::SurvivesFailover), "{lock:?}");
    Ok(())
}

#[tokio::test]
async fn the_habits_run() -> Outcome {
    let (_server, address) = fencepost();
    let client = Client::connect(&address).await?;
    // guide: run
    client.lock("nightly").run(|lock| async move { report(lock.token()).await }).await?;
    // guide end

    // guide: owner
    let outer = client.lock("order:42").owner("job-7").acquire().await?;
    let inner = client.lock("order:42").owner("job-7").acquire().await?; // the same lock and token, entered once more
    // guide end
    assert_eq!(outer.token(), inner.token());

    // guide: several
    let locks = client.lock_all(["account:3", "account:7"]).wait(Duration::from_secs(5)).acquire().await?;
    let (from, to) = (locks.token("account:3"), locks.token("account:7"));
    // guide end
    assert!(from.is_some() && from == to, "granted together");
    locks.release().await?;

    // Another program holds the second lock and waits for the first.
    let other = Client::connect(&address).await?;
    let held = other.lock("account:7").owner("transfer-18").acquire().await?;
    let blocker = client.lock("account:3").owner("transfer-17").acquire().await?;
    let waits = tokio::spawn(async move {
        let waited = other.lock("account:3").owner("transfer-18").wait(Duration::from_secs(60)).acquire().await;
        drop(held);
        waited.is_ok()
    });
    let looks_on = fencepost::Client::connect(&address).await?;
    while looks_on.waiters("account:3", None).await?.rows.is_empty() {
        tokio::task::yield_now().await;
    }
    let mut began_again = 0;
    let mut begin_again = async |from: Guard<Exclusive>, links| {
        began_again = links;
        from.release().await.expect("it is held");
    };
    let book = async |_: &Guard<Exclusive>, _: &Guard<Exclusive>| panic!("the other program holds the second lock");
    // guide: crosswise
    let from = client.lock("account:3").owner("transfer-17").acquire().await?;
    match client.lock("account:7").owner("transfer-17").wait(Duration::from_secs(30)).acquire().await {
        Ok(to) => book(&from, &to).await,
        Err(Error::Lock(fencepost::Error::Refused(Refused::Deadlock(cycle)))) => {
            begin_again(from, cycle.links.len()).await
        }
        Err(other) => return Err(other.into()),
    }
    // guide end
    assert_eq!(began_again, 2);
    blocker.release().await?;
    assert!(waits.await?, "the other program gets the lock");
    Ok(())
}

// ---- moving.md

#[tokio::test]
async fn both_locks_are_held() -> Outcome {
    let (_server, address) = fencepost();
    let Some(redis) = shared(Kind::Redis) else { return Ok(()) };
    let (before, after) = (Client::connect(&redis.url()).await?, Client::connect(&address).await?);
    // guide: hold-both
    let old = before.lock("report/weekly").efficiency().acquire().await?;
    let new = after.lock("report/weekly").efficiency().acquire().await?;
    make_report().await;
    new.release().await?;
    old.release().await?;
    // guide end
    for client in [before, after] {
        let free = client.lock("report/weekly").efficiency().try_acquire().await?;
        assert!(free.is_some(), "both were released");
    }
    Ok(())
}

async fn checked_at_the_store(client: &Client, database: &mut tokio_postgres::Client) -> Outcome {
    // guide: checked-at-the-store
    let lock = client.lock("wallet:7").wait(Duration::from_secs(5)).acquire().await?;

    let transaction = database.transaction().await?;
    postgres::admit(&transaction, &Access::claim("wallet:7", lock.token())).await?;
    let row = transaction.query_one("SELECT balance FROM wallet WHERE id = 7", &[]).await?;
    transaction.commit().await?;

    let balance: i64 = row.get(0); // the work may take any time here

    let transaction = database.transaction().await?;
    postgres::admit(&transaction, &Access::write("wallet:7", lock.token())).await?;
    transaction.execute("UPDATE wallet SET balance = $1 WHERE id = 7", &[&(balance - 100)]).await?;
    transaction.commit().await?;
    lock.release().await?;
    // guide end
    Ok(())
}

#[tokio::test]
async fn a_store_that_has_seen_another_system_refuses_until_its_marks_are_reset() -> Outcome {
    let Some(server) = own(Kind::Postgres) else { return Ok(()) };
    let mut database = shop(&server.url()).await;
    let (_server, address) = fencepost();
    let client = Client::connect(&address).await?;
    checked_at_the_store(&client, &mut database).await?;
    assert_eq!(balance_in(&database).await, 400);

    // The numbers of another system are larger.
    let of_etcd: FencingToken = "1000000".parse()?;
    let transaction = database.transaction().await?;
    postgres::admit(&transaction, &Access::write("wallet:7", of_etcd)).await?;
    transaction.commit().await?;
    let refused = checked_at_the_store(&client, &mut database).await.expect_err("the store has seen a larger one");
    let stale = refused.downcast_ref::<fencepost_fence::Error>().and_then(fencepost_fence::Error::stale);
    assert_eq!(stale.expect("that is why").highest, Token(1_000_000));
    assert_eq!(balance_in(&database).await, 400);

    postgres::forget_below(&mut database, Token(1_000_001)).await?;
    database.batch_execute(shown("reset-the-marks")).await?;
    checked_at_the_store(&client, &mut database).await?;
    assert_eq!(balance_in(&database).await, 300);
    let status = postgres::status(&database).await?;
    assert!(status.base == Token(0) && status.highest < Token(1_000_000), "{status:?}");

    // The same for a column, as in the table of the page.
    let column = "SELECT fencepost.guard_column('wallet', 'fencing_token');
        UPDATE wallet SET fencing_token = 1000000 WHERE id = 7;
        SELECT fencepost.unguard_column('wallet');
        UPDATE wallet SET fencing_token = 0;
        SELECT fencepost.guard_column('wallet', 'fencing_token')";
    database.batch_execute(column).await?;
    database.execute("UPDATE wallet SET fencing_token = 17, balance = 200 WHERE id = 7", &[]).await?;
    assert_eq!(balance_in(&database).await, 200);
    Ok(())
}

// ---- moving/redlock.md

#[tokio::test]
async fn redlock_before_runs() -> Outcome {
    let Some(server) = shared(Kind::Redis) else { return Ok(()) };
    // Three databases of one server stand for three masters.
    let mut masters = Vec::new();
    for database in 0..3 {
        let client = redis::Client::open(format!("{}{database}", server.url()))?;
        masters.push(client.get_multiplexed_async_connection().await?);
    }
    // guide: redlock-before
    let release = Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end");
    let (key, value, ttl) = ("lock:report/today", random_value(), Duration::from_secs(30));
    let (asked, mut granted) = (Instant::now(), 0);
    for master in &mut masters {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&value).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        granted += i32::from(set.query_async::<Option<String>>(master).await.is_ok_and(|answer| answer.is_some()));
    }
    if granted as usize > masters.len() / 2 && asked.elapsed() < ttl {
        make_report().await;
    }
    for master in &mut masters {
        let _ = release.key(key).arg(&value).invoke_async::<Option<i64>>(master).await;
    }
    // guide end
    assert_eq!(granted, 3);
    for master in &mut masters {
        let left: bool = redis::cmd("EXISTS").arg(key).query_async(master).await?;
        assert!(!left, "each key was deleted");
    }
    Ok(())
}

#[tokio::test]
async fn redlock_after_runs() -> Outcome {
    let (_server, address) = fencepost();
    let Some(redis) = shared(Kind::Redis) else { return Ok(()) };
    let masters: Vec<Server> = (0..3).filter_map(|_| own(Kind::Redis)).collect();
    let places: Vec<String> = masters.iter().map(|master| format!("127.0.0.1:{}", master.port())).collect();
    for locks in [&redis.url(), &format!("redlock://{}", places.join(",")), &address] {
        // guide: redlock-after
        let client = Client::connect(locks).await?; // "redlock://r1:6379,r2:6379,r3:6379", or "redis://r1:6379/"
        let lock = client.lock("report/today").efficiency().wait(Duration::from_secs(5)).acquire().await?;
        make_report().await;
        lock.release().await?;
        // guide end
    }
    let without = Client::connect(&redis.url()).await?.lock("report/today").acquire().await;
    assert!(matches!(&without, Err(Error::NotPromised(_))), "the request needs `.efficiency()`: {without:?}");
    Ok(())
}

#[tokio::test]
async fn locks_that_only_save_work_may_stay_in_redlock() -> Outcome {
    let rules = toml::from_str(shown("redlock-rules"))?;
    let client = Client::builder().rules(rules).dry_run(true).connect().await?;
    assert_eq!(client.system("wallet:7", Tier::Correctness)?, System::Fencepost);
    assert_eq!(client.system("report/today", Tier::Efficiency)?, System::Redlock);
    Ok(())
}

// ---- moving/etcd.md

async fn etcd_after(locks: &str) -> Outcome {
    // guide: etcd-after
    let client = Client::connect(locks).await?; // "etcd://e1:2379,e2:2379,e3:2379"
    let lock = client.lock("wallet:7").wait(Duration::from_secs(5)).acquire().await?;
    withdraw(lock.token(), 100).await?;
    lock.release().await?;
    // guide end
    Ok(())
}

// ---- moving/zookeeper.md

#[allow(dead_code, reason = "compiled only: it contains the names of servers that do not exist")]
async fn zookeeper_before() -> Outcome {
    // guide: zookeeper-before
    let acls = Acls::anyone_all();
    let zookeeper = zookeeper_client::Client::connect("z1:2181,z2:2181,z3:2181").await?;
    let options = LockOptions::new(acls).with_ancestor_options(CreateMode::Persistent.with_acls(acls))?;
    let lock = zookeeper.lock(LockPrefix::new_curator("/locks/wallet:7", "lock-")?, b"", options).await?;
    let (_, made) = zookeeper.get_data(lock.lock_path()).await?;
    withdraw_by_zxid(made.czxid, 100).await?;
    drop(lock);
    // guide end
    Ok(())
}

async fn zookeeper_after(locks: &str) -> Outcome {
    // guide: zookeeper-after
    let client = Client::connect(locks).await?; // "zookeeper://z1:2181,z2:2181,z3:2181/app"
    let lock = client.lock("wallet:7").wait(Duration::from_secs(5)).acquire().await?;
    withdraw(lock.token(), 100).await?;
    lock.release().await?;
    // guide end
    Ok(())
}

// ---- moving/postgres.md

#[tokio::test]
async fn postgres_before_runs() -> Outcome {
    let Some(server) = own(Kind::Postgres) else { return Ok(()) };
    let database = shop(&server.url()).await;
    database.batch_execute(shown("in-the-transaction")).await?;
    assert_eq!(balance_in(&database).await, 400);
    // guide: postgres-before
    database.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", &[&"wallet:7"]).await?;
    call_the_bank(100).await?;
    database.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", &[&"wallet:7"]).await?;
    // guide end
    let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(database.query_one(left, &[]).await?.get::<_, i64>(0), 0);
    Ok(())
}

async fn postgres_after(locks: &str) -> Outcome {
    // guide: postgres-after
    let client = Client::connect(locks).await?; // "postgres+table://app@db/app"
    let lock = client.lock("wallet:7").wait(Duration::from_secs(5)).acquire().await?;
    call_the_bank_with(lock.token(), 100).await?;
    lock.release().await?;
    // guide end
    Ok(())
}

// ---- all pages

#[tokio::test]
async fn the_same_code_runs_at_the_other_address() -> Outcome {
    let (_server, address) = fencepost();
    etcd_after(&address).await?;
    zookeeper_after(&address).await?;
    postgres_after(&address).await
}

#[tokio::test]
async fn etcd_after_runs() -> Outcome {
    let Some(server) = shared(Kind::Etcd) else { return Ok(()) };
    etcd_after(&server.url()).await
}

#[tokio::test]
async fn zookeeper_after_runs() -> Outcome {
    let Some(server) = shared(Kind::Zookeeper) else { return Ok(()) };
    zookeeper_after(&server.url()).await
}

#[tokio::test]
async fn postgres_after_runs_and_excludes_manual_code_with_the_same_key() -> Outcome {
    let Some(server) = own(Kind::Postgres) else { return Ok(()) };
    let by = |way: &str| server.url().replace("postgres://", &format!("postgres+{way}://"));
    for way in ["table", "advisory", "row"] {
        postgres_after(&by(way)).await?;
    }
    let by_hand = shop(&server.url()).await;
    by_hand.batch_execute(shown("the-same-key")).await?;
    let client = Client::connect(&by("advisory")).await?;
    assert!(client.lock("wallet:7").try_acquire().await?.is_none(), "it is held by hand");
    drop(by_hand);
    client.lock("wallet:7").acquire().await?.release().await?;
    Ok(())
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn bill(token: FencingToken) -> Result<String, std::io::Error> {
    Ok(format!("with token {}", token.get()))
}

#[tokio::test]
async fn a_job_runs_once_as_the_guide_shows() -> Outcome {
    let (_server, address) = fencepost();
    let client = fencepost::Client::connect(&address).await?;
    for round in 0..2 {
        // guide: a-job-in-a-program
        let done = client.lock("billing").once("2026-11").run(|job| async move { bill(job.token()).await }).await?;
        match &done {
            Once::Ran(completion) => println!("billed: {}", String::from_utf8_lossy(&completion.result)),
            Once::Before(completion) => {
                println!("another host has billed: {}", String::from_utf8_lossy(&completion.result))
            }
            Once::GaveUp(_) => println!("the job has failed for good"),
        }
        // guide end
        assert_eq!(matches!(done, Once::Ran(_)), round == 0);
        assert_eq!(done.completion().result, b"with token 1");
    }
    Ok(())
}

/// A job of 100 steps whose attempts die ten times does at most one step twice for each of them.
#[tokio::test]
async fn a_job_goes_on_from_its_checkpoint_as_the_guide_shows() -> Outcome {
    let (_server, address) = fencepost();
    let client = fencepost::Client::connect(&address).await?;
    let steps = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    for attempt in 1..=11_u32 {
        let steps = steps.clone();
        // Each of the first ten attempts dies in a step after its tenth.
        let import = |step: u32, token: FencingToken| {
            let done = steps.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let dies = attempt <= 10 && step == attempt * 9;
            async move {
                assert!(token.get() > 0 && done < 200);
                if dies { Err::<(), BoxError>("the host dies".into()) } else { Ok(()) }
            }
        };
        let ran = async {
            // guide: checkpoints
            let done = client
                .lock("import")
                .once("2026-11")
                .run(|job| async move {
                    let first = match job.last_checkpoint().await? {
                        Some(checkpoint) => 1 + String::from_utf8_lossy(&checkpoint.bytes).parse::<u32>()?,
                        None => 1,
                    };
                    for step in first..=100 {
                        import(step, job.token()).await?;
                        job.checkpoint(step.to_string()).await?;
                    }
                    Ok::<_, BoxError>(format!("100 steps, {} of them now", 101 - first))
                })
                .await?;
            // guide end
            Ok::<_, fencepost::OnceError<BoxError>>(done)
        };
        let ran = ran.await;
        assert_eq!(ran.is_ok(), attempt == 11, "attempt {attempt}: {ran:?}");
        if let Ok(done) = ran {
            assert_eq!(done.completion().result, b"100 steps, 11 of them now");
        }
    }
    assert_eq!(steps.load(std::sync::atomic::Ordering::SeqCst), 110);
    Ok(())
}

/// The first attempt commits and dies before it completes the job. The second finds its row.
#[tokio::test]
async fn the_store_records_the_key_as_the_guide_shows() -> Outcome {
    let Some(server) = own(Kind::Postgres) else { return Ok(()) };
    let url = server.url();
    let database = shop(&url).await;
    let (_server, address) = fencepost();
    let client = fencepost::Client::connect(&address).await?;
    let connect = || async {
        let (database, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok::<_, BoxError>(database)
    };
    for attempt in 1..=2 {
        // guide: once-at-the-store
        let done = client
            .lock("billing")
            .once("2026-12")
            .run(|job| async move {
                let mut database = connect().await?;
                let transaction = database.transaction().await?;
                match postgres::once(&transaction, "billing", "2026-12", job.token()).await {
                    // Committed by an earlier attempt, which could not say so: complete the job.
                    Err(fence::Error::Before(_)) => return Ok("billed before".to_owned()),
                    other => other?,
                }
                transaction.execute("UPDATE wallet SET balance = balance - 100 WHERE id = 7", &[]).await?;
                transaction.commit().await?;
                Ok::<_, BoxError>("billed".to_owned())
            })
            .await?;
        // guide end
        let expected = if attempt == 1 { "billed" } else { "billed before" };
        assert_eq!(String::from_utf8_lossy(&done.completion().result), expected);
        assert_eq!(balance_in(&database).await, 400);
        // As if the host had died between COMMIT and the completion.
        client.admin().reason("as after a crash").forget_job("billing", "2026-12").await?;
    }
    Ok(())
}
