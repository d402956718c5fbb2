//! `fencepost top`: shows the cluster on one screen, refreshed every second.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use fencepost::{Client, ClusterStatus, GrantView, MemberState, ReadAt, SessionId};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};

use crate::connect::{self, ServerArgs};
use crate::failure::{Failure, Result};
use crate::shown::{self, People};
use crate::{listing, output};

const REFRESH: Duration = Duration::from_secs(1);
/// How many pages of waiters are counted. A bound, so that a million waiters are not read every second.
const WAITER_PAGES_MAX: usize = 10;
const HOT_LOCKS_MAX: usize = 100;
const HOT_HEADER: [&str; 5] = ["LOCK", "WAITING", "MODE", "TOKEN", "HELD BY"];
/// The widest cell beside the name: the modes of a lock on many names must not push its name off the screen.
const HOT_CELL_CHARS_MAX: usize = 26;

/// Watch the cluster: the leader, the rates, and the locks that are wanted most (q quits)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: without one, use `fencepost locks`, `members` or `watch` with -o json",
        ));
    }
    let (builder, nodes) = args.server.builder()?;
    let client = builder.connect().await.map_err(|error| connect::unreachable(&nodes, error))?;
    // It also restores the terminal if this code panics.
    let mut terminal = ratatui::init();
    let outcome = draw_until_quit(&client, &mut terminal).await;
    ratatui::restore();
    outcome
}

async fn draw_until_quit(client: &Client, terminal: &mut ratatui::DefaultTerminal) -> Result {
    let mut before: Option<Seen> = None;
    let mut people = People::default();
    let mut view = View::default();
    let mut keys = keys();
    loop {
        match look(client, &mut people).await {
            Ok(seen) => {
                view = View::of(&seen, before.as_ref(), &people);
                before = Some(seen);
            }
            // Keep the last picture, marked as old.
            Err(failure) => view.problem = Some(failure.message),
        }
        let next = Instant::now() + REFRESH;
        loop {
            terminal.draw(|frame| draw(frame, &view))?;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => break,
                key = keys.recv() => match key {
                    Some(Key::Quit) | None => return Ok(()),
                    Some(Key::Redraw) => {}
                },
            }
        }
    }
}

enum Key {
    Quit,
    Redraw,
}

/// Reads the keys on a separate thread, because reading blocks.
fn keys() -> tokio::sync::mpsc::Receiver<Key> {
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) => match (key.code, key.modifiers) {
                    (KeyCode::Char('q') | KeyCode::Esc, _) | (KeyCode::Char('c'), KeyModifiers::CONTROL) => Key::Quit,
                    _ => continue,
                },
                Event::Resize(..) => Key::Redraw,
                _ => continue,
            };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

struct Seen {
    at: Instant,
    status: ClusterStatus,
    waiting: BTreeMap<String, usize>,
    grants: Vec<GrantView>,
    as_of: ReadAt,
}

async fn look(client: &Client, people: &mut People) -> Result<Seen> {
    let status = client.status().await?;
    let page = client.grants("", None).await?;
    let mut waiting = BTreeMap::new();
    for waiter in listing::waiters(client, "", WAITER_PAGES_MAX).await? {
        for name in waiter.wants.held().names() {
            *waiting.entry(name.to_string()).or_default() += 1;
        }
    }
    let holders: BTreeSet<SessionId> = page.what.rows.iter().map(|grant| grant.record.session).collect();
    people.keep(&holders);
    listing::learn(client, people, holders).await?;
    Ok(Seen { at: Instant::now(), status, waiting, grants: page.what.rows, as_of: page.at })
}

/// The text on the screen.
#[derive(Default)]
struct View {
    head: Vec<String>,
    hot: Vec<[String; 5]>,
    problem: Option<String>,
}

