//! Compares `docs/backends.md` with the table of promises. When the table changes, this command writes the page:
//!
//! ```text
//! FENCEPOST_WRITE_DOCS=1 cargo test -p fencepost-backends --test it page
//! ```

use std::path::Path;

use fencepost_backends::table;

#[test]
fn the_page_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends.md");
    if std::env::var_os("FENCEPOST_WRITE_DOCS").is_some() {
        std::fs::write(&path, table::markdown()).expect("the page can be written");
    }
    let page = std::fs::read_to_string(&path).expect("the page is there");
    for (at, (found, expected)) in (1..).zip(page.lines().zip(table::markdown().lines())) {
        assert_eq!(found, expected, "docs/backends.md:{at}: the top of this test says how to update the page");
    }
    assert_eq!(page.len(), table::markdown().len(), "docs/backends.md has another length");
}
