//! The blocking client over real sockets.
#![cfg(feature = "blocking")]

use std::time::Duration;

use crate::cluster::Cluster;
use fencepost::blocking::Client;

#[test]
fn threads_take_turns_and_the_last_handle_closes_the_session() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (cluster, address) = runtime.block_on(Cluster::start());
    let client = Client::connect(&format!("fencepost://{address}")).unwrap();
    let held = client.acquire(client.lock("a")).unwrap();
    assert!(held.is_held());
    assert!(client.try_acquire(client.lock("a")).unwrap().is_none());
    let waits = std::thread::spawn({
        let client = client.clone();
        move || client.acquire(client.lock("a").wait(Duration::from_secs(10))).map(|lock| lock.token())
    });
    runtime.block_on(cluster.until("queued", |counts| counts.waiters == 1));
    let before = held.token();
    held.release().unwrap();
    assert!(waits.join().unwrap().unwrap() > before);
    let permits = client.acquire_permits(client.semaphore("s").limit(2)).unwrap();
    let explained = client.wait_for(client.explain("s")).unwrap();
    assert_eq!(explained.what.holders.len(), 1);
    drop((permits, client));
    runtime.block_on(cluster.until("everything closed", |counts| counts.sessions == 0));
}
