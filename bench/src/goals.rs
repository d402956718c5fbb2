//! The goals, each with its figure. They were set before the first measurement.
//!
//! If this run did not measure a goal, the report says so. Figures never come from another run.

use crate::catalogue::{BASELINE, EFFICIENCY_BASELINE};
use crate::figures::{Results, Summary};
use fencepost_load::count;

use crate::report::{number, show};

/// A goal, its figure, and whether it is met.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    /// The figure, with its unit.
    pub(crate) measured: String,
    /// `None` if it was not measured.
    pub(crate) met: Option<bool>,
}

impl Verdict {
    fn new(goal: impl Into<String>, measured: Option<(String, bool)>) -> Verdict {
        let (measured, met) = measured.map_or(("-".to_owned(), None), |(measured, met)| (measured, Some(met)));
        Verdict { goal: goal.into(), measured, met }
    }

    fn at_least(goal: impl Into<String>, measured: Option<Summary>, least: f64, unit: &str) -> Verdict {
        Verdict::new(goal, measured.map(|it| (format!("{}{unit}", show(it)), it.median >= least)))
    }

    fn at_most(goal: impl Into<String>, measured: Option<Summary>, most: f64, unit: &str) -> Verdict {
        Verdict::new(goal, measured.map(|it| (format!("{}{unit}", show(it)), it.median <= most)))
    }
}

/// All goals, in the order of the workloads.
pub(crate) fn judge(results: &Results) -> Vec<Verdict> {
    let mut verdicts = uncontended(results);
    verdicts.extend(hot_lock(results));
    verdicts.extend(alone(results));
    verdicts.extend(efficiency(results));
    verdicts.extend(programs(results));
    verdicts
}

fn uncontended(results: &Results) -> Vec<Verdict> {
    let rates = |other| results.ratio("w1", "C = 256", "pairs_per_second", BASELINE, other);
    let times = |other| results.ratio("w1", "C = 1", "acquire_p50_ms", other, BASELINE);
    let best = |system: &str| {
        let of = |case: &str| Some((case.to_owned(), results.summary("w1", case, system, "pairs_per_second")?));
        let rates = results.cases("w1").into_iter().filter_map(|(case, _)| of(&case));
        rates.max_by(|one, other| one.1.median.total_cmp(&other.1.median))
    };
    let five = best("fencepost-5").map(|(case, pairs)| {
        let operations = pairs.median * 2.0;
        (format!("{} at {case}", count(operations)), operations >= 50_000.0)
    });
    let cpu = best(BASELINE).and_then(|(case, _)| {
        let operation_us = results.summary("w1", &case, BASELINE, "all_cpu_us")?.median / 2.0;
        Some((format!("{} µs at {case}", number(operation_us)), operation_us <= 20.0))
    });
    vec![
        Verdict::at_least("W1, C = 256: three nodes ≥ 15 × three-node etcd in pairs/s", rates("etcd"), 15.0, " ×"),
        Verdict::at_least("W1, C = 256: ≥ 10 × three-node ZooKeeper", rates("zookeeper"), 10.0, " ×"),
        Verdict::at_most(
            "W1, C = 1: acquire p50 of three nodes ≤ 1.2 × (one sync and two round trips over loopback)",
            by_the_machine(results, "w1", "C = 1", "acquire_p50_ms"),
            1.2,
            " ×",
        ),
        Verdict::at_least("W1, C = 1: p50 below etcd's", times("etcd"), 1.0, " × as long there"),
        Verdict::at_least("W1, C = 1: p50 below ZooKeeper's", times("zookeeper"), 1.0, " × as long there"),
        Verdict::new("W1: five nodes ≥ 50,000 operations/s on two cores, load included", five),
        Verdict::new("W1: three nodes ≤ 20 µs CPU an operation at full load, servers and load together", cpu),
    ]
}

/// A time as a multiple of one sync and two round trips, which were probed just before the block.
fn by_the_machine(results: &Results, workload: &str, case: &str, figure: &str) -> Option<Summary> {
    let blocks = results.of(workload, case).filter(|block| block.system == BASELINE);
    Summary::of(blocks.filter_map(|block| {
        let of = |name: &str| block.figures.get(name).copied();
        Some(of(figure)? * 1e3 / (of("probe_disk_us")? + 2.0 * of("probe_loopback_us")?))
    }))
}

