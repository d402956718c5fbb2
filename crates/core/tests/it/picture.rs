//! Draws the picture of the README: a holder is paused past its lease, with the lock alone and with a guard.
//!
//! The tokens and the instant at which the lease ends come from the real lock state, so the picture cannot show what the state machine does not
//! do. `FENCEPOST_RECORD=1` writes the file again.
#![allow(clippy::disallowed_methods, reason = "reads and records the picture; the crate itself may not")]

use std::fmt::Write;
use std::path::Path;

use fencepost_core::{Batch, Epoch, LockState, LogicalMs, Outcome, Push, Renewal, Seen};

#[path = "../../examples/paused_holder.rs"]
#[allow(dead_code, reason = "the example prints the same story")]
mod paused_holder;

use paused_holder::{A, B, acquire, apply, open};

const PICTURE: &str = "../../docs/pictures/paused-holder.svg";

const WIDTH: u32 = 780;
const PANEL_HEIGHT: u32 = 178;
/// Where the time line begins, and how long a second is.
const LEFT: u32 = 86;
const SECOND: u32 = 56;

/// When A is paused and wakes up, and when B writes, in milliseconds.
const PAUSED_MS: u64 = 3_000;
const B_WRITES_MS: u64 = 10_700;
const WAKES_MS: u64 = 11_500;
const END_MS: u64 = 12_200;

/// What the lock state says about the story.
struct Story {
    first_token: u64,
    second_token: u64,
    lease_over_ms: u64,
}

fn story() -> Story {
    let mut state = LockState::new(0);
    apply(&mut state, 0, vec![open(A, "first"), open(B, "second")]);
    let granted = apply(&mut state, 0, vec![acquire(A)]);
    let Outcome::Granted { token: first, .. } = granted.replies[0].outcome else { panic!("a free lock is granted") };
    apply(&mut state, 2_000, vec![acquire(B)]);
    // B keeps its session alive, and A does not: the first stamp at which B is granted the lock is the end of A's lease.
    for stamp_ms in (3_000..).step_by(500) {
        let alive = Renewal::KeepAlive { session: B, epoch: Epoch(1), seen: Seen::default() };
        let effects = state.apply(LogicalMs(stamp_ms), Batch { renewals: vec![alive], ..Batch::default() });
        let granted = effects.pushes.iter().find_map(|push| match push {
            Push::Ended { session: B, outcome: Outcome::Granted { token, .. }, .. } => Some(token.0),
            _ => None,
        });
        if let Some(second_token) = granted {
            return Story { first_token: first.0, second_token, lease_over_ms: stamp_ms };
        }
    }
    unreachable!("the lease ends")
}

#[test]
fn the_picture_shows_what_the_lock_state_does() {
    let story = story();
    let drawn = draw(&story);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
    if std::env::var_os("FENCEPOST_RECORD").is_some() {
        std::fs::write(&file, &drawn).expect("the picture can be written");
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == drawn,
        "{PICTURE} is not what this test draws: run it with FENCEPOST_RECORD=1, and look at the picture"
    );
    assert!(story.second_token > story.first_token, "tokens rise");
}

fn draw(story: &Story) -> String {
    let height = 2 * PANEL_HEIGHT + 16;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <defs><pattern id=\"paused\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
         <rect width=\"7\" height=\"7\" fill=\"#e8e8ec\"/><rect width=\"2\" height=\"7\" fill=\"#d2d2da\"/></pattern></defs>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    panel(&mut svg, 8, story, false);
    panel(&mut svg, 8 + PANEL_HEIGHT, story, true);
    svg.push_str("</svg>\n");
    svg
}

