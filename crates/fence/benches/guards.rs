//! The cost of a guard: the same write to each store with the guard and without it, on one connection, one write after the other.
//! The rows with `once` show the token and record a new key with each write.
//!
//! Both kinds alternate in blocks within one run, so that other load on the machine hits both. Prints a table of medians. Each
//! store keeps its own durability settings. `cargo bench -p fencepost-fence --features full --bench guards`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fencepost_fence::{Access, FencingToken, Writes, file, mysql, object, postgres, redis, sqlite};
use fencepost_testbed::{Kind, shared};
use mysql_async::TxOpts;
use mysql_async::prelude::Queryable;
use object_store::ObjectStoreExt;

const BLOCKS: usize = 20;
const BLOCK: usize = 100;

const TABLE: &str = "CREATE TABLE wallet (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)";
const ROW: &str = "INSERT INTO wallet VALUES (7, 500)";
const UPDATE: &str = "UPDATE wallet SET balance = balance + 1 WHERE id = 7";

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{:<46} {:>12} {:>12} {:>12}", "median of a write", "unguarded", "guarded", "more");
    runtime.block_on(async {
        in_postgres().await?;
        in_mariadb().await?;
        in_sqlite()?;
        in_redis().await?;
        in_files()?;
        in_objects().await
    })
}

fn token() -> FencingToken {
    "42".parse().expect("a token")
}

fn access() -> Access<Writes> {
    Access::write("wallet:7", token())
}

/// A key that no other write has.
fn new_key() -> String {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    format!("2026-11/{}", KEYS.fetch_add(1, Relaxed))
}

/// The durations of the writes to one store, with the guard and without.
#[derive(Default)]
struct Times {
    unguarded: Vec<Duration>,
    guarded: Vec<Duration>,
}

impl Times {
    fn print(mut self, store: &str) {
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6
        };
        let (unguarded, guarded) = (median(&mut self.unguarded), median(&mut self.guarded));
        println!("{store:<46} {unguarded:>9.1} µs {guarded:>9.1} µs {:>9.1} µs", guarded - unguarded);
    }
}

/// Runs a piece of work as often as a block is long, and notes the duration of each run.
macro_rules! timed {
    ($times:expr, $work:block) => {
        for _ in 0..BLOCK {
            let begun = Instant::now();
            $work
            $times.push(begun.elapsed());
        }
    };
}

