//! Random accesses to a store and to the rules: both must admit and refuse the same ones.

use fencepost_fence::rules::{MarkTable, Use};
use fencepost_fence::{Access, Error, Token};

use super::{AnyAccess, Connection, Store, reader, writer};

const ACCESSES: usize = 400;
const SEED: u64 = 0x6675_6c6c_7769_6e64;

/// Paths above and below each other, neighbours, and flat names. The last one has characters that break a careless query.
pub(crate) const NAMES: [&str; 8] =
    ["/a", "/a/b", "/a/b/c", "/a/c", "/ab", "flat", "flat/not a path", "it's %_\\ \"quoted\" ü"];

pub(crate) async fn random_histories_agree_with_the_rules<S: Store>(store: &S) {
    let mut connection = store.connect().await;
    let mut rules = MarkTable::default();
    let mut random = Random(SEED);
    let (mut admitted, mut refused) = (0, 0);
    for step in 0..ACCESSES {
        if S::FORGETS && step % 100 == 99 {
            let floor = Token(step as u64 / 2);
            let forgotten = connection.forget_below(floor).await.expect("it serves");
            assert_eq!(
                forgotten.names,
                rules.forget_below(floor) as u64,
                "step {step}: the same number of marks is forgotten"
            );
            continue;
        }
        let access = random_access(&mut random, step as u64, S::WHOLE_ACCESSES);
        let expected = rules.admit(access.shown());
        let said =
            if S::WHOLE_ACCESSES { connection.admit(&access).await } else { alone(&mut connection, &access).await };
        match (expected, said) {
            (Ok(()), Ok(())) => admitted += 1,
            (Err(rule), Err(Error::Stale(store))) => {
                assert_eq!(store.token, rule.token, "step {step}: {access:?}");
                assert!(store.highest > store.token, "step {step}: {store}");
                refused += 1;
            }
            (expected, said) => panic!("step {step}: the rules say {expected:?} and the store {said:?} of {access:?}"),
        }
    }
    assert!(admitted > 50 && refused > 50, "both happen often: {admitted} admitted, {refused} refused");
}

async fn alone(connection: &mut impl Connection, access: &AnyAccess) -> Result<(), Error> {
    let [one] = access.shown() else { panic!("one name at a time") };
    match one.used_to {
        Use::Read => connection.read(one.name.as_str(), reader(one.token.0)).await.map(drop),
        Use::Claim => connection.claim(one.name.as_str(), writer(one.token.0)).await.map(drop),
        Use::Write => connection.write(one.name.as_str(), writer(one.token.0), 1).await,
    }
}

/// Tokens near the step, so that some are too old and some are not.
pub(crate) fn random_access(random: &mut Random, step: u64, whole: bool) -> AnyAccess {
    let names = if whole { &NAMES[..] } else { &NAMES[5..] };
    let mut one = || (names[random.below(names.len())], 1 + (step + random.below(60) as u64).saturating_sub(30));
    let ((first, token), (second, other), (third, last)) = (one(), one(), one());
    let more = if whole { random.below(3) } else { 0 };
    match random.below(3) {
        0 => {
            let access = Access::read(first, reader(token));
            AnyAccess::Reads(if more > 0 { access.and_read(second, reader(other)) } else { access })
        }
        1 => {
            let access = Access::claim(first, writer(token));
            AnyAccess::Claims(if more > 0 { access.and_claim(second, writer(other)) } else { access })
        }
        _ => {
            let mut access = Access::write(first, writer(token));
            if more > 0 {
                access = access.and_read(second, reader(other));
            }
            if more > 1 {
                access = access.and_write(third, writer(last));
            }
            AnyAccess::Writes(access)
        }
    }
}

/// Random numbers from one seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
