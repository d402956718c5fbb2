//! The guard of Redis, against a real one.
#![cfg(feature = "redis")]

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::suite::{AnyAccess, Connection, Store, block_on, reader, stale, writer};
use fencepost_fence::redis::Guard;
use fencepost_fence::{Access, Error, FencingToken, Forgotten, ReadToken, Status, Token};
use fencepost_testbed::{Kind, Server, own, shared};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Pipeline, Value, cmd, pipe};

/// A store with keys of its own, on the server that all tests share.
struct Redis {
    url: String,
    prefix: String,
}

impl Redis {
    fn fresh() -> Option<Redis> {
        static STORES: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("{{store {}}}:", STORES.fetch_add(1, SeqCst));
        Some(Redis { url: shared(Kind::Redis)?.url(), prefix })
    }
}

async fn open(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a valid address");
    client.get_multiplexed_async_connection().await.expect("it serves")
}

struct Client {
    connection: MultiplexedConnection,
    guard: Guard,
    prefix: String,
}

impl Store for Redis {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = true;

    async fn connect(&self) -> Client {
        let guard = Guard::new(format!("{}marks", self.prefix));
        Client { connection: open(&self.url).await, guard, prefix: self.prefix.clone() }
    }
}

impl Client {
    fn key(&self, name: &str) -> String {
        format!("{}number of {name}", self.prefix)
    }

    async fn status(&mut self) -> Status {
        self.guard.status(&mut self.connection).await.expect("it serves")
    }
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        let (access, key) = (Access::claim(name, token), self.key(name));
        let (number,): (Option<i64>,) = self.guard.claim(&mut self.connection, &access, pipe().get(key)).await?;
        Ok(number.unwrap_or(0))
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        let (access, key) = (Access::read(name, token), self.key(name));
        let (number,): (Option<i64>,) = self.guard.read(&mut self.connection, &access, pipe().get(key)).await?;
        Ok(number.unwrap_or(0))
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        let (access, key) = (Access::write(name, token), self.key(name));
        self.guard.write(&mut self.connection, &access, pipe().set(key, number)).await
    }

    async fn peek(&mut self, name: &str) -> i64 {
        let number: Option<i64> = self.connection.get(self.key(name)).await.expect("it serves");
        number.unwrap_or(0)
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        let () = self.connection.set(self.key(name), number).await.expect("it serves");
    }

    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error> {
        let (connection, nothing) = (&mut self.connection, Pipeline::new());
        match access {
            AnyAccess::Reads(access) => self.guard.read(connection, access, &nothing).await,
            AnyAccess::Claims(access) => self.guard.claim(connection, access, &nothing).await,
            AnyAccess::Writes(access) => self.guard.write(connection, access, &nothing).await,
        }
    }

    /// A sender cannot die in the middle of a script. This comes nearest: the script is queued after MULTI, and EXEC never comes.
    async fn write_and_crash(mut self, name: &str, token: FencingToken, number: i64) {
        let () = cmd("MULTI").query_async(&mut self.connection).await.expect("it serves");
        self.write(name, token, number).await.expect_err("it is only queued, which must not look like success");
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error> {
        self.guard.forget_below(&mut self.connection, oldest_live).await
    }
}

crate::suite::suite!(Redis::fresh());

/// Runs a test with keys of its own, if there is a server.
fn with_client(test: impl AsyncFnOnce(Client)) {
    if let Some(store) = Redis::fresh() {
        block_on(async { test(store.connect().await).await });
    }
}

#[test]
fn the_status_counts_names_and_writes_and_refuses_a_newer_form() {
    with_client(async |mut client| {
        let empty = Status { version: 1, base: Token(0), names: 0, writes: 0, highest: Token(0), keys: None };
        assert_eq!(client.status().await, empty);
        client.write("/wallets/7", writer(5), 50).await.expect("the first");
        client.write("/wallets/7", writer(5), 51).await.expect("one holder writes many times");
        client.claim("order", writer((1 << 53) - 1)).await.expect("the largest possible token");
        assert_eq!(client.status().await, Status { names: 3, writes: 2, highest: Token((1 << 53) - 1), ..empty });
        stale(client.claim("order", writer((1 << 53) - 2)).await, (1 << 53) - 2, (1 << 53) - 1);

        let marks = format!("{}marks", client.prefix);
        let () = client.connection.hset(marks, "version", 2).await.expect("it serves");
        let status = client.guard.status(&mut client.connection).await.map(drop);
        let forgotten = client.forget_below(Token(3)).await.map(drop);
        for refused in [client.write("order", writer(9), 9).await, status, forgotten] {
            let refused = refused.expect_err("a newer version has created it");
            assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("version 2")), "{refused}");
        }
    });
}

