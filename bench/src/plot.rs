//! Plots as SVG, drawn without a library: lines over two logarithmic axes. Every figure in them is also in a table of the report.
//!
//! They are readable on light and dark pages, because the colour of text and axes follows the reader's scheme. Each line has its name
//! beside its end, so that nothing depends on colour alone.

use std::fmt::Write;

use crate::figures::Results;
use crate::report::number;
use crate::workload::Workload;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 420.0;
/// Room for the axis at the left and for the names at the right.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 52.0;
/// The least distance between the names of two lines.
const NAME_GAP: f64 = 15.0;

/// Colours that people with any kind of colour vision can tell apart, on white and on black.
const COLOURS: [&str; 10] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d", "#7f7f7f", "#b2182b"];

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.grid{stroke:#d0d7de}\
.axis{stroke:#57606a}.range{opacity:.35}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.axis{stroke:#9198a1}}";

/// One line of a plot.
pub(crate) struct Series {
    pub(crate) name: String,
    /// Place on the x axis, median, least and most. Invariant: all above zero.
    pub(crate) points: Vec<(f64, f64, f64, f64)>,
}

/// What a plot shows.
struct Shape {
    file: &'static str,
    workload: Workload,
    title: &'static str,
    figure: &'static str,
    across: &'static str,
}

const SHAPES: &[Shape] = &[
    Shape {
        file: "w1-throughput.svg",
        workload: Workload::Uncontended,
        title: "Free locks: pairs of acquire and release a second",
        figure: "pairs_per_second",
        across: "contenders",
    },
    Shape {
        file: "w1-latency.svg",
        workload: Workload::Uncontended,
        title: "Free locks: acquire p50, ms",
        figure: "acquire_p50_ms",
        across: "contenders",
    },
    Shape {
        file: "w1-cpu.svg",
        workload: Workload::Uncontended,
        title: "Free locks: processor time a pair, servers and load, µs",
        figure: "all_cpu_us",
        across: "contenders",
    },
    Shape {
        file: "open-loop.svg",
        workload: Workload::OpenLoop,
        title: "Open loop: acquire p99 from the instant when it was due, ms",
        figure: "acquire_p99_ms",
        across: "% of the peak",
    },
    Shape {
        file: "w2-handovers.svg",
        workload: Workload::HotLock,
        title: "One hot lock: hand-overs a second",
        figure: "handovers_per_second",
        across: "contenders for the one lock",
    },
    Shape {
        file: "efficiency.svg",
        workload: Workload::Efficiency,
        title: "Efficiency tier: pairs of acquire and release a second",
        figure: "pairs_per_second",
        across: "contenders",
    },
];

/// The plots of a workload: file and title.
pub(crate) fn of(workload: Workload) -> Vec<(&'static str, &'static str)> {
    SHAPES.iter().filter(|shape| shape.workload == workload).map(|shape| (shape.file, shape.title)).collect()
}

/// All plots that have a line: file name and SVG.
pub(crate) fn all(results: &Results) -> Vec<(String, String)> {
    let drawn = SHAPES.iter().filter_map(|shape| {
        let series = series(results, shape);
        (!series.is_empty()).then(|| (shape.file.to_owned(), draw(shape.title, shape.across, &series)))
    });
    drawn.collect()
}

fn series(results: &Results, shape: &Shape) -> Vec<Series> {
    let id = shape.workload.id();
    let cases = results.cases(id);
    let of = |system: &str| {
        let points = cases.iter().filter_map(|(case, parameter)| {
            let summary = results.summary(id, case, system, shape.figure)?;
            // A logarithmic axis has no zero.
            (summary.least > 0.0).then_some((*parameter, summary.median, summary.least, summary.most))
        });
        points.collect::<Vec<_>>()
    };
    let all = results.systems(id).into_iter().map(|(system, name)| Series { name, points: of(&system) });
    all.filter(|series| !series.points.is_empty()).collect()
}

/// A logarithmic axis: maps values to places on the page.
struct Scale {
    from: f64,
    to: f64,
    near: f64,
    far: f64,
}

impl Scale {
    /// An axis over whole powers of ten, so that both ends have a label.
    fn decades(values: impl Iterator<Item = f64> + Clone, near: f64, far: f64) -> Scale {
        let least = values.clone().fold(f64::MAX, f64::min);
        let most = values.fold(f64::MIN_POSITIVE, f64::max);
        let from = 10_f64.powf(least.log10().floor());
        let to = 10_f64.powf(most.log10().ceil());
        Scale { from, to: if to > from { to } else { from * 10.0 }, near, far }
    }

    /// An axis from the least to the greatest value.
    fn tight(values: impl Iterator<Item = f64> + Clone, near: f64, far: f64) -> Scale {
        let (from, to) = (values.clone().fold(f64::MAX, f64::min), values.fold(f64::MIN_POSITIVE, f64::max));
        Scale { from, to: if to > from { to } else { from * 2.0 }, near, far }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value / self.from).ln() / (self.to / self.from).ln();
        self.near + share * (self.far - self.near)
    }

    /// The powers of ten on the axis.
    fn ticks(&self) -> Vec<f64> {
        let powers = self.from.log10().round() as i32..=self.to.log10().round() as i32;
        powers.map(|power| 10_f64.powi(power)).collect()
    }
}

/// Draws lines over two logarithmic axes. There must be at least one point.
pub(crate) fn draw(title: &str, across: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let x = Scale::tight(points().map(|point| point.0), LEFT + 12.0, WIDTH - RIGHT - 8.0);
    let y = Scale::decades(points().flat_map(|point| [point.2, point.3]), HEIGHT - BOTTOM, TOP);
    let mut svg = String::new();
    let title = escape(title);
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>"
    );
    let _ = writeln!(svg, "<text class=\"title\" x=\"{LEFT}\" y=\"24\">{title}</text>");
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        );
        let label = number(tick).trim_end_matches('0').trim_end_matches('.').to_owned();
        let label = if tick >= 1.0 { fencepost_load::count(tick) } else { label };
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 8.0, at + 4.0);
    }
    let mut places: Vec<f64> = points().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    for place in places {
        let at = x.place(place);
        let bottom = HEIGHT - BOTTOM;
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{:.1}\"/>",
            bottom + 5.0
        );
        let label = fencepost_load::count(place);
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", bottom + 20.0);
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let across = escape(across);
    let _ = writeln!(svg, "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{across}</text>", HEIGHT - 12.0);
    for (index, series) in series.iter().enumerate() {
        line(&mut svg, series, COLOURS[index % COLOURS.len()], &x, &y);
    }
    let ends = series.iter().map(|series| series.points.last().map_or(0.0, |point| y.place(point.1)));
    for (index, (series, at)) in series.iter().zip(apart(&ends.collect::<Vec<_>>())).enumerate() {
        let (colour, edge) = (COLOURS[index % COLOURS.len()], WIDTH - RIGHT + 8.0);
        let (name, text) = (escape(&series.name), edge + 14.0);
        let _ =
            writeln!(svg, "<rect x=\"{edge:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\" fill=\"{colour}\"/>", at - 5.0);
        let _ = writeln!(svg, "<text x=\"{text:.1}\" y=\"{:.1}\">{name}</text>", at + 4.0);
    }
    svg + "</svg>\n"
}

