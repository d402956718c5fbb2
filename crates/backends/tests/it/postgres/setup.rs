//! The creation of the tables: by the first program that connects, or by hand.

use fencepost_backends::postgres::{Advisory, Row, SETUP_SQL, Table};
use tokio::task::JoinSet;

use crate::postgres::database::{Database, alone, end_sessions, run, soon, take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_that_connect_to_an_empty_database_at_once_do_not_collide() {
    let Some(database) = Database::fresh().await else { return };
    let mut connecting = JoinSet::new();
    for _ in 0..8 {
        let (table, advisory, row) = (database.address("table"), database.address("advisory"), database.address("row"));
        connecting.spawn(async move { Table::connect(&table).await.map(drop) });
        connecting.spawn(async move { Advisory::connect(&advisory).await.map(drop) });
        connecting.spawn(async move { Row::connect(&row).await.map(drop) });
    }
    for connected in soon("all are connected", connecting.join_all()).await {
        connected.expect("it serves");
    }
}

/// An operator who runs the script by hand does not take the advisory lock of the library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setup_script_may_run_by_hand_at_the_same_time() {
    let Some(database) = Database::fresh().await else { return };
    let by_hand = database.open().await;
    run(&by_hand, "BEGIN").await;
    run(&by_hand, SETUP_SQL).await;
    let address = database.address("table");
    let connecting = tokio::spawn(async move { Table::connect(&address).await });
    let observer = database.open().await;
    crate::postgres::database::until("it waits for the script", async || {
        crate::postgres::database::waiting(&observer).await == 1
    })
    .await;
    run(&by_hand, "COMMIT").await;
    let table = soon("it is connected", connecting).await.expect("no panic").expect("the tables are there");
    take(&table, &alone("a")).await.release().await.expect("it was held");
    run(&by_hand, SETUP_SQL).await;
}

#[tokio::test]
async fn a_role_that_may_not_create_the_tables_is_told_what_to_run() {
    let Some(database) = Database::fresh().await else { return };
    let (admin, role) = (database.open().await, format!("app_of_{}", database.name));
    run(&admin, &format!("CREATE ROLE {role} LOGIN")).await;
    let app = database.seen_by(&role);
    for refused in [
        Table::connect(&app.address("table")).await.map(drop),
        Advisory::connect(&app.address("advisory")).await.map(drop),
        Row::connect(&app.address("row")).await.map(drop),
    ] {
        let refused = refused.expect_err("it may not").to_string();
        assert!(refused.contains("permission denied") && refused.contains(SETUP_SQL), "{refused}");
    }
    // The tables exist, but the role has no rights.
    run(&admin, SETUP_SQL).await;
    for backend in app.every_way().await {
        let refused = backend.try_acquire(&alone("a")).await.expect_err("it may not").to_string();
        assert!(refused.contains("GRANT USAGE ON SCHEMA fencepost_lock"), "{refused}");
    }
    run(
        &admin,
        &format!(
            "GRANT USAGE ON SCHEMA fencepost_lock TO {role};
             GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA fencepost_lock TO {role}"
        ),
    )
    .await;
    for backend in app.every_way().await {
        take(&*backend, &alone("a")).await.release().await.expect("it was held");
    }
    end_sessions(&admin).await;
    run(&admin, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_bad_address_is_refused_and_the_error_shows_no_password() {
    let bad = Table::connect("postgres+table://app:hunter2@host/app?nonsense=1").await.expect_err("no such setting");
    assert!(matches!(&bad, fencepost_backends::Error::BadAddress { .. }), "{bad:?}");
    assert!(!format!("{bad} {bad:?}").contains("hunter2"), "{bad}");
}