fn hot_lock(results: &Results) -> Vec<Verdict> {
    let cases: Vec<String> = results.cases("w2").into_iter().map(|(case, _)| case).collect();
    let worst = |of: &dyn Fn(&str) -> Option<Summary>, more_is_worse: bool| {
        let all = cases.iter().filter_map(|case| of(case));
        all.reduce(|one, other| if (one.median > other.median) == more_is_worse { one } else { other })
    };
    let counted = |figure: &'static str| worst(&move |case| results.summary("w2", case, BASELINE, figure), true);
    let cost = counted("entries_per_operation").zip(counted("pushes_per_operation")).map(|(entries, pushes)| {
        // A margin for a few other entries: the first requests, and keep-alives.
        let met = entries.median <= 1.1 && pushes.median <= 1.05;
        (format!("{} entries, {} pushes", number(entries.median), number(pushes.median)), met)
    });
    let rates = |case: &str, other| results.ratio("w2", case, "handovers_per_second", BASELINE, other);
    vec![
        Verdict::new("W2: a hand-over is one log entry and one push, at every N; the most", cost),
        Verdict::at_most(
            "W2: hand-over p50 ≤ 1.3 × (one sync and two round trips over loopback), at every N; the worst",
            worst(&|case| by_the_machine(results, "w2", case, "handover_p50_ms"), true),
            1.3,
            " ×",
        ),
        Verdict::at_least("W2, N = 2: ≥ 20 × etcd in hand-overs/s", rates("N = 2", "etcd"), 20.0, " ×"),
        Verdict::at_least(
            "W2: ≥ 3 × ZooKeeper at every N measured; the least",
            worst(&|case| rates(case, "zookeeper"), false),
            3.0,
            " ×",
        ),
    ]
}

fn alone(results: &Results) -> Vec<Verdict> {
    let only = |workload: &str, case: &str, figure: &str| {
        // The size of the goal, in connections, sessions or locks. A measurement with a smaller size says nothing about the goal.
        let size = match workload {
            "w4" => 1_000.0,
            "w5" => 10_000.0,
            "w8" => 1_000_000.0,
            _ => 0.0,
        };
        let blocks = results.blocks.iter().filter(|block| block.workload == workload && block.parameter >= size);
        let blocks = blocks.filter(|block| block.case.starts_with(case));
        Summary::of(blocks.filter_map(|block| block.figures.get(figure).copied()))
    };
    let readers = results.cases("w3").first().and_then(|(case, many)| {
        let together = results.summary("w3", case, BASELINE, "readers_together_count")?;
        Some((format!("{} of {many} at the same time", count(together.least)), together.least >= *many))
    });
    vec![
        Verdict::new("W3: no reader waits for a reader", readers),
        Verdict::at_most("W4: ≤ 4 log entries/s while idle", only("w4", "", "entries_per_second"), 4.0, ""),
        Verdict::at_most("W4: leader ≤ 5% of a core", only("w4", "", "leader_core_percent"), 5.0, "%"),
        Verdict::at_most("W4: ≤ 300 bytes a lock", only("w4", "", "lock_bytes"), 300.0, " bytes"),
        Verdict::at_most("W4: ≤ 1 KiB a session", only("w4", "", "session_bytes"), 1_024.0, " bytes"),
        Verdict::at_most(
            "W5: every lock with its next holder ≤ 1 s after the deadline",
            only("w5", "", "last_ms"),
            1_000.0,
            " ms",
        ),
        Verdict::at_most("W5: ≤ 5 log entries", only("w5", "", "entries_count"), 5.0, ""),
        Verdict::at_most(
            "W6: first grant ≤ 2 s after the leader was killed",
            only("w6", "leader", "gap_ms"),
            2_000.0,
            " ms",
        ),
        Verdict::at_most(
            "W6: planned leadership transfer < 100 ms without a grant",
            only("w6", "planned", "gap_ms"),
            100.0,
            " ms",
        ),
        Verdict::at_most("W8: serves ≤ 5 s after its start", only("w8", "", "serves_ms"), 5_000.0, " ms"),
    ]
}

fn efficiency(results: &Results) -> Vec<Verdict> {
    let worst = |figure: &str, one: &str, other: &str| {
        let of = |(case, _): (String, f64)| Some((results.ratio("efficiency", &case, figure, one, other)?, case));
        let worst = results.cases("efficiency").into_iter().filter_map(of);
        let (ratio, case) = worst.min_by(|one, other| one.0.median.total_cmp(&other.0.median))?;
        Some((format!("{} × at {case}, the least", show(ratio)), ratio.median >= 1.0))
    };
    vec![
        Verdict::new(
            "Efficiency tier, one node: ≥ 1 × a single Redis in pairs/s",
            worst("pairs_per_second", EFFICIENCY_BASELINE, "redis"),
        ),
        Verdict::new(
            "Efficiency tier, one node: p50 no longer than Redis'",
            worst("acquire_p50_ms", "redis", EFFICIENCY_BASELINE),
        ),
    ]
}

