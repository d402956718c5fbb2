//! Services behind the layer: HTTP with marks in SQLite, and gRPC with marks in memory, each with real clients.
#![cfg(all(feature = "http", feature = "sqlite"))]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::suite::{AnyAccess, Connection, Store, block_on, reader, writer};
use axum::extract::State;
use axum::{Extension, Router, routing};
use bytes::Bytes;
use fencepost_fence::http::{FENCING_TOKEN, FencingLayer, Presented, Refusal, Refused, header};
use fencepost_fence::rules::{MarkTable, Use};
use fencepost_fence::{Access, Error, FencingToken, Forgotten, Name, ReadToken, Stale, Token, sqlite};
use futures_core::stream::BoxStream;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use rusqlite::{OptionalExtension, TransactionBehavior};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Endpoint;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

struct Service {
    address: SocketAddr,
    directory: TempDir,
    /// Dropping it ends the service.
    _running: oneshot::Sender<()>,
}

impl Service {
    fn fresh() -> Service {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut database = open(&directory);
        sqlite::install(&mut database).expect("a database of our own");
        database
            .execute_batch("CREATE TABLE numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL)")
            .expect("valid SQL");
        let router = Router::new()
            .route("/peek", routing::get(peek).post(peek))
            .route("/ask", routing::post(ask))
            .route("/unguarded", routing::post(unguarded))
            .with_state(Arc::new(Mutex::new(database)))
            .layer(FencingLayer::new().exempt("/unguarded"));
        let (address, running) = serve(|listener, ended| async {
            axum::serve(listener, router).with_graceful_shutdown(ended).await.expect("it serves");
        });
        Service { address, directory, _running: running }
    }
}

/// Runs a server in a thread of its own on a free port, until the sender is dropped.
fn serve<Run: Future<Output = ()>>(
    run: impl FnOnce(TcpListener, BoxEnd) -> Run + Send + 'static,
) -> (SocketAddr, oneshot::Sender<()>) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has free ports");
    listener.set_nonblocking(true).expect("a valid setting");
    let address = listener.local_addr().expect("it is bound");
    let (running, ended) = oneshot::channel();
    std::thread::spawn(|| {
        block_on(async {
            let ended: BoxEnd = Box::pin(async { drop(ended.await) });
            run(TcpListener::from_std(listener).expect("it is bound"), ended).await;
        });
    });
    (address, running)
}

type BoxEnd = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn open(directory: &TempDir) -> rusqlite::Connection {
    let database = rusqlite::Connection::open(directory.path().join("store.db")).expect("a directory of our own");
    database.busy_timeout(Duration::from_secs(60)).expect("a valid setting");
    // These tests do not need to survive a power failure.
    database.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").expect("valid SQL");
    database
}

type Database = Arc<Mutex<rusqlite::Connection>>;

