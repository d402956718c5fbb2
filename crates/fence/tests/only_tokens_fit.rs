//! What a guard takes for a token is decided by the compiler: a number, a reader's token, or a lock that has none do not fit.

/// Each file in `does_not_compile` is a mistake, with what the compiler says about it beside it.
#[test]
fn mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/does_not_compile/*.rs");
}
