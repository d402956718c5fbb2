//! TLS with a real server: settings that work, and the errors for settings that do not.

use std::net::SocketAddr;

use crate::authority::Authority;
use fencepost::{Client, ClientBuilder, Error, Failed, Tls};
use fencepost_server::{Begin, Config, Server, TlsFiles};
use fencepost_testing::TestServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A node on free ports of loopback that speaks TLS, and demands a certificate of clients.
pub(crate) async fn node(
    directory: &std::path::Path,
    authority: &Authority,
) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let (certificate, key) = authority.sign(&["127.0.0.1", "fencepost.example"]).write(directory, "node");
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(Config {
        begin: Begin::Found,
        client_listen: free,
        http_listen: free,
        peer_listen: free,
        tls: Some(TlsFiles { certificate, key, authority: Some(authority.write(directory, "authority.pem")) }),
        ..Config::default()
    })
    .await
    .expect("it starts");
    server.wait_until_ready().await;
    server.wait_until_member().await;
    let address = server.client_address();
    let runs = tokio::spawn(async move { server.run_until(std::future::pending()).await.expect("it goes on") });
    (address, runs)
}

#[test]
fn a_key_is_shown_nowhere() {
    let tls = Tls::new("authority").identity("certificate", "hush").server_name("n1.example");
    let builder = Client::builder().tls(tls.clone());
    for seen in [format!("{tls:?} {tls:#?}"), format!("{builder:?}")] {
        assert!(seen.contains("n1.example") && !seen.contains("hush") && !seen.contains("104, 117"), "{seen}");
    }
}

/// The errors of clients with settings that do not work: one asks for a lock of each tier, and the blocking twin connects.
async fn refused(builder: ClientBuilder) -> Vec<String> {
    let client = builder.clone().connect_in_background().expect("the settings are not refused before the connection");
    let mut told = vec![
        client.lock("a").acquire().await.map(drop).expect_err("it must not connect"),
        client.lock("a").efficiency().acquire().await.map(drop).expect_err("it must not connect"),
    ];
    #[cfg(feature = "blocking")]
    {
        let builder = builder.connect_timeout(std::time::Duration::from_secs(3));
        let blocking = tokio::task::spawn_blocking(move || fencepost::blocking::Client::with(builder).map(drop));
        told.push(blocking.await.expect("no panic").expect_err("it must not connect"));
    }
    let failed = told.into_iter().map(|error| match error {
        Error::Failed(failed @ Failed::Unreachable { .. }) => failed.to_string(),
        other => panic!("{other:?}"),
    });
    failed.collect()
}

#[tokio::test]
async fn a_client_takes_a_lock_over_tls_and_is_told_what_is_wrong_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let (address, _runs) = node(directory.path(), &authority).await;
    let mine = authority.sign(&["worker"]);
    let good = Tls::new(authority.pem()).identity(mine.certificate.clone(), mine.key.clone());

    for endpoint in [format!("https://{address}"), address.to_string()] {
        let client = Client::builder().endpoint(endpoint).tls(good.clone()).connect().await.expect("all is right");
        let lock = client.lock("a").acquire().await.expect("it is free");
        client.explain("a").await.expect("calls beside the stream go the same way");
        lock.release().await.expect("it was held");
    }
    let by_name = good.clone().server_name("fencepost.example");
    Client::builder().endpoint(address.to_string()).tls(by_name).connect().await.expect("the certificate bears it");

    let foreign = other.sign(&["worker"]);
    let cases = [
        (Client::builder().tls(Tls::new(other.pem())), "not signed by the authority that was given"),
        (Client::builder().tls(Tls::new(authority.pem())), "wants to see a certificate"),
        (
            Client::builder().tls(Tls::new(authority.pem()).identity(foreign.certificate, foreign.key)),
            "does not know who signed the certificate",
        ),
        (Client::builder().tls(good.clone().server_name("elsewhere.example")), "a name in the node's certificate"),
    ];
    // All at a time: each twin tries until its time is over.
    let refusals =
        cases.map(|(builder, expected)| (tokio::spawn(refused(builder.endpoint(address.to_string()))), expected));
    for (refused, expected) in refusals {
        for said in refused.await.expect("no panic") {
            assert!(said.contains(expected), "{said:?} should say {expected:?}");
        }
    }
}