/// A user gets this with every shape of program, so the shape with the least ratio counts.
fn programs(results: &Results) -> Vec<Verdict> {
    let least = |ratios: Vec<(Summary, String)>, goal: f64| {
        let (ratio, case) = ratios.into_iter().min_by(|one, other| one.0.median.total_cmp(&other.0.median))?;
        Some((format!("{} × at {case}, the least", show(ratio)), ratio.median >= goal))
    };
    let beside = |workload: &str, sizes: &str, one: &str, other: &str, goal: f64| {
        let cases = results.cases(workload).into_iter().filter(|(case, _)| case.starts_with(sizes));
        let of =
            |(case, _): (String, f64)| Some((results.ratio(workload, &case, "pairs_per_second", one, other)?, case));
        least(cases.filter_map(of).collect(), goal)
    };
    let threaded = |workload: &str, system: &str| {
        let cases = results.cases(workload).into_iter().filter(|(case, _)| case.contains("multi-threaded"));
        let of = |(case, _): (String, f64)| {
            let plain = case.replace("multi-threaded", "one thread");
            let ratio = results.ratio_of(workload, "pairs_per_second", (system, &case), (system, &plain))?;
            Some((ratio, case))
        };
        least(cases.filter_map(of).collect(), 0.8)
    };
    vec![
        Verdict::new(
            "Programs of every shape, C = 256: three nodes ≥ 15 × three-node etcd in pairs/s",
            beside("programs", "C = 256", BASELINE, "etcd", 15.0),
        ),
        Verdict::new(
            "Programs of every shape: efficiency tier ≥ 1 × a single Redis in pairs/s",
            beside("efficiency-programs", "C", EFFICIENCY_BASELINE, "redis", 1.0),
        ),
        Verdict::new("Programs: three nodes multi-threaded ≥ 0.8 × on one thread", threaded("programs", BASELINE)),
        Verdict::new(
            "Programs: efficiency tier multi-threaded ≥ 0.8 × on one thread",
            threaded("efficiency-programs", EFFICIENCY_BASELINE),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::block;

    fn find<'a>(verdicts: &'a [Verdict], part: &str) -> &'a Verdict {
        verdicts.iter().find(|it| it.goal.contains(part)).unwrap_or_else(|| panic!("no goal with {part:?}"))
    }

    #[test]
    fn an_unmeasured_goal_is_neither_met_nor_missed() {
        assert!(judge(&Results::default()).iter().all(|verdict| verdict.met.is_none() && verdict.measured == "-"));
    }

    #[test]
    fn a_smaller_size_says_nothing_about_a_goal() {
        let restart = |locks: f64| {
            let plain = block("killed", "fencepost-1", 1, &[("serves_ms", 1_000.0)]);
            let blocks = vec![crate::figures::Block { workload: "w8".to_owned(), parameter: locks, ..plain }];
            find(&judge(&Results { blocks }), "W8").met
        };
        assert_eq!((restart(20_000.0), restart(1_000_000.0)), (None, Some(true)));
    }

    #[test]
    fn the_least_of_all_shapes_counts() {
        let rate = |case: &str, system: &str, rate: f64| {
            let plain = block(case, system, 1, &[("pairs_per_second", rate)]);
            crate::figures::Block { workload: "efficiency-programs".to_owned(), ..plain }
        };
        let blocks = vec![
            rate("C = 64, one thread, one connection", EFFICIENCY_BASELINE, 200.0),
            rate("C = 64, one thread, one connection", "redis", 100.0),
            rate("C = 64, multi-threaded, one connection", EFFICIENCY_BASELINE, 150.0),
            rate("C = 64, multi-threaded, one connection", "redis", 120.0),
        ];
        let verdicts = judge(&Results { blocks });
        let beside = find(&verdicts, "1 × a single Redis in pairs/s");
        assert_eq!(beside.met, None, "{beside:?}: that goal is about another workload");
        let beside = find(&verdicts, "every shape: efficiency tier");
        assert_eq!(beside.met, Some(true));
        assert!(beside.measured.starts_with("1.25 × at C = 64, multi-threaded"), "{beside:?}");
        assert_eq!(find(&verdicts, "efficiency tier multi-threaded").met, Some(false), "150 is less than 160");
    }

    #[test]
    fn a_goal_is_met_or_missed_by_the_median() {
        let rate =
            |system, round, rate| block("C = 256", system, round, &[("pairs_per_second", rate), ("all_cpu_us", 30.0)]);
        let mut blocks = vec![rate(BASELINE, 1, 30_000.0), rate("etcd", 1, 1_500.0), rate("zookeeper", 1, 4_000.0)];
        blocks.push(rate("fencepost-5", 1, 26_000.0));
        let p50 = [("acquire_p50_ms", 0.3), ("probe_disk_us", 100.0), ("probe_loopback_us", 50.0)];
        blocks.push(block("C = 1", BASELINE, 1, &p50));
        let verdicts = judge(&Results { blocks });
        assert_eq!(find(&verdicts, "15 × three-node etcd").met, Some(true));
        assert_eq!(find(&verdicts, "10 × three-node ZooKeeper").met, Some(false));
        assert_eq!(find(&verdicts, "five nodes").met, Some(true));
        assert_eq!(find(&verdicts, "20 µs CPU").met, Some(true));
        let by_the_machine = find(&verdicts, "1.2 ×");
        assert_eq!((by_the_machine.met, by_the_machine.measured.as_str()), (Some(false), "1.50 ×"));
    }
}