/// The body of a request: what to do, under which name, under which other names, and the number.
fn parts(body: &Bytes) -> (String, String, Vec<String>, i64) {
    let value: Value = serde_json::from_slice(body).expect("the client writes JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let also = value["also"].as_array().into_iter().flatten().map(text).collect();
    (text(&value["do"]), text(&value["name"]), also, value["number"].as_i64().unwrap_or_default())
}

fn number(database: &rusqlite::Connection, name: &str) -> i64 {
    let select = "SELECT number FROM numbers WHERE name = ?1";
    database.query_row(select, [name], |row| row.get(0)).optional().expect("valid SQL").unwrap_or(0)
}

fn set(database: &rusqlite::Connection, name: &str, number: i64) {
    let upsert = "INSERT INTO numbers VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET number = ?2";
    database.execute(upsert, rusqlite::params![name, number]).expect("valid SQL");
}

async fn peek(State(database): State<Database>, body: Bytes) -> String {
    let (_, name, ..) = parts(&body);
    number(&database.lock().expect("no thread panics"), &name).to_string()
}

async fn unguarded(State(database): State<Database>, body: Bytes) {
    let (_, name, _, number) = parts(&body);
    set(&database.lock().expect("no thread panics"), &name, number);
}

// Rule: same-transaction
async fn ask(
    State(database): State<Database>,
    Extension(presented): Extension<Presented>,
    body: Bytes,
) -> Result<String, Refused> {
    let (what, name, also, new) = parts(&body);
    let mut database = database.lock().expect("no thread panics");
    let behavior = TransactionBehavior::Immediate;
    let transaction = database.transaction_with_behavior(behavior).map_err(|error| Error::Store(error.into()))?;
    match &*what {
        "read" => sqlite::admit(&transaction, &presented.read(&name))?,
        "claim" => {
            let access = also.iter().try_fold(presented.claim(&name), |access, name| {
                presented.token_for(name).map(|token| access.and_claim(name, token))
            })?;
            sqlite::admit(&transaction, &access)?;
        }
        _ => {
            let access = also.iter().try_fold(presented.write(&name), |access, name| {
                presented.token_for(name).map(|token| access.and_write(name, token))
            })?;
            sqlite::admit(&transaction, &access)?;
            set(&transaction, &name, new);
        }
    }
    let number = number(&transaction, &name);
    if what != "write and crash" {
        transaction.commit().map_err(|error| Error::Store(error.into()))?;
    }
    Ok(number.to_string())
}

type HttpClient = legacy::Client<legacy::connect::HttpConnector, Full<Bytes>>;

struct Client {
    client: HttpClient,
    address: SocketAddr,
    database: rusqlite::Connection,
}

impl Store for Service {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = true;

    async fn connect(&self) -> Client {
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        Client { client, address: self.address, database: open(&self.directory) }
    }
}

impl Client {
    async fn send(&self, method: Method, path: &str, tokens: &[&[u8]], body: Value) -> Response<Bytes> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for tokens in tokens {
            request = request.header(FENCING_TOKEN, HeaderValue::from_bytes(tokens).expect("a header can carry it"));
        }
        let request = request.body(Full::from(body.to_string())).expect("a valid request");
        let (parts, body) = self.client.request(request).await.expect("it serves").into_parts();
        Response::from_parts(parts, body.collect().await.expect("it serves").to_bytes())
    }

    async fn ask<Kind>(&self, what: &str, access: &Access<Kind>, number: i64) -> Result<i64, Error> {
        let shown = access.shown().expect("valid names");
        let also = shown[1..].iter().filter(|one| one.used_to != Use::Read).map(|one| one.name.as_str());
        let body =
            json!({"do": what, "name": shown[0].name.as_str(), "also": also.collect::<Vec<_>>(), "number": number});
        let header = header(access).expect("valid names");
        let response = self.send(Method::POST, "/ask", &[header.as_bytes()], body).await;
        match response.status() {
            StatusCode::OK => Ok(String::from_utf8_lossy(response.body()).parse().expect("a number")),
            StatusCode::PRECONDITION_FAILED => Err(Error::Stale(stale_of(&response))),
            status => panic!("{status}: {:?}", response.body()),
        }
    }
}

/// The stale token from the body of an answer. The headers must say the same.
fn stale_of(response: &Response<Bytes>) -> Stale {
    let problem: Value = serde_json::from_slice(response.body()).expect("JSON");
    let name = |field: &str| Name::new(problem[field].as_str().expect("text")).expect("a valid name");
    let token = |field: &str| Token(problem[field].as_u64().expect("a number"));
    let stale = Stale { name: name("name"), token: token("token"), at: name("at"), highest: token("highest") };
    assert_eq!(response.headers()["fencing-token-highest"], stale.highest.0.to_string());
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(problem["detail"], stale.to_string());
    stale
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        self.ask("claim", &Access::claim(name, token), 0).await
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        self.ask("read", &Access::read(name, token), 0).await
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        self.ask("write", &Access::write(name, token), number).await.map(drop)
    }

    async fn peek(&mut self, name: &str) -> i64 {
        let response = self.send(Method::GET, "/peek", &[], json!({"name": name})).await;
        String::from_utf8_lossy(response.body()).parse().expect("a number")
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        let response = self.send(Method::POST, "/unguarded", &[], json!({"name": name, "number": number})).await;
        assert_eq!(response.status(), StatusCode::OK);
    }

    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error> {
        match access {
            AnyAccess::Reads(access) => self.ask("read", access, 0).await.map(drop),
            AnyAccess::Claims(access) => self.ask("claim", access, 0).await.map(drop),
            AnyAccess::Writes(access) => self.ask("write", access, 0).await.map(drop),
        }
    }

    async fn write_and_crash(self, name: &str, token: FencingToken, number: i64) {
        self.ask("write and crash", &Access::write(name, token), number).await.expect("its token is good");
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error> {
        sqlite::forget_below(&mut self.database, oldest_live)
    }
}