impl View {
    fn of(seen: &Seen, before: Option<&Seen>, people: &People) -> View {
        let Seen { status, waiting, grants, as_of, .. } = seen;
        let leader = status.members.iter().find(|member| member.leads);
        let leader = leader.map_or("none".to_owned(), crate::command::members::call);
        let rate = |of: fn(&ClusterStatus) -> u64| match before {
            Some(before) => {
                let seconds = (seen.at - before.at).as_secs_f64().max(0.001);
                format!("{:.0}/s", of(status).saturating_sub(of(&before.status)) as f64 / seconds)
            }
            None => "-".to_owned(),
        };
        let counts = &status.counts;
        let mut head = vec![
            format!("leader {leader}   term {}   members {}", status.term, status.members.len()),
            format!(
                "log {} ({})   tokens {} ({})",
                status.applied.index,
                rate(|status| status.applied.index),
                counts.last_token.0,
                rate(|status| status.counts.last_token.0)
            ),
            format!(
                "sessions {}   held {}   waiting {}   resting {}   freezes {}",
                counts.sessions, counts.grants, counts.waiters, counts.rests, counts.freezes
            ),
        ];
        let silent = status.members.iter().filter(|member| matches!(member.state, MemberState::Silent(_)));
        let silent: Vec<String> = silent.map(crate::command::members::call).collect();
        if !silent.is_empty() {
            head.push(format!("silent: {}; see `fencepost members`", silent.join(", ")));
        }
        if counts.jobs > 0 || counts.jobs_held > 0 {
            head.push(format!("jobs {}   held {}", counts.jobs, counts.jobs_held));
        }
        if counts.jobs_refused {
            head.push("jobs are refused since this cluster was restored: see `fencepost job allow --help`".to_owned());
        }
        if status.disk_short {
            head.push("the leader's disk is nearly full: new locks are refused; free space".to_owned());
        }
        View { head, hot: hot_locks(waiting, grants, people, as_of), problem: None }
    }
}

/// The locks with the most waiters first, then those that have been held longest.
fn hot_locks(
    waiting: &BTreeMap<String, usize>,
    grants: &[GrantView],
    people: &People,
    as_of: &ReadAt,
) -> Vec<[String; 5]> {
    let mut hot = Vec::new();
    for GrantView { record, .. } in grants {
        let (names, mode) = shown::held(&record.held);
        let count: usize = record.held.names().filter_map(|name| waiting.get(name.as_str())).sum();
        let cells = [
            names,
            count.to_string(),
            mode,
            record.token.0.to_string(),
            format!("{} by {}", shown::age(as_of, record.granted_at), people.place(record.session)),
        ];
        hot.push((count, record.granted_at, cells));
    }
    let is_held = |name: &str| grants.iter().any(|it| it.record.held.names().any(|held| held.as_str() == name));
    for (name, count) in waiting.iter().filter(|(name, _)| !is_held(name)) {
        let dash = || "-".to_owned();
        hot.push((*count, as_of.stamp, [name.clone(), count.to_string(), dash(), dash(), dash()]));
    }
    hot.sort_by(|(a_count, a_since, _), (b_count, b_since, _)| (b_count, a_since).cmp(&(a_count, b_since)));
    hot.into_iter().take(HOT_LOCKS_MAX).map(|(_, _, cells)| cells.map(|cell| output::printable(&cell))).collect()
}

