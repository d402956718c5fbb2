//! One of several processes leads. When it resigns or dies, the next candidate leads.
//!
//! Start it twice, in two terminals, with two names. End the leader with Ctrl-C.
//!
//! ```sh
//! fencepost dev --background
//! cargo run -p fencepost-examples --bin leader_election -- ann
//! cargo run -p fencepost-examples --bin leader_election -- ben
//! ```

use anyhow::Context;
use fencepost::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let me = std::env::args().nth(1).unwrap_or(format!("process {}", std::process::id()));
    let mut stop = tokio::spawn(tokio::signal::ctrl_c());

    let client = Client::from_env()
        .await
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;

    let election = client.election("scheduler");
    if let Some(leader) = election.leader().await? {
        // The value is what the leader said in its campaign: here its name, often its address.
        let value = leader.value.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()));
        println!("{me} waits: {} leads", value.unwrap_or_default());
    }

    // Waits until elected, however long that takes. Dropping the campaign withdraws the candidate.
    let leadership = tokio::select! {
        elected = election.campaign(&me) => elected?,
        _ = &mut stop => {
            println!("{me} withdraws");
            return Ok(());
        }
    };
    // The epoch is a fencing token: give it to the store with everything that the leader writes.
    println!("{me} leads in epoch {}", leadership.epoch());

    // The leader's work stands here, as a third branch. A branch that ends drops the others.
    tokio::select! {
        why = leadership.lost() => anyhow::bail!("{me} leads no longer: {why}"),
        _ = &mut stop => {
            // Without this the next candidate would wait until the session of this process expires.
            leadership.resign().await?;
            println!("{me} resigned");
        }
    }
    Ok(())
}