crate::suite::suite!(Some(Service::fresh()));

#[test]
fn a_request_that_needs_a_token_and_has_none_is_told_so() {
    let service = Service::fresh();
    block_on(async {
        let client = service.connect().await;
        let missing = client.send(Method::POST, "/peek", &[], json!({"name": "wallet"})).await;
        assert_eq!(missing.status(), StatusCode::PRECONDITION_REQUIRED);
        let problem: Value = serde_json::from_slice(missing.body()).expect("JSON");
        assert_eq!(problem["status"], 428);
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("Fencing-Token: 42")), "{problem}");
        for (method, path) in [(Method::GET, "/peek"), (Method::POST, "/unguarded")] {
            let let_in = client.send(method, path, &[], json!({"name": "wallet"})).await;
            assert_eq!(let_in.status(), StatusCode::OK, "{path}");
        }
    });
}

#[test]
fn tokens_that_cannot_be_read_are_refused_whatever_the_method() {
    let service = Service::fresh();
    block_on(async {
        let client = service.connect().await;
        let bad: [&[&[u8]]; 8] = [
            &[b"42", b"42"],
            &[b"99999999999999999999999"],
            &[b"9007199254740992"],
            &[b"-42"],
            &[b"abc"],
            &[b""],
            &[b"4\xc3\xbc"],
            &[b"42, 17;read=\"price"],
        ];
        for tokens in bad {
            for method in [Method::GET, Method::POST] {
                let response = client.send(method, "/peek", tokens, json!({"name": "wallet"})).await;
                assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{tokens:?}");
                assert!(String::from_utf8_lossy(response.body()).contains("price:3"), "it shows a correct header");
            }
        }
        let good = client.send(Method::POST, "/peek", &[b"42", b"17;read=\"price\""], json!({"name": "wallet"})).await;
        assert_eq!(good.status(), StatusCode::OK);
    });
}

#[test]
fn a_write_is_refused_with_a_stale_read_and_needs_a_token_for_every_name() {
    let service = Service::fresh();
    block_on(async {
        let mut client = service.connect().await;
        client.write("price:3", writer(6), 100).await.expect("the first");
        let access = Access::write("order", writer(7)).and_read("price:3", reader(5));
        crate::suite::stale(client.ask("write", &access, 1).await, 5, 6);
        let body = json!({"do": "write", "name": "order", "also": ["ü"], "number": 1});
        let missing = client.send(Method::POST, "/ask", &[b"7, 8;write=\"other\", 8;read=%\"%c3%bc\""], body).await;
        assert_eq!(missing.status(), StatusCode::PRECONDITION_REQUIRED);
        assert!(String::from_utf8_lossy(missing.body()).contains("also writes ü"), "{missing:?}");
        assert_eq!(client.peek("order").await, 0, "nothing was written");
    });
}

// Rule: once
#[test]
fn work_that_was_done_before_is_a_conflict() {
    let mut database = rusqlite::Connection::open_in_memory().expect("memory");
    sqlite::install(&mut database).expect("a database of our own");
    let headers =
        [("fencing-token", HeaderValue::from_static("42"))].map(|(name, value)| (name.parse().expect("a name"), value));
    let presented = Presented::from_headers(&headers.into_iter().collect()).expect("it can be read").expect("a token");
    let transaction = database.transaction().expect("there is no other transaction");
    sqlite::once(&transaction, "billing", "2026-11", presented.token()).expect("the first");
    transaction.commit().expect("it is the only writer");
    let again = database.transaction().expect("there is no other transaction");
    let refused = sqlite::once(&again, "billing", "2026-11", "43".parse().expect("a token")).expect_err("done before");
    let (status, grpc) = (StatusCode::CONFLICT, tonic::Code::AlreadyExists as i32);
    let refusal = Refusal::from(&refused);
    assert_eq!((refusal.status(), refusal.grpc_code()), (status, grpc));
    assert!(refusal.message().contains("done before, with token 42"), "{}", refusal.message());
    let refusal = Refusal::from(sqlite::once(&again, "billing", "", presented.token()).expect_err("no key"));
    assert_eq!(refusal.status(), StatusCode::BAD_REQUEST);
}