#[test]
fn a_claim_or_a_read_cannot_carry_a_write() {
    with_client(async |mut client| {
        let (key, connection) = (client.key("wallet"), &mut client.connection);
        let commands = pipe().get(&key).set(&key, 1).to_owned();
        let claim: Result<Value, _> =
            client.guard.claim(connection, &Access::claim("wallet", writer(5)), &commands).await;
        let read: Result<Value, _> = client.guard.read(connection, &Access::read("wallet", reader(5)), &commands).await;
        for refused in [claim, read] {
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        }
        assert_eq!(client.peek("wallet").await, 0);
        assert_eq!(client.status().await.names, 0, "no mark was lifted");
    });
}

#[test]
fn commands_answer_in_their_order_with_any_bytes() {
    with_client(async |mut client| {
        let (key, list) = (client.key("bytes"), client.key("list"));
        let bytes: Vec<u8> = (0..=255).collect();
        let mut commands = pipe();
        commands.set(&key, &bytes).get("nowhere").get(&key).rpush(&list, &["a", ""]).lrange(&list, 0, -1);
        let access = Access::write("wallet", writer(5));
        type Answers = (Value, Option<String>, Vec<u8>, i64, Vec<String>);
        let answers: Answers = client.guard.write(&mut client.connection, &access, &commands).await.expect("the first");
        assert_eq!(answers, (Value::Okay, None, bytes, 2, vec!["a".to_owned(), String::new()]));
    });
}

/// Redis undoes nothing. The marks are lifted before the first command, so a failed access shuts out only stale holders.
#[test]
fn a_command_that_fails_leaves_lifted_marks_behind_and_no_stale_writer_gets_in() {
    with_client(async |mut client| {
        client.write("wallet", writer(5), 50).await.expect("the first");
        let key = client.key("wallet");
        let commands = pipe().set(&key, 70).rpush(&key, "not a list").set(&key, 71).to_owned();
        let access = Access::write("wallet", writer(7));
        let failed: Result<(), _> = client.guard.write(&mut client.connection, &access, &commands).await;
        let failed = failed.expect_err("it is not a list");
        assert!(matches!(&failed, Error::Store(why) if why.to_string().contains("WRONGTYPE")), "{failed}");
        assert_eq!(client.peek("wallet").await, 70, "the commands before it ran, those after it did not");
        stale(client.write("wallet", writer(6), 60).await, 6, 7);
        client.write("wallet", writer(7), 72).await.expect("its holder can go on");
    });
}

/// The guard cannot prevent this. It is the reason why Redis is for efficiency only.
#[test]
fn a_fail_over_forgets_marks_and_lets_a_stale_token_in() {
    let (Some(old), Some(new)) = (own(Kind::Redis), own(Kind::Redis)) else { return };
    block_on(async {
        let client = async |server: &Server| Client {
            connection: open(&server.url()).await,
            guard: Guard::default(),
            prefix: String::new(),
        };
        let (mut primary, mut replica) = (client(&old).await, client(&new).await);
        primary.write("wallet", writer(5), 50).await.expect("the first");
        let follow = cmd("REPLICAOF").arg("127.0.0.1").arg(old.port()).to_owned();
        let () = follow.query_async(&mut replica.connection).await.expect("it serves");
        let patience = Instant::now() + Duration::from_secs(60);
        while replica.peek("wallet").await != 50 {
            assert!(Instant::now() < patience, "the replica does not follow");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stale(primary.write("wallet", writer(4), 40).await, 4, 5);

        // The link is cut, the primary goes on for a moment, and then its replica takes its place.
        let () = cmd("REPLICAOF").arg("NO").arg("ONE").query_async(&mut replica.connection).await.expect("it serves");
        primary.claim("wallet", writer(7)).await.expect("newer");
        primary.write("wallet", writer(7), 70).await.expect("it holds the lock, and Redis acknowledges the write");
        stale(primary.write("wallet", writer(5), 51).await, 5, 7);
        drop(old);
        replica
            .write("wallet", writer(5), 51)
            .await
            .expect("the replica has the marks of the moment when the link was cut");
        assert_eq!(replica.peek("wallet").await, 51, "the stale write counts, and the newer one is gone");
    });
}