/// One panel: the lanes of A, B and the store, from left to right in time.
fn panel(svg: &mut String, top: u32, story: &Story, is_guarded: bool) {
    let Story { first_token, second_token, lease_over_ms } = *story;
    let (lane_a, lane_b, lane_store) = (top + 44, top + 80, top + 130);
    let title = if is_guarded { "The lock and the guard: the store checks the token" } else { "The lock alone" };
    text(svg, 12, top + 18, "font-weight=\"bold\" font-size=\"15\"", title);
    for (lane, name) in [(lane_a, "worker A"), (lane_b, "worker B"), (lane_store, "the store")] {
        text(svg, 12, lane + 5, "", name);
    }

    // First, so that the arrow passes behind the bar of B.
    let late = at(WAKES_MS);
    arrow(svg, late, lane_a + 13, lane_store, "#c0392b");
    bar(svg, lane_a, (0, PAUSED_MS), "#3b6fb6", &format!("holds, token {first_token}"), "#ffffff");
    bar(svg, lane_a, (PAUSED_MS, WAKES_MS), "url(#paused)", "paused: it does not see its lease end", "#33333a");
    bar(svg, lane_b, (2_000, lease_over_ms), "#f4f4f6", "waits", "#66666e");
    bar(svg, lane_b, (lease_over_ms, END_MS), "#2d8a55", &format!("holds, token {second_token}"), "#ffffff");
    let over = at(lease_over_ms);
    line(svg, (over, lane_a - 24), (over, lane_b + 14), "stroke=\"#8a8a94\" stroke-dasharray=\"3 3\"");
    text(svg, over - 4, lane_a - 17, "text-anchor=\"end\" fill=\"#66666e\"", "the lease of A is over");

    let end = at(END_MS);
    line(svg, (LEFT, lane_store), (end, lane_store), "stroke=\"#33333a\" stroke-width=\"2\"");
    text(svg, LEFT, lane_store - 8, "", "balance 500");
    arrow(svg, at(B_WRITES_MS), lane_b + 13, lane_store, "#2d8a55");
    text(svg, at(B_WRITES_MS) - 8, lane_store - 12, "text-anchor=\"end\" fill=\"#2d8a55\"", "B writes 450");
    let verdict = match is_guarded {
        false => "A wakes up and writes 400: the withdrawal of B is lost".to_owned(),
        true => format!(
            "A wakes up and writes 400: refused, token {first_token} is older than {second_token}. The balance stays 450"
        ),
    };
    text(svg, end, lane_store + 24, "text-anchor=\"end\" font-weight=\"bold\" fill=\"#c0392b\"", &verdict);
    if is_guarded {
        let (x, y) = (late, lane_store - 10);
        line(svg, (x - 7, y - 7), (x + 7, y + 7), "stroke=\"#c0392b\" stroke-width=\"3\"");
        line(svg, (x - 7, y + 7), (x + 7, y - 7), "stroke=\"#c0392b\" stroke-width=\"3\"");
    }
}

fn at(ms: u64) -> u32 {
    LEFT + u32::try_from(ms * u64::from(SECOND) / 1_000).expect("some seconds")
}

fn bar(svg: &mut String, lane: u32, (from_ms, to_ms): (u64, u64), fill: &str, label: &str, ink: &str) {
    let (x, width) = (at(from_ms), at(to_ms) - at(from_ms));
    let _ =
        writeln!(svg, "<rect x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"26\" rx=\"3\" fill=\"{fill}\"/>", lane - 13);
    text(svg, x + width / 2, lane + 5, &format!("text-anchor=\"middle\" fill=\"{ink}\""), label);
}

fn arrow(svg: &mut String, x: u32, from: u32, to: u32, ink: &str) {
    line(svg, (x, from), (x, to - 8), &format!("stroke=\"{ink}\" stroke-width=\"2\""));
    let _ = writeln!(svg, "<path d=\"M{} {} L{x} {} L{} {} Z\" fill=\"{ink}\"/>", x - 5, to - 9, to - 1, x + 5, to - 9);
}

fn line(svg: &mut String, (x1, y1): (u32, u32), (x2, y2): (u32, u32), style: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {style}/>");
}

fn text(svg: &mut String, x: u32, y: u32, style: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" {style}>{text}</text>");
}
