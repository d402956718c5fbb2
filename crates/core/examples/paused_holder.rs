//! Why fencing tokens are needed: a holder is paused past its lease, another session is granted the lock, and the store
//! refuses the late write of the first holder.
//!
//! The example applies entries to the state machine one by one, as a replicated log would. There is no network and no
//! clock: each step names its stamp.

use fencepost_core::{
    Acquire, Action, Batch, Effects, Epoch, Lock, LockMode, LockState, Locks, LogicalMs, Metadata, Name, Open,
    Operation, Outcome, Principal, Push, Renewal, Request, RequestNumber, SecretHash, Seen, SessionId, Terms, Token,
    Ttl, Wait,
};

pub(crate) const A: SessionId = SessionId(0xA);
pub(crate) const B: SessionId = SessionId(0xB);

/// A store that keeps the highest token it has seen and refuses writes with a lower one.
#[derive(Default)]
struct Wallet {
    balance: u64,
    highest_seen: Option<Token>,
}

impl Wallet {
    fn write(&mut self, token: Token, balance: u64) -> Result<(), String> {
        if let Some(highest) = self.highest_seen.filter(|highest| token < *highest) {
            return Err(format!("token {} is older than {}", token.0, highest.0));
        }
        *self = Wallet { balance, highest_seen: Some(token) };
        Ok(())
    }
}

fn main() {
    let mut state = LockState::new(0);
    let mut wallet = Wallet { balance: 500, ..Wallet::default() };

    say(0, "Two workers, A and B, each open a session that lives 10 s without a keep-alive.");
    apply(&mut state, 0, vec![open(A, "first"), open(B, "second")]);

    let effects = apply(&mut state, 0, vec![acquire(A)]);
    let Outcome::Granted { token: first, .. } = effects.replies[0].outcome else { panic!("a free lock is granted") };
    say(0, &format!("A acquires wallet:7 and is granted it with token {}.", first.0));
    say(0, &format!("A reads a balance of {} and means to take 100 off it.", wallet.balance));

    let effects = apply(&mut state, 2_000, vec![acquire(B)]);
    assert!(matches!(effects.replies[0].outcome, Outcome::Queued { .. }), "the lock is held");
    say(2_000, "B acquires wallet:7, too. It waits for A.");
    say(3_000, "A's process is paused. It sends no more keep-alives, and does not know it.");

    // B still renews, A does not. The entry whose stamp reaches A's deadline ends A's session and grants B.
    let alive = Renewal::KeepAlive { session: B, epoch: Epoch(1), seen: Seen::default() };
    let entry = Batch { renewals: vec![alive], ..Batch::default() };
    let effects = state.apply(LogicalMs(10_000), entry);
    let second = effects.pushes.iter().find_map(|push| match push {
        Push::Ended { session: B, outcome: Outcome::Granted { token, .. }, .. } => Some(*token),
        _ => None,
    });
    let second = second.expect("B is next");
    assert!(second > first, "tokens rise");
    say(10_000, "A's session expires and takes its lock with it.");
    say(10_000, &format!("B is granted wallet:7 in the same entry, with token {}.", second.0));

    wallet.write(second, wallet.balance - 50).expect("no newer token has written");
    say(10_500, &format!("B takes 50 off. The wallet has seen token {} and holds {}.", second.0, wallet.balance));

    say(11_000, "A wakes up in the middle of its write: the balance it read, less 100.");
    let refused = wallet.write(first, 400).expect_err("a stale write must not land");
    say(11_000, &format!("The wallet refuses it: {refused}."));
    assert_eq!(wallet.balance, 450);
    say(
        11_000,
        &format!("The wallet holds {}. Without the check it would hold 400: B's withdrawal lost.", wallet.balance),
    );
}

fn say(stamp_ms: u64, line: &str) {
    println!("{:>4}.{} s  {line}", stamp_ms / 1_000, stamp_ms % 1_000 / 100);
}

pub(crate) fn apply(state: &mut LockState, stamp_ms: u64, operations: Vec<Operation>) -> Effects {
    state.apply(LogicalMs(stamp_ms), Batch { operations, ..Batch::default() })
}

pub(crate) fn open(session: SessionId, principal: &str) -> Operation {
    Operation::Open(Open {
        session,
        secret_hash: SecretHash([0; 32]),
        principal: Principal::new(principal).expect("short plain text"),
        ttl: Ttl::new(10_000).expect("above a second"),
        metadata: Metadata::default(),
    })
}

pub(crate) fn acquire(session: SessionId) -> Operation {
    let name = Name::new("wallet:7").expect("short plain text");
    let locks = Locks::from_buf([Lock { name, mode: LockMode::Exclusive }]);
    Operation::Request(Request {
        session,
        epoch: Epoch(1),
        number: RequestNumber(1),
        seen: Seen::default(),
        action: Action::Acquire(Acquire { locks, owner: None, wait: Wait::Forever, terms: Terms::default() }),
    })
}
