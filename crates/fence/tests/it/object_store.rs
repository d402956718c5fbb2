//! The guard of object stores: in memory, against an S3 server, and its refusal of stores without a conditional put.
#![cfg(feature = "object-store")]

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::suite::{AnyAccess, Connection, Store, block_on, reader, stale, writer};
use async_trait::async_trait;
use fencepost_fence::{Access, Error, FencingToken, Forgotten, ReadToken, Token, object};
use fencepost_testbed::Kind;
use futures_core::stream::BoxStream;
use http_body_util::BodyExt;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpService,
};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

mod memory {
    use super::Memory;
    crate::suite::suite!(Some(Memory::default()));
}

mod s3 {
    use super::S3;
    crate::suite::suite!(S3::fresh());
}

#[derive(Default)]
struct Memory(Arc<InMemory>);

impl Store for Memory {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = false;
    const FORGETS: bool = false;

    async fn connect(&self) -> Client {
        Client::of(Faulty::new(self.0.clone(), Fault::None)).await
    }
}

/// A bucket of its own on the server that all tests share.
struct S3 {
    endpoint: String,
    bucket: String,
}

impl S3 {
    fn fresh() -> Option<S3> {
        static BUCKETS: AtomicUsize = AtomicUsize::new(0);
        let server = fencepost_testbed::shared(Kind::S3)?;
        let bucket = format!("bucket-{}", BUCKETS.fetch_add(1, SeqCst));
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it serves");
        let request =
            format!("PUT /{bucket} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.lines().next().is_some_and(|status| status.contains("200")), "{answer}");
        Some(S3 { endpoint: server.url(), bucket })
    }

    fn client(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new().with_endpoint(&self.endpoint).with_allow_http(true);
        let builder = builder.with_http_connector(PlainHttp);
        let builder = builder.with_bucket_name(&self.bucket).with_region("us-east-1");
        Arc::new(builder.with_access_key_id("key").with_secret_access_key("secret").build().expect("a valid setting"))
    }
}

#[derive(Debug)]
struct PlainHttp;

impl HttpConnector for PlainHttp {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(PlainClient(legacy::Client::builder(TokioExecutor::new()).build_http())))
    }
}

#[derive(Debug)]
struct PlainClient(legacy::Client<legacy::connect::HttpConnector, HttpRequestBody>);

#[async_trait]
impl HttpService for PlainClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.request(request).await.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
        Ok(HttpResponse::from_parts(parts, body.to_bytes().into()))
    }
}

impl Store for S3 {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = false;
    const FORGETS: bool = false;
    const RACING_ROUNDS: usize = 25;

    async fn connect(&self) -> Client {
        Client::of(self.client()).await
    }
}

struct Client {
    store: Arc<dyn ObjectStore>,
    guard: object::Guard,
}

impl Client {
    async fn of(store: Arc<dyn ObjectStore>) -> Client {
        Client { guard: object::Guard::open(store.clone()).await.expect("it has a conditional put"), store }
    }
}

fn bytes(number: i64) -> bytes::Bytes {
    number.to_string().into()
}

