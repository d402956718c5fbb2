//! Reads over HTTP: their rows, their pages, wrong requests, and callers that may not read.

use fencepost_core::Wait;
use serde_json::Value;

use crate::client::{Client, ask_http, get, lock, one_node, token};

/// The status and the document of an answer.
fn parts(answer: &str) -> (u16, Value) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}")))
}

#[tokio::test]
async fn rows_are_read_with_their_position() {
    let server = one_node().await;
    let mut client = Client::connect(server.client_address()).await.unwrap();
    client.open(1, 30_000).await;
    client.open(2, 30_000).await;
    let held = client.ask(1, 1, 1, lock("orders/1 %", Wait::No)).await;
    client.ask(2, 1, 1, lock("orders/1 %", Wait::Forever)).await;
    let read = async |path: &str| {
        let (status, document) = parts(&get(server.http_address(), path).await);
        assert_eq!(status, 200, "{document}");
        assert!(document["as_of"]["index"].as_u64() > Some(0) && document["as_of"]["time"].is_string(), "{document}");
        document
    };

    let locks = read("/v1/locks?prefix=orders/").await;
    assert_eq!(locks["held"][0]["token"], token(&held).0);
    assert_eq!(locks["held"][0]["locks"][0]["name"], "orders/1 %");
    assert_eq!(locks["waiting"][0]["session"], format!("{:032x}", 2));
    assert_eq!(locks["next"]["after_grant"], Value::Null);
    assert_eq!(read("/v1/locks?prefix=other").await["held"], Value::Array(Vec::new()));

    // A name may have any characters; a free name is no error.
    let why = read("/v1/lock?name=orders%2F1+%25").await;
    assert_eq!((&why["waiting_count"], &why["holders"][0]["token"]), (&1.into(), &token(&held).0.into()));
    assert_eq!(why["blockers"][0]["blocked_by"]["session"], format!("{:032x}", 1));
    let free = read("/v1/lock?name=free").await;
    assert_eq!((&free["holders"], &free["waiting_count"]), (&Value::Array(Vec::new()), &0.into()));

    let members = read("/v1/members").await;
    assert_eq!((&members["members"][0]["name"], &members["members"][0]["leads"]), (&"alone".into(), &true.into()));
    assert_eq!(read("/v1/jobs").await["jobs"], Value::Array(Vec::new()));
    assert_eq!(read("/v1/job?name=billing&key=may").await["state"], "open");

    let first = read("/v1/sessions?limit=1").await;
    let after = first["next"]["after"].as_str().expect("a second page");
    let second = read(&format!("/v1/sessions?limit=1&after={after}&stale=true")).await;
    assert_eq!(
        [&first["sessions"][0]["session"], &second["sessions"][0]["session"]].map(Value::as_str).map(Option::unwrap),
        [format!("{:032x}", 1), format!("{:032x}", 2)]
    );
    assert_eq!(second["sessions"][0]["waits"], 1);
}

#[tokio::test]
async fn a_wrong_request_is_told_what_to_write() {
    let server = one_node().await;
    for (path, status, kind, says) in [
        ("/v1", 404, "no-such-path", "/v1/locks"),
        ("/v1/lcoks", 404, "no-such-path", "/v1/locks"),
        ("/v1/locks/", 404, "no-such-path", "/v1/locks"),
        ("/v1/locks?prefx=a", 400, "invalid", "takes prefix, limit"),
        ("/v1/locks?prefix=a&prefix=b", 400, "invalid", "prefix comes twice"),
        ("/v1/locks?limit=0", 400, "invalid", "between 1 and 500"),
        ("/v1/locks?limit=501", 400, "invalid", "between 1 and 500"),
        ("/v1/locks?limit=-1", 400, "invalid", "not a whole number"),
        ("/v1/locks?after_grant=x", 400, "invalid", "not a whole number"),
        ("/v1/locks?stale=yes", 400, "invalid", "neither true nor false"),
        ("/v1/lock", 400, "invalid", "name is missing"),
        ("/v1/lock?name=", 400, "invalid", "name="),
        ("/v1/lock?name=/a//b", 400, "invalid", "name="),
        ("/v1/job?name=a", 400, "invalid", "key is missing"),
        ("/v1/jobs?after_name=a", 400, "invalid", "belong together"),
        ("/v1/sessions?after=1", 400, "invalid", "32 hex digits"),
        ("/v1/sessions?after=+0000000000000000000000000000001", 400, "invalid", "32 hex digits"),
    ] {
        let answer = get(server.http_address(), path).await;
        let (found, problem) = parts(&answer);
        assert_eq!((found, problem["type"].as_str()), (status, Some(kind)), "{path}: {answer}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(says)), "{path}: {answer}");
        assert_eq!(problem["status"], status);
        assert!(
            answer.contains("content-type: application/problem+json") && answer.contains("cache-control: no-store")
        );
    }
    let long = format!("/v1/lock?name={}", "x".repeat(9_000));
    assert!(get(server.http_address(), &long).await.contains("at most 8192"));
}

#[tokio::test]
async fn a_page_of_another_site_reads_nothing() {
    let server = one_node().await;
    let address = server.http_address();
    let ask = async |method: &str, headers: &str| {
        ask_http(address, &format!("{method} /v1/locks HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")).await
    };
    let own = format!("Host: {address}\r\n");
    assert!(ask("GET", &own).await.starts_with("HTTP/1.1 200"));
    assert!(ask("GET", &format!("{own}Origin: http://{address}\r\n")).await.starts_with("HTTP/1.1 200"));
    for (headers, kind) in [
        (format!("Host: evil.example:{}\r\n", address.port()), "foreign-host"),
        (format!("{own}Origin: http://evil.example\r\n"), "foreign-origin"),
        (format!("{own}Origin: null\r\n"), "foreign-origin"),
    ] {
        let (status, problem) = parts(&ask("GET", &headers).await);
        assert_eq!((status, problem["type"].as_str()), (403, Some(kind)), "{headers}");
    }
    let posted = ask("POST", &format!("{own}Content-Length: 0\r\n")).await;
    assert_eq!(parts(&posted).0, 405);
    assert!(posted.contains("allow: GET") && !posted.to_lowercase().contains("access-control"), "{posted}");
}