/// Draws the medians as a line, and the range from least to most as a stroke at each point.
fn line(svg: &mut String, series: &Series, colour: &str, x: &Scale, y: &Scale) {
    let path: Vec<String> =
        series.points.iter().map(|point| format!("{:.1},{:.1}", x.place(point.0), y.place(point.1))).collect();
    let path = path.join(" ");
    let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    for (at, median, least, most) in &series.points {
        let (at, from, to) = (x.place(*at), y.place(*least), y.place(*most));
        let _ = writeln!(
            svg,
            "<line class=\"range\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\" stroke=\"{colour}\" stroke-width=\"5\"/>\
             <circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {}</title></circle>",
            y.place(*median),
            escape(&series.name),
            number(*median)
        );
    }
}

/// The heights of the names, moved so that no two names overlap and all are on the page.
fn apart(wanted: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|one, other| wanted[*one].total_cmp(&wanted[*other]));
    let mut placed = wanted.to_vec();
    let mut least = TOP;
    for &index in &order {
        placed[index] = placed[index].max(least);
        least = placed[index] + NAME_GAP;
    }
    let mut most = HEIGHT - BOTTOM + 12.0;
    for &index in order.iter().rev() {
        placed[index] = placed[index].min(most);
        most = placed[index] - NAME_GAP;
    }
    placed
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::block;

    #[test]
    fn a_logarithmic_scale_has_its_powers_of_ten_at_equal_distances() {
        let scale = Scale::decades([20.0, 3_000.0].into_iter(), 300.0, 0.0);
        assert_eq!(scale.ticks(), [10.0, 100.0, 1_000.0, 10_000.0]);
        let places: Vec<f64> = scale.ticks().into_iter().map(|tick| scale.place(tick).round()).collect();
        assert_eq!(places, [300.0, 200.0, 100.0, 0.0]);
        // A single value has an axis, too.
        assert_eq!(Scale::decades([100.0].into_iter(), 300.0, 0.0).ticks(), [100.0, 1_000.0]);
        assert!(Scale::tight([5.0].into_iter(), 0.0, 100.0).place(5.0).is_finite());
    }

    #[test]
    fn names_do_not_overlap() {
        let placed = apart(&[100.0, 101.0, 99.0, 400.0, 401.0]);
        let mut sorted = placed.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= NAME_GAP - 0.001), "{placed:?}");
        assert!(placed[2] < placed[0] && placed[0] < placed[1]);
    }

    #[test]
    fn a_plot_has_a_title_and_a_line_for_each_system_and_no_results_have_no_plot() {
        let mut blocks = Vec::new();
        for (case, rate) in [("C = 1", 900.0), ("C = 1,000", 40_000.0)] {
            blocks.push(block(case, "a", 1, &[("pairs_per_second", rate)]));
            blocks.push(block(case, "b<", 1, &[("pairs_per_second", rate / 2.0)]));
        }
        let plots = all(&Results { blocks });
        let (name, svg) = plots.first().expect("one plot");
        assert_eq!((plots.len(), name.as_str()), (1, "w1-throughput.svg"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("<title>Free locks: pairs") && svg.contains("The b&lt;") && !svg.contains("NaN"), "{svg}");
        assert!(all(&Results::default()).is_empty());
    }
}