fn number(content: Option<bytes::Bytes>) -> i64 {
    content.map_or(0, |bytes| std::str::from_utf8(&bytes).expect("digits").parse().expect("a number"))
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        self.guard.claim(&Access::claim(name, token)).await.map(number)
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        self.guard.read(&Access::read(name, token)).await.map(number)
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        self.guard.write(&Access::write(name, token), bytes(number)).await
    }

    async fn peek(&mut self, name: &str) -> i64 {
        match self.guard.peek(name).await {
            Ok(content) => number(content),
            // The object was written by `write_unguarded`.
            Err(Error::NotInstalled(_)) => {
                let found = self.store.get(&Path::from(name)).await.expect("it is there");
                number(Some(found.bytes().await.expect("it serves")))
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        self.store.put(&Path::from(name), PutPayload::from(bytes(number))).await.expect("it serves");
    }

    async fn admit(&mut self, _: &AnyAccess) -> Result<(), Error> {
        unreachable!("one name at a time")
    }

    async fn write_and_crash(self, name: &str, token: FencingToken, number: i64) {
        let guard =
            object::Guard::open(Faulty::new(self.store, Fault::DiesBeforePut)).await.expect("it passes the probe");
        let failed = guard.write(&Access::write(name, token), bytes(number)).await;
        assert!(matches!(failed, Err(Error::Store(_))), "it has passed the check: {failed:?}");
    }

    async fn forget_below(&mut self, _: Token) -> Result<Forgotten, Error> {
        unreachable!("objects keep their marks")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The client dies before it sends its put.
    DiesBeforePut,
    /// Once, the put takes effect and its answer is lost.
    LosesOneAnswer,
    /// Once, another client claims with this token between the check and the put.
    IsOvertakenBy(u64),
    /// Every put takes effect, whatever its condition.
    IgnoresConditions,
    /// The condition of every put fails.
    NeverHolds,
    /// No fault. Puts are counted.
    None,
}

/// A store that injects one fault.
#[derive(Debug)]
struct Faulty {
    store: Arc<dyn ObjectStore>,
    fault: Mutex<Fault>,
    puts: AtomicUsize,
}

impl Faulty {
    fn new(store: Arc<dyn ObjectStore>, fault: Fault) -> Arc<Faulty> {
        Arc::new(Faulty { store, fault: Mutex::new(fault), puts: AtomicUsize::new(0) })
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

fn broken() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "the line is dead".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> object_store::Result<PutResult> {
        if *location == Path::from("fencepost-probe")
            && *self.fault.lock().expect("no thread panics") != Fault::IgnoresConditions
        {
            return self.store.put_opts(location, payload, options).await;
        }
        self.puts.fetch_add(1, SeqCst);
        let fault = *self.fault.lock().expect("no thread panics");
        match fault {
            Fault::DiesBeforePut => return Err(broken()),
            Fault::NeverHolds => {
                return Err(object_store::Error::Precondition { path: location.to_string(), source: "never".into() });
            }
            Fault::IgnoresConditions => options.mode = PutMode::Overwrite,
            Fault::IsOvertakenBy(token) => {
                *self.fault.lock().expect("no thread panics") = Fault::None;
                let other = object::Guard::open(self.store.clone()).await.expect("it passes the probe");
                let claim = Access::claim(location.as_ref(), writer(token));
                other.claim(&claim).await.expect("newer than all before");
            }
            Fault::LosesOneAnswer | Fault::None => {}
        }
        let done = self.store.put_opts(location, payload, options).await?;
        if fault == Fault::LosesOneAnswer {
            *self.fault.lock().expect("no thread panics") = Fault::None;
            return Err(broken());
        }
        Ok(done)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let found = self.store.get_opts(location, options).await;
        // Memory is so fast that otherwise no other client would ever come between a get and the put after it.
        std::thread::yield_now();
        found
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[test]
fn a_put_whose_answer_was_lost_is_written_again_with_the_same_token() {
    block_on(async {
        let store = Memory::default();
        let guard = object::Guard::open(Faulty::new(store.0.clone(), Fault::LosesOneAnswer)).await.expect("it passes");
        let access = Access::write("wallet", writer(5));
        let unknown = guard.write(&access, bytes(50)).await.expect_err("its answer was lost");
        assert!(matches!(unknown, Error::Store(_)), "{unknown}");
        assert_eq!(store.connect().await.peek("wallet").await, 50, "it was done all the same");
        guard.write(&access, bytes(50)).await.expect("it finds its own mark");
        guard.claim(&Access::claim("wallet", writer(7))).await.expect("newer");
        stale(guard.write(&access, bytes(51)).await, 5, 7);
    });
}

// Rule: same-transaction
#[test]
fn an_access_overtaken_between_check_and_put_is_checked_again() {
    block_on(async {
        let store = Memory::default();
        let overtaken_by = async |token| {
            object::Guard::open(Faulty::new(store.0.clone(), Fault::IsOvertakenBy(token))).await.expect("it passes")
        };
        let access = Access::write("wallet", writer(5));
        overtaken_by(3).await.write(&access, bytes(50)).await.expect("the claim in between is older");
        assert_eq!(store.connect().await.peek("wallet").await, 50);
        stale(overtaken_by(7).await.write(&access, bytes(51)).await, 5, 7);
        stale(overtaken_by(9).await.claim(&Access::claim("wallet", writer(8))).await, 8, 9);
        assert_eq!(store.connect().await.peek("wallet").await, 50, "what the newer holder read has not changed");
    });
}

/// A put that its sender gave up arrives late. The object has the same content as before that put, but not the same body.
#[test]
fn the_condition_of_a_late_put_fails_even_if_the_same_content_has_come_back() {
    block_on(async {
        let store = Memory::default();
        let guard = object::Guard::open(store.0.clone()).await.expect("it passes");
        let access = Access::write("wallet", writer(5));
        let mut bodies = Vec::new();
        for number in [50, 51, 50] {
            guard.write(&access, bytes(number)).await.expect("it holds the lock");
            bodies.push(store.0.get(&Path::from("wallet")).await.expect("there").bytes().await.expect("it serves"));
        }
        // An S3 ETag is a digest of the body.
        assert_ne!(bodies[0], bodies[2], "no ETag comes back");
    });
}

#[test]
fn an_access_that_lifts_no_mark_puts_nothing() {
    block_on(async {
        let store = Faulty::new(Arc::new(InMemory::new()), Fault::None);
        let guard = object::Guard::open(store.clone()).await.expect("it passes");
        let puts = || store.puts.load(SeqCst);
        guard.claim(&Access::claim("wallet", writer(5))).await.expect("the first");
        guard.write(&Access::write("wallet", writer(5)), bytes(50)).await.expect("it holds the lock");
        assert_eq!(puts(), 2);
        guard.claim(&Access::claim("wallet", writer(5))).await.expect("again");
        guard.read(&Access::read("wallet", reader(5))).await.expect("as new as the write");
        assert_eq!(puts(), 2, "the marks are high enough already");
        guard.read(&Access::read("wallet", reader(6))).await.expect("newer");
        assert_eq!(puts(), 3);
    });
}

#[test]
fn a_store_that_never_recognises_its_own_version_gives_a_clear_error() {
    block_on(async {
        let guard = object::Guard::open(Faulty::new(Arc::new(InMemory::new()), Fault::NeverHolds)).await;
        let guard = guard.expect("it passes the probe");
        let lost =
            guard.write(&Access::write("wallet", writer(5)), bytes(50)).await.expect_err("its condition always fails");
        assert!(lost.to_string().contains("changed 100 times"), "{lost}");
    });
}

#[test]
fn a_store_that_ignores_conditions_is_refused_before_it_is_used() {
    block_on(async {
        let store = Faulty::new(Arc::new(InMemory::new()), Fault::IgnoresConditions);
        let refused = object::Guard::open(store).await.expect_err("it would admit every token");
        assert!(matches!(refused, Error::Unsupported(why) if why.contains("condition does not hold")), "{refused}");
    });
}

#[test]
fn a_directory_as_an_object_store_is_refused_and_left_as_it_was() {
    block_on(async {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Arc::new(LocalFileSystem::new_with_prefix(directory.path()).expect("it is there"));
        let refused = object::Guard::open(store).await.expect_err("it has no conditional put");
        assert!(matches!(refused, Error::Unsupported(why) if why.contains("guard for files")), "{refused}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0);
    });
}

async fn deletes_and_adopts(store: Arc<dyn ObjectStore>) {
    let guard = object::Guard::open(store.clone()).await.expect("it passes");
    guard.write(&Access::write("wallet", writer(5)), bytes(50)).await.expect("the first");
    guard.delete(&Access::write("wallet", writer(7))).await.expect("newer");
    assert_eq!(guard.peek("wallet").await.expect("it serves"), None);
    stale(guard.write(&Access::write("wallet", writer(5)), bytes(51)).await, 5, 7);
    assert_eq!(guard.claim(&Access::claim("wallet", writer(8))).await.expect("newer"), None);
    let status = guard.status("wallet").await.expect("it serves");
    assert_eq!((status.names, status.writes, status.highest), (1, 2, Token(8)));

    for content in ["", "50", "a line\nand another"] {
        store.put(&Path::from("old"), content.into()).await.expect("it serves");
        for refused in [
            guard.claim(&Access::claim("old", writer(9))).await.map(drop),
            guard.write(&Access::write("old", writer(9)), bytes(90)).await,
            guard.delete(&Access::write("old", writer(9))).await,
        ] {
            assert!(matches!(&refused, Err(Error::NotInstalled(why)) if why.contains("adopt")), "{refused:?}");
        }
        guard.adopt(&Access::write("old", writer(9))).await.expect("it has no marks yet");
        assert_eq!(guard.peek("old").await.expect("it has marks"), Some(content.into()), "as it was");
        stale(guard.adopt(&Access::write("old", writer(8))).await, 8, 9);
    }
    store.put(&Path::from("old"), "fencepost-marks 2 of another kind\n".into()).await.expect("it serves");
    let newer = guard.adopt(&Access::write("old", writer(9))).await.expect_err("a newer version has created it");
    assert!(newer.to_string().contains("version \"2\""), "{newer}");
}

#[test]
fn a_deleted_object_keeps_its_marks_and_an_unguarded_one_is_taken_over_only_on_request() {
    block_on(deletes_and_adopts(Arc::new(InMemory::new())));
}

#[test]
fn the_same_on_s3() {
    if let Some(s3) = S3::fresh() {
        block_on(async { deletes_and_adopts(s3.client()).await });
    }
}

#[test]
fn what_one_object_cannot_promise_is_refused() {
    block_on(async {
        let guard = object::Guard::open(Arc::new(InMemory::new())).await.expect("it passes");
        let several = Access::write("order", writer(5)).and_read("price", reader(4));
        let refused = guard.write(&several, bytes(1)).await.expect_err("two objects");
        assert!(matches!(refused, Error::Unsupported(why) if why.contains("one name")), "{refused}");
        // `a//b` and `a/b` would be one location.
        for name in ["/a/b", "a//b", "a/"] {
            let refused = guard.write(&Access::write(name, writer(5)), bytes(1)).await.expect_err("no location");
            assert!(matches!(refused, Error::Unsupported(_)), "{name}: {refused}");
        }
        // Each of these has an object of its own.
        let names = ["a/b", "a/%2E", "a/.", "a%2Fb", "a\\b", "a%5Cb", "A/b", "a/b ", "ü", "u\u{308}", "%C3%BC"];
        for (token, name) in (1..).zip(names.iter().rev()) {
            guard.write(&Access::write(name, writer(token)), (*name).into()).await.expect("the first there");
        }
        for name in names {
            assert_eq!(guard.peek(name).await.expect("it serves"), Some(name.into()));
        }
    });
}