#[test]
fn the_error_of_a_store_is_not_shown_to_callers() {
    let failed = Refusal::from(Error::Store("password=1234".into()));
    assert_eq!((failed.status(), failed.grpc_code()), (StatusCode::INTERNAL_SERVER_ERROR, 2));
    assert!(!failed.http().body().contains("1234"));
    assert!(failed.message().contains("unknown"), "{}", failed.message());
    let missing = Refusal::from(Error::NotInstalled("at /secret/place".into()));
    assert!(!missing.http().body().contains("secret"));
}

/// A gRPC service for the tests: the health service, where the service in the request is the name of the access.
#[derive(Default)]
struct Ward(Mutex<MarkTable>);

#[tonic::async_trait]
impl Health for Ward {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, tonic::Status>>;

    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, tonic::Status> {
        if let Some(presented) = request.extensions().get::<Presented>() {
            let access = presented.write(&request.get_ref().service);
            self.admit(&access).map_err(|error| {
                let refusal = Refusal::from(error);
                let metadata = MetadataMap::from_headers(refusal.headers());
                tonic::Status::with_metadata(refusal.grpc_code().into(), refusal.message(), metadata)
            })?;
        }
        Ok(tonic::Response::new(HealthCheckResponse { status: 1 }))
    }

    async fn watch(
        &self,
        _: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, tonic::Status> {
        Err(tonic::Status::unimplemented("no test watches"))
    }
}

impl Ward {
    fn admit<Kind>(&self, access: &Access<Kind>) -> Result<(), Error> {
        Ok(self.0.lock().expect("no thread panics").admit(access.shown()?)?)
    }
}

/// Asks a gRPC service behind this layer, once for each token.
fn asked(layer: FencingLayer, tokens: &[Option<&'static [u8]>]) -> Vec<Result<(), tonic::Status>> {
    let (address, _running) = serve(|listener, ended| async {
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder().layer(layer).add_service(HealthServer::new(Ward::default()));
        server.serve_with_incoming_shutdown(incoming, ended).await.expect("it serves");
    });
    block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a valid address");
        let mut client = HealthClient::new(endpoint.connect().await.expect("it serves"));
        let mut answers = Vec::new();
        for token in tokens {
            let mut request = tonic::Request::new(HealthCheckRequest { service: "wallet:ü".to_owned() });
            if let Some(token) = token {
                let value = MetadataValue::try_from(*token).expect("metadata can carry it");
                request.metadata_mut().insert("fencing-token", value);
            }
            answers.push(client.check(request).await.map(drop));
        }
        answers
    })
}

#[test]
fn grpc_clients_see_what_was_missing_malformed_and_stale() {
    let answers = asked(FencingLayer::new(), &[None, Some(b"abc"), Some(b"7"), Some(b"7"), Some(b"5")]);
    let [Err(missing), Err(malformed), Ok(()), Ok(()), Err(stale)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(missing.code(), tonic::Code::FailedPrecondition);
    assert!(missing.message().contains("Fencing-Token: 42"), "{missing}");
    assert_eq!(malformed.code(), tonic::Code::InvalidArgument);
    assert!(malformed.message().contains("`42, 17;read=\"price:3\"`"), "{malformed}");
    assert_eq!(stale.code(), tonic::Code::FailedPrecondition);
    assert!(stale.message().contains("stale fencing token 5 for wallet:ü"), "{stale}");
    assert_eq!(stale.metadata().get("fencing-token-highest").expect("it says so"), "7");
}

#[test]
fn grpc_calls_on_exempt_paths_need_no_token() {
    let answers = asked(FencingLayer::new().exempt("/grpc.health.v1.Health/"), &[None, Some(b"abc")]);
    assert!(matches!(&answers[..], [Ok(()), Ok(())]), "{answers:?}");
    let answers = asked(FencingLayer::new().exempt("/another.Service/"), &[None]);
    assert!(answers[0].is_err());
}
