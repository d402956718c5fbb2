//! The measurements: blocks, and the summaries and ratios of many blocks.
//!
//! A shared machine is faster in one minute than in the next. So blocks of different rounds are never compared: a ratio is calculated
//! from two blocks of the same round. The report shows the median of these ratios, with the least and the most.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalogue;

/// One block: a line of `results.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// `w1` and so on.
    pub workload: String,
    /// The parameter of the workload as text: `C = 16`, for example.
    pub case: String,
    /// The parameter as a number, for plots.
    pub parameter: f64,
    /// The id of the system.
    pub system: String,
    /// The name of the system in tables.
    pub name: String,
    /// The round, from 1.
    pub round: usize,
    /// The figures by name. The last word of a name is the unit.
    pub figures: BTreeMap<String, f64>,
}

/// The median and the range of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle figure. If their number is even, the mean of the two in the middle.
    pub median: f64,
    /// The least of them.
    pub least: f64,
    /// The most of them.
    pub most: f64,
}

impl Summary {
    /// `None` if there are no figures.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let (least, most) = (*figures.first()?, *figures.last()?);
        let middle = figures.len() / 2;
        let median =
            if figures.len() % 2 == 1 { figures[middle] } else { (figures[middle - 1] + figures[middle]) / 2.0 };
        Some(Summary { median, least, most })
    }
}

/// All blocks of a run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// In the order in which they were measured.
    pub blocks: Vec<Block>,
}

impl Results {
    /// The blocks of one case, of all systems.
    pub fn of<'a>(&'a self, workload: &'a str, case: &'a str) -> impl Iterator<Item = &'a Block> {
        self.blocks.iter().filter(move |block| block.workload == workload && block.case == case)
    }

    /// The cases of a workload, each with its parameter as a number: `("C = 16", 16.0)`. In the order in which they were measured.
    pub fn cases(&self, workload: &str) -> Vec<(String, f64)> {
        let mut cases: Vec<(String, f64)> = Vec::new();
        for block in self.blocks.iter().filter(|block| block.workload == workload) {
            if !cases.iter().any(|(case, _)| *case == block.case) {
                cases.push((block.case.clone(), block.parameter));
            }
        }
        cases
    }

    /// The systems of a workload, with their names, in the order of the catalogue.
    pub fn systems(&self, workload: &str) -> Vec<(String, String)> {
        let mut systems: Vec<(String, String)> = Vec::new();
        for block in self.blocks.iter().filter(|block| block.workload == workload) {
            if !systems.iter().any(|(system, _)| *system == block.system) {
                systems.push((block.system.clone(), block.name.clone()));
            }
        }
        systems.sort_by_key(|(system, _)| catalogue::ALL.iter().position(|entry| entry.id == system));
        systems
    }

    /// One figure of one system in one case, over all rounds.
    pub fn summary(&self, workload: &str, case: &str, system: &str, figure: &str) -> Option<Summary> {
        let blocks = self.of(workload, case).filter(|block| block.system == system);
        Summary::of(blocks.filter_map(|block| block.figures.get(figure).copied()))
    }

    /// The figure of `one` divided by the figure of `other`, round by round.
    pub fn ratio(&self, workload: &str, case: &str, figure: &str, one: &str, other: &str) -> Option<Summary> {
        self.ratio_of(workload, figure, (one, case), (other, case))
    }

    /// The same for two pairs of a system and a case.
    pub fn ratio_of(&self, workload: &str, figure: &str, one: (&str, &str), other: (&str, &str)) -> Option<Summary> {
        let of = |(system, case): (&str, &str)| {
            let blocks = self.of(workload, case).filter(|block| block.system == system);
            blocks.filter_map(|block| Some((block.round, *block.figures.get(figure)?))).collect::<BTreeMap<_, _>>()
        };
        let (ones, others) = (of(one), of(other));
        let ratios = ones.iter().filter_map(|(round, one)| {
            let other = others.get(round)?;
            (*other > 0.0).then(|| one / other)
        });
        Summary::of(ratios)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn block(case: &str, system: &str, round: usize, figures: &[(&str, f64)]) -> Block {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let parameter = case.rsplit(' ').next().and_then(|text| text.replace(',', "").parse().ok()).unwrap_or(0.0);
        let (case, system, name) = (case.to_owned(), system.to_owned(), format!("The {system}"));
        Block { workload: "w1".to_owned(), case, parameter, system, name, round, figures }
    }

    #[test]
    fn the_median_of_two_is_their_mean_and_no_figures_have_no_summary() {
        assert_eq!(Summary::of([3.0, 1.0, 2.0]), Some(Summary { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Summary::of([4.0, 1.0]), Some(Summary { median: 2.5, least: 1.0, most: 4.0 }));
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn ratios_are_calculated_within_a_round() {
        // In the second round the machine was ten times slower, for both.
        let blocks = vec![
            block("C = 1", "a", 1, &[("pairs_per_second", 100.0)]),
            block("C = 1", "b", 1, &[("pairs_per_second", 50.0)]),
            block("C = 1", "a", 2, &[("pairs_per_second", 10.0)]),
            block("C = 1", "b", 2, &[("pairs_per_second", 5.0)]),
            // The other system has no block in this round.
            block("C = 1", "a", 3, &[("pairs_per_second", 1.0)]),
        ];
        let results = Results { blocks };
        let ratio = results.ratio("w1", "C = 1", "pairs_per_second", "a", "b");
        assert_eq!(ratio, Some(Summary { median: 2.0, least: 2.0, most: 2.0 }));
        assert_eq!(results.ratio("w1", "C = 1", "pairs_per_second", "a", "c"), None);
        assert_eq!(results.cases("w1"), [("C = 1".to_owned(), 1.0)]);
        assert_eq!(results.systems("w1").len(), 2);
    }

    #[test]
    fn a_block_is_one_line_and_is_read_back() {
        let block = block("C = 16", "a", 1, &[("x_ms", 0.5)]);
        let line = serde_json::to_string(&block).expect("plain values");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Block>(&line).expect("its own line"), block);
    }
}