fn draw(frame: &mut Frame<'_>, view: &View) {
    let head_lines = u16::try_from(view.head.len()).unwrap_or(u16::MAX);
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(head_lines + 2), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    let lines: Vec<Line<'_>> = view.head.iter().map(|line| Line::from(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" fencepost ")), head);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    // Each column is as wide as its content. The lock's name gets the rest.
    let width = |column: usize| {
        let cells = view.hot.iter().map(|cells| cells[column].chars().count());
        let widest = cells.chain([HOT_HEADER[column].len()]).max().unwrap_or_default();
        Constraint::Length(widest.min(HOT_CELL_CHARS_MAX) as u16)
    };
    let widths = [Constraint::Fill(1), width(1), width(2), width(3), width(4)];
    let rows = view.hot.iter().map(|cells| Row::new(cells.clone()));
    let table = Table::new(rows, widths)
        .header(Row::new(HOT_HEADER).style(bold))
        .block(Block::bordered().title(" most wanted "));
    frame.render_widget(table, body);
    let foot_text = match &view.problem {
        Some(problem) => format!("old: {problem} (q quits)"),
        None => "q quits".to_owned(),
    };
    frame.render_widget(Line::from(foot_text), foot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::{Counts, GrantId, LogicalMs, MemberRole, MemberStatus, Name, Token, WallClock};
    use fencepost_core::{GrantRecord, Held, Lock, LockMode, Locks, Permits};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn status(index: u64, last_token: u64) -> ClusterStatus {
        let member = |node: u64, leads| MemberStatus {
            node,
            name: format!("n{node}"),
            peer_address: String::new(),
            client_address: String::new(),
            role: MemberRole::Voter,
            leads,
            matched_index: None,
            state: MemberState::Up,
            lag: None,
            gets_snapshot: false,
            version: None,
            known_formats: None,
        };
        ClusterStatus {
            cluster: 1,
            group: 1,
            node: 2,
            version: String::new(),
            term: 7,
            leader: Some(2),
            leader_address: None,
            applied: ReadAt { index, term: 7, stamp: LogicalMs(100_000), ..ReadAt::default() },
            members: vec![member(1, false), member(2, true), member(3, false)],
            counts: Counts {
                sessions: 4,
                grants: 3,
                rests: 1,
                waiters: 6,
                resources: 5,
                semaphores: 1,
                freezes: 2,
                jobs: 0,
                job_bytes: 0,
                jobs_held: 0,
                jobs_refused: false,
                last_token: Token(last_token),
            },
            oldest_live_token: Token(1),
            disk_short: false,
            without_leader: None,
            format_version: 1,
        }
    }

    fn grant(id: u64, held: Held, granted_at: u64) -> GrantView {
        let (session, granted_at) = (SessionId(0x3fa2_b71c << 96), LogicalMs(granted_at));
        let (id, token) = (GrantId(id), Token(id));
        let record =
            GrantRecord { id, token, session, owner: None, held, count: 1, granted_at, hold_until: None, terms: None };
        GrantView { record, deadline: LogicalMs(130_000) }
    }

    fn lock(name: &str, mode: LockMode) -> Held {
        Held::Locks(Locks::from_iter([Lock { name: Name::new(name).unwrap(), mode }]))
    }

    /// Two looks at the cluster, two seconds apart: idle, then busy.
    fn seen() -> (Seen, Seen) {
        let at = Instant::now();
        let before = Seen {
            at,
            status: status(900, 40),
            waiting: BTreeMap::new(),
            grants: Vec::new(),
            as_of: ReadAt::default(),
        };
        let mut wall_clock = WallClock::NONE;
        wall_clock.note(LogicalMs(0), LogicalMs(0), 1_700_000_000_000);
        let (stamp, wall_clock_ms) = (LogicalMs(100_000), 1_700_000_100_000);
        let permits = Held::Permits { name: Name::new("licences").unwrap(), permits: Permits::new(2).unwrap() };
        let now = Seen {
            at: at + Duration::from_secs(2),
            status: status(1_000, 60),
            waiting: BTreeMap::from([("nightly".to_owned(), 3), ("frozen".to_owned(), 2), ("stock".to_owned(), 1)]),
            grants: vec![
                grant(17, lock("stock", LockMode::Shared), 99_000),
                grant(12, permits, 40_000),
                grant(42, lock("nightly", LockMode::Exclusive), 95_000),
            ],
            as_of: ReadAt { stamp, wall_clock_ms, wall_clock, ..ReadAt::default() },
        };
        (before, now)
    }

    fn screen(view: &View) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(90, 14)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let rows = terminal.backend().buffer().content().chunks(90);
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_shows_the_leader_the_rates_and_the_most_wanted_locks() {
        let (before, now) = seen();
        let mut people = People::default();
        people.learn(now.grants[2].record.session, b"user=ann\nhost=db-1");
        let shown = screen(&View::of(&now, Some(&before), &people));
        let expected = [
            "┌ fencepost ─────────────────────────────────────────────────────────────────────────────┐",
            "│leader n2 (000000000002)   term 7   members 3                                           │",
            "│log 1000 (50/s)   tokens 60 (10/s)                                                      │",
            "│sessions 4   held 3   waiting 6   resting 1   freezes 2                                 │",
            "└────────────────────────────────────────────────────────────────────────────────────────┘",
            "┌ most wanted ───────────────────────────────────────────────────────────────────────────┐",
            "│LOCK                                           WAITING MODE       TOKEN HELD BY         │",
            "│nightly                                        3       exclusive  42    5.0s by ann@db-1│",
            "│frozen                                         2       -          -     -               │",
            "│stock                                          1       shared     17    1.0s by ann@db-1│",
            "│licences                                       0       permits: 2 12    1m by ann@db-1  │",
            "│                                                                                        │",
            "└────────────────────────────────────────────────────────────────────────────────────────┘",
            "q quits",
        ];
        assert_eq!(shown, expected, "{}", shown.join("\n"));
    }

    #[test]
    fn the_screen_says_what_is_wrong_and_how_many_jobs_there_are() {
        let (_, mut now) = seen();
        now.status.disk_short = true;
        (now.status.counts.jobs, now.status.counts.jobs_held, now.status.counts.jobs_refused) = (40, 1, true);
        now.status.members[2].state = MemberState::Silent(Duration::from_secs(8));
        now.status.members.iter_mut().for_each(|member| member.leads = false);
        let view = View { problem: Some("no answer".to_owned()), ..View::of(&now, None, &People::default()) };
        let shown = screen(&view).join("\n");
        let parts = ["leader none", "log 1000 (-)", "disk is nearly full", "silent: n3 (", "old: no answer (q quits)"];
        for part in parts.into_iter().chain(["jobs 40   held 1", "jobs are refused since this cluster was restored"]) {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }
}
