//! Which arguments the SQL functions accept and refuse, for callers in any language.

use fencepost_fence::{Access, Name, Stale, Token, postgres};

use crate::postgres::{Database, begin, code, code_of, done, one, run};
use crate::suite::{block_on, reader, writer};

#[test]
fn names_and_their_paths_are_those_of_the_lock_service() {
    let Some(database) = Database::fresh() else { return };
    let (longest, longer) = ("n".repeat(512), "n".repeat(513));
    let (wide, wider) = ("ü".repeat(256), "ü".repeat(256) + "n");
    let (deepest, deeper) = ("/n".repeat(16), "/n".repeat(17));
    let names = [
        "a",
        "a/b",
        "a//b",
        "a/",
        "/a",
        "/a/b",
        "/a/bc/d",
        "/ü/%_/'",
        "it's \"quoted\" \\ $1 {}, NULL",
        "\u{a0}",
        " ",
        "",
        "/",
        "//",
        "/a/",
        "//a",
        "/a//b",
        "\u{1}",
        "a\nb",
        "\u{1f}",
        "\u{7f}",
        "\u{80}",
        "\u{85}",
        "\u{9f}",
        &longest,
        &longer,
        &wide,
        &wider,
        &deepest,
        &deeper,
    ];
    block_on(async {
        let client = database.open().await;
        for text in names {
            let said = client.query_one("SELECT fencepost.path($1)", &[&text]).await;
            match Name::new(text) {
                Ok(name) => {
                    let expected: Vec<String> =
                        name.ancestors().chain([name.clone()]).map(|at| at.to_string()).collect();
                    assert_eq!(done(said).get::<_, Vec<String>>(0), expected, "{text:?}");
                }
                Err(why) => {
                    let said = said.expect_err(text);
                    let said = said.as_db_error().expect("the database refuses it");
                    assert_eq!(said.code().code(), "FP400", "{text:?}: {why}");
                    assert!(said.message().contains("cannot be the name of a lock"), "{said}");
                }
            }
        }
    });
}

#[test]
fn arguments_that_are_not_valid_are_refused_and_a_null_is_never_ignored() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let client = database.open().await;
        for function in ["claim", "write", "read"] {
            for (arguments, expected) in [
                ("'wallet', NULL", "FP428"),
                ("'wallet', 0", "FP400"),
                ("'wallet', -1", "FP400"),
                ("'wallet', 9007199254740992", "FP400"),
                ("'wallet', 9223372036854775807", "FP400"),
                ("NULL, 5", "FP400"),
                ("'', 5", "FP400"),
                ("'/a//b', 5", "FP400"),
            ] {
                assert_eq!(
                    code(&client, &format!("SELECT fencepost.{function}({arguments})")).await,
                    expected,
                    "{arguments}"
                );
            }
            run(&client, &format!("SELECT fencepost.{function}('wallet', 9007199254740991)")).await;
        }
        for (arguments, expected) in [
            ("'{}', '{}', '{}'", "FP428"),
            ("NULL, NULL, NULL", "FP428"),
            ("'{a}', NULL, '{write}'", "FP428"),
            ("'{a,b}', '{1}', '{write,write}'", "FP428"),
            ("'{a}', '{1,2}', '{write,write}'", "FP400"),
            ("'{a,b}', '{1,2}', '{write}'", "FP400"),
            ("'{a}', '{1}', '{Write}'", "FP400"),
            ("'[0:0]={a}', '[0:0]={1}', '[0:0]={write}'", "FP400"),
            ("'{{a,b}}', '{{1,2}}', '{{write,write}}'", "FP400"),
        ] {
            assert_eq!(code(&client, &format!("SELECT fencepost.present({arguments})")).await, expected, "{arguments}");
        }
        assert_eq!(code(&client, "SELECT fencepost.forget_below(NULL)").await, "FP400");
        assert_eq!(code(&client, "SELECT fencepost.set_idle_timeout('0')").await, "23514");
        assert_eq!(code(&client, "SELECT fencepost.set_idle_timeout(NULL)").await, "23502");
        assert_eq!(one(&client, "SELECT count(*) FROM fencepost.marks").await, 1, "a refused access leaves no marks");
    });
}

#[test]
fn numbers_that_cannot_be_tokens_are_refused_from_rust_as_well() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        for token in [0, 1 << 53, u64::MAX] {
            let transaction = begin(&mut client).await;
            let refused =
                postgres::admit(&transaction, &Access::write("wallet", writer(token))).await.expect_err("no token");
            assert_eq!(code_of(&refused), "FP400");
            assert!(refused.to_string().contains("from 1 to 2^53 - 1"), "{refused}");
        }
    });
}

#[test]
fn one_name_may_be_shown_several_times() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        let transaction = begin(&mut client).await;
        let access = Access::write("/a/b", writer(6))
            .and_read("/a/b", reader(6))
            .and_write("/a/b", writer(6))
            .and_read("/a", reader(5));
        postgres::admit(&transaction, &access).await.expect("the first access");
        done(transaction.commit().await);
        assert_eq!(one(&client, "SELECT writes FROM fencepost.marks WHERE name = '/a/b'").await, 2);
    });
}

#[test]
fn the_refusal_has_the_same_text_as_that_of_the_rules() {
    let Some(database) = Database::fresh() else { return };
    block_on(async {
        let mut client = database.open().await;
        run(&client, "SELECT fencepost.claim('/it''s \"a\"', 7)").await;
        let error = client.batch_execute("SELECT fencepost.write('/it''s \"a\"/b', 5)").await.expect_err("it is older");
        let said = error.as_db_error().expect("the database refuses it");
        let in_sql = format!("{}. {}", said.message(), said.hint().expect("what to do"));
        let transaction = begin(&mut client).await;
        let access = Access::write("/it's \"a\"/b", writer(5)).and_write("/it's \"a\"", writer(4));
        let stale = postgres::admit(&transaction, &access).await.expect_err("both are older");
        let (name, at) = (Name::new("/it's \"a\"/b").expect("a name"), Name::new("/it's \"a\"").expect("a name"));
        assert_eq!(
            stale.stale(),
            Some(&Stale { name, token: Token(5), at, highest: Token(7) }),
            "about the first name that was shown"
        );
        assert_eq!(in_sql, format!("{stale}."));
    });
}