async fn in_postgres() -> Outcome {
    let Some(server) = shared(Kind::Postgres) else { return Ok(()) };
    let (mut database, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    postgres::install(&mut database).await?;
    database.batch_execute(&format!("{TABLE}; {ROW}")).await?;
    let update = database.prepare(UPDATE).await?;
    let access = access();
    // With `synchronous_commit` off, `once` turns it on: its writes would wait for the disk, and those beside them not. So there is a
    // third server setting, under which all commits are alike and none waits.
    for (commit, fsync, how) in [("on", "on", "synced"), ("off", "on", "not synced"), ("on", "off", "fsync = off")] {
        database.batch_execute(&format!("SET synchronous_commit = {commit}")).await?;
        database.batch_execute(&format!("ALTER SYSTEM SET fsync = {fsync}")).await?;
        database.batch_execute("SELECT pg_reload_conf(), pg_sleep(0.5)").await?;
        let applied: String = database.query_one("SHOW fsync", &[]).await?.get(0);
        assert_eq!(applied, fsync);
        let (mut sequential, mut joined, mut trigger) = (Times::default(), Times::default(), Times::default());
        let (mut once, mut once_joined) = (Times::default(), Times::default());
        for _ in 0..BLOCKS {
            timed!(sequential.unguarded, {
                let transaction = database.transaction().await?;
                transaction.execute(&update, &[]).await?;
                transaction.commit().await?;
            });
            timed!(sequential.guarded, {
                let transaction = database.transaction().await?;
                postgres::admit(&transaction, &access).await?;
                transaction.execute(&update, &[]).await?;
                transaction.commit().await?;
            });
            timed!(joined.guarded, { guarded_together(&mut database, &update, &access).await? });
            timed!(once.guarded, {
                let transaction = database.transaction().await?;
                postgres::once(&transaction, "wallet:7", &new_key(), token()).await?;
                transaction.execute(&update, &[]).await?;
                transaction.commit().await?;
            });
            timed!(once_joined.guarded, {
                let (transaction, key) = (database.transaction().await?, new_key());
                let write = async { Ok(transaction.execute(&update, &[]).await?) };
                tokio::try_join!(biased; postgres::once(&transaction, "wallet:7", &key, token()), write)?;
                transaction.commit().await?;
            });
            database.batch_execute("SELECT fencepost.guard_rows('wallet', 'wallet:', 'id')").await?;
            timed!(trigger.guarded, { guarded_together(&mut database, &update, &access).await? });
            database.batch_execute("SELECT fencepost.unguard_rows('wallet')").await?;
        }
        joined.unguarded.clone_from(&sequential.unguarded);
        for times in [&mut trigger, &mut once, &mut once_joined] {
            times.unguarded.clone_from(&sequential.unguarded);
        }
        sequential.print(&format!("Postgres, {how}, guard, then write"));
        joined.print(&format!("Postgres, {how}, sent together"));
        trigger.print(&format!("Postgres, {how}, together, trigger on rows"));
        once.print(&format!("Postgres, {how}, once, then write"));
        once_joined.print(&format!("Postgres, {how}, once, sent together"));
    }
    Ok(())
}

async fn guarded_together(
    database: &mut tokio_postgres::Client,
    update: &tokio_postgres::Statement,
    access: &Access<Writes>,
) -> Outcome {
    let transaction = database.transaction().await?;
    let write = async { Ok(transaction.execute(update, &[]).await?) };
    tokio::try_join!(biased; postgres::admit(&transaction, access), write)?;
    transaction.commit().await?;
    Ok(())
}

async fn in_mariadb() -> Outcome {
    let Some(server) = shared(Kind::MariaDb) else { return Ok(()) };
    let options =
        mysql_async::OptsBuilder::from_opts(mysql_async::Opts::from_url(&server.url())?).db_name(Some("shop"));
    let mut database = mysql_async::Conn::new(options.clone().db_name(None::<String>)).await?;
    // The guard refuses to be installed by an account with rights outside of the database.
    for prepare in ["CREATE DATABASE shop", "CREATE USER guard", "GRANT ALL ON shop.* TO guard", "USE shop"] {
        database.query_drop(prepare).await?;
    }
    mysql::install(&mut mysql_async::Conn::new(options.user(Some("guard"))).await?).await?;
    database.query_drop(TABLE).await?;
    database.query_drop(ROW).await?;
    let access = access();
    for (flush, how) in [(1, "synced"), (0, "not synced")] {
        database.query_drop(format!("SET GLOBAL innodb_flush_log_at_trx_commit = {flush}")).await?;
        let (mut times, mut once) = (Times::default(), Times::default());
        for _ in 0..BLOCKS {
            timed!(times.unguarded, {
                let mut transaction = database.start_transaction(TxOpts::default()).await?;
                transaction.exec_drop(UPDATE, ()).await?;
                transaction.commit().await?;
            });
            timed!(times.guarded, {
                let mut transaction = database.start_transaction(TxOpts::default()).await?;
                mysql::admit(&mut transaction, &access).await?;
                transaction.exec_drop(UPDATE, ()).await?;
                transaction.commit().await?;
            });
            timed!(once.guarded, {
                let mut transaction = database.start_transaction(TxOpts::default()).await?;
                mysql::once(&mut transaction, "wallet:7", &new_key(), token()).await?;
                transaction.exec_drop(UPDATE, ()).await?;
                transaction.commit().await?;
            });
        }
        once.unguarded.clone_from(&times.unguarded);
        times.print(&format!("MariaDB, {how}"));
        once.print(&format!("MariaDB, {how}, once"));
    }
    database.disconnect().await?;
    Ok(())
}

fn in_sqlite() -> Outcome {
    let directory = tempfile::tempdir()?;
    let mut database = rusqlite::Connection::open(directory.path().join("bank.db"))?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    sqlite::install(&mut database)?;
    database.execute_batch(&format!("{TABLE}; {ROW}"))?;
    for (synchronous, how) in [("FULL", "synced"), ("OFF", "not synced")] {
        database.pragma_update(None, "synchronous", synchronous)?;
        let (access, mut times, mut once) = (access(), Times::default(), Times::default());
        for _ in 0..BLOCKS {
            timed!(times.unguarded, {
                let transaction = database.transaction()?;
                transaction.prepare_cached(UPDATE)?.execute([])?;
                transaction.commit()?;
            });
            timed!(times.guarded, {
                let transaction = database.transaction()?;
                sqlite::admit(&transaction, &access)?;
                transaction.prepare_cached(UPDATE)?.execute([])?;
                transaction.commit()?;
            });
            timed!(once.guarded, {
                let transaction = database.transaction()?;
                sqlite::once(&transaction, "wallet:7", &new_key(), token())?;
                transaction.prepare_cached(UPDATE)?.execute([])?;
                transaction.commit()?;
            });
        }
        once.unguarded.clone_from(&times.unguarded);
        times.print(&format!("SQLite, {how}"));
        once.print(&format!("SQLite, {how}, once"));
    }
    Ok(())
}

async fn in_redis() -> Outcome {
    let Some(server) = shared(Kind::Redis) else { return Ok(()) };
    let mut connection = ::redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let (guard, access, mut times) = (redis::Guard::default(), access(), Times::default());
    for _ in 0..BLOCKS {
        timed!(times.unguarded, {
            let () = ::redis::cmd("SET").arg("wallet:7").arg(400).query_async(&mut connection).await?;
        });
        timed!(times.guarded, {
            let () = guard.write(&mut connection, &access, ::redis::pipe().set("wallet:7", 400)).await?;
        });
    }
    times.print("Redis");
    Ok(())
}

fn in_files() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (marks, wallet) = (directory.path().join("marks"), directory.path().join("wallet.txt"));
    file::install(&marks)?;
    let guard = file::Guard::open(&marks)?;
    let (access, mut times) = (access(), Times::default());
    for _ in 0..BLOCKS / 4 {
        timed!(times.unguarded, {
            let draft = directory.path().join("draft");
            let mut file = std::fs::File::create(&draft)?;
            std::io::Write::write_all(&mut file, b"400")?;
            file.sync_all()?;
            std::fs::rename(&draft, &wallet)?;
            std::fs::File::open(directory.path())?.sync_all()?;
        });
        timed!(times.guarded, { guard.write(&access, &wallet, b"400")? });
    }
    times.print("a file, replaced and synced");
    Ok(())
}

async fn in_objects() -> Outcome {
    let store = Arc::new(object_store::memory::InMemory::new());
    let guard = object::Guard::open(store.clone()).await?;
    let (access, mut times) = (access(), Times::default());
    let place = object_store::path::Path::from("unguarded");
    for _ in 0..BLOCKS {
        timed!(times.unguarded, { drop(store.put(&place, "400".into()).await?) });
        timed!(times.guarded, { guard.write(&access, "400".into()).await? });
    }
    times.print("an object in memory");
    Ok(())
}
