//! Writes metrics in the text format of Prometheus, version 0.0.4.
//!
//! It knows the format and no metric: `metrics.rs` says what is shown. Names and labels are constants of this crate, except for the
//! version of the build, so no lock or client name can become a label.

use std::fmt::{Display, Write};

use fencepost_replica::Histogram;

/// What the `Content-Type` header of the text says.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels with their values.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text of all metrics, under construction.
#[derive(Default)]
pub(crate) struct Exposition {
    text: String,
}

impl Exposition {
    /// A value that goes up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("gauge", name, help);
        self.sample(name, &[], value);
    }

    /// A gauge that is always 1. Its labels are what it says.
    pub(crate) fn facts(&mut self, name: &str, help: &str, labels: Labels<'_>) {
        self.family("gauge", name, help);
        self.sample(name, labels, 1);
    }

    /// A value that only rises. The name ends in `_total`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family("counter", name, help);
        self.sample(name, &[], value);
    }

    /// Values that only rise, each with its own labels.
    pub(crate) fn counters<'a>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels<'a>, u64)>) {
        self.family("counter", name, help);
        for (labels, value) in values {
            self.sample(name, labels, value);
        }
    }

    /// Durations by buckets, each histogram with its own labels. The name ends in `_seconds`.
    pub(crate) fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        histograms: impl IntoIterator<Item = (Labels<'a>, &'a Histogram)>,
    ) {
        self.family("histogram", name, help);
        for (labels, histogram) in histograms {
            let observed = histogram.observed();
            for (bound, count) in &observed.buckets {
                let le = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
                let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", le.as_str())]).collect();
                self.sample(&format!("{name}_bucket"), &labels, count);
            }
            self.sample(&format!("{name}_sum"), labels, observed.sum.as_secs_f64());
            self.sample(&format!("{name}_count"), labels, observed.count());
        }
    }

    /// The whole text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn family(&mut self, kind: &str, name: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        if labels.is_empty() {
            return self.line(format_args!("{name} {value}"));
        }
        let label = |(key, value): &(&str, &str)| format!("{key}=\"{value}\"");
        let labels: Vec<String> = labels.iter().map(label).collect();
        self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("writing to a string does not fail");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_kind_of_metric_is_written_as_the_format_says() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(300));
        let mut shown = Exposition::default();
        shown.gauge("fencepost_term", "The term", 3);
        shown.counters("fencepost_ended_total", "Ends", [(&[("how", "closed")][..], 2), (&[("how", "expired")], 0)]);
        shown.histograms("fencepost_sync_seconds", "Syncs", [(&[][..], &histogram)]);
        let text = shown.into_text();
        let begins = "# HELP fencepost_term The term\n# TYPE fencepost_term gauge\nfencepost_term 3\n\
            # HELP fencepost_ended_total Ends\n# TYPE fencepost_ended_total counter\n\
            fencepost_ended_total{how=\"closed\"} 2\nfencepost_ended_total{how=\"expired\"} 0\n\
            # HELP fencepost_sync_seconds Syncs\n# TYPE fencepost_sync_seconds histogram\n\
            fencepost_sync_seconds_bucket{le=\"0.0001\"} 0\n";
        assert!(text.starts_with(begins), "{text}");
        for line in [
            "fencepost_sync_seconds_bucket{le=\"0.00025\"} 0",
            "fencepost_sync_seconds_bucket{le=\"0.0005\"} 1",
            "fencepost_sync_seconds_bucket{le=\"300\"} 1",
            "fencepost_sync_seconds_bucket{le=\"+Inf\"} 1",
            "fencepost_sync_seconds_sum 0.0003",
            "fencepost_sync_seconds_count 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in {text}");
        }
    }
}