/// Asserts that every kind of client is told what is wrong at once: when it connects, for a lock of each tier, and for a call.
async fn every_client_is_told(builder: ClientBuilder, expected: &[&str]) {
    let mut told = Vec::new();
    let begun = std::time::Instant::now();
    told.push(builder.clone().connect().await.expect_err("it must not connect"));
    let client = builder.clone().connect_in_background().expect("the settings are not refused before the connection");
    told.push(client.lock("a").acquire().await.map(drop).expect_err("it must not connect"));
    told.push(client.lock("a").efficiency().acquire().await.map(drop).expect_err("it must not connect"));
    told.push(client.status().await.map(drop).expect_err("it must not connect"));
    #[cfg(feature = "blocking")]
    {
        let blocking = tokio::task::spawn_blocking(move || fencepost::blocking::Client::with(builder).map(drop));
        told.push(blocking.await.expect("no panic").expect_err("it must not connect"));
    }
    for error in told {
        let said = error.to_string();
        assert!(matches!(error, Error::Failed(Failed::WrongDoor { .. })), "{error:?}");
        assert!(expected.iter().all(|part| said.contains(part)), "{said:?} should say {expected:?}");
        assert!(!said.contains("bug") && !said.contains("replica"), "{said:?}");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "it is not tried for long: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_client_that_disagrees_about_tls_or_is_wrong_at_the_port_is_told_which_flag_to_use() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (address, _runs) = node(directory.path(), &authority).await;
    let at = |address: SocketAddr| Client::builder().endpoint(address.to_string());
    every_client_is_told(at(address), &["speaks TLS", "https://", "--ca", "ClientBuilder::tls"]).await;
    let plain = TestServer::start();
    let tls = || Tls::new(authority.pem());
    every_client_is_told(at(plain.address()).tls(tls()), &["speaks plain text", "without --ca"]).await;
}

#[tokio::test]
async fn a_client_that_reaches_another_kind_of_server_is_told_so() {
    for (answer, expected) in
        [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "HTTP"), (b"\x15\x03\x01\0\x02\x02\x46", "--ca")]
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut said = [0; 4];
                    let _ = stream.read_exact(&mut said).await;
                    let _ = stream.write_all(answer).await;
                    // It stays open until the client has read the answer and hangs up.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                });
            }
        });
        every_client_is_told(Client::builder().endpoint(address.to_string()), &[expected, "is spoken there"]).await;
    }
}

#[tokio::test]
async fn settings_that_can_never_work_are_refused_before_anything_is_sent() {
    let authority = Authority::new();
    let (mine, another) = (authority.sign(&["worker"]), authority.sign(&["worker"]));
    let tls = || Tls::new(authority.pem());
    let cases = [
        (Client::builder().endpoint("https://a"), "needs the authority"),
        (Client::builder().endpoint("https://a").endpoint("http://b").tls(tls()), "use one of them"),
        (Client::builder().endpoint("http://a").tls(tls()), "http:// is plain text"),
        (Client::builder().endpoint("a").tls(Tls::new("")), "the PEM of the authority contains no certificate"),
        (Client::builder().endpoint("a").tls(Tls::new("-----BEGIN CERTIFICATE-----\nnoise\n")), "cannot be read"),
        (
            Client::builder().endpoint("a").tls(Tls::new(mine.key.clone())),
            "the PEM of the authority contains no certificate",
        ),
        (
            Client::builder().endpoint("a").tls(tls().identity(mine.certificate.clone(), another.key)),
            "the key that it was made for",
        ),
        (Client::builder().endpoint("a").tls(tls().identity("", mine.key.clone())), "give a certificate"),
        (Client::builder().endpoint("a").tls(tls().identity(mine.certificate.clone(), "")), "give a certificate"),
        (Client::builder().endpoint("a").tls(tls().server_name("no name")), "a valid server name"),
    ];
    for (builder, expected) in cases {
        match builder.connect_in_background().expect_err(expected) {
            Error::Failed(Failed::BadTls(said)) => assert!(said.contains(expected), "{said:?} should say {expected:?}"),
            other => panic!("{other:?} should be about TLS, and say {expected:?}"),
        }
    }
    let error = Client::connect("https://127.0.0.1:1").await.expect_err("there is no authority").to_string();
    assert!(error.contains("ClientBuilder::tls"), "{error}");
    let secret = tls().identity(mine.certificate, "secret");
    assert!(!format!("{:?}", Client::builder().tls(secret)).contains("secret"), "a key is never shown");
}
