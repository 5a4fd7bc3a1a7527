//! Metrics in the form in which the registry gathers them.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

/// Labels and value of a sample.
pub(super) type Sample = (Labels, f64);

pub(super) type Labels = Vec<(&'static str, String)>;

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn labelled(labels: Labels) -> Metric {
    let pair = |(name, value): (&str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    Metric::from_label(labels.into_iter().map(pair).collect())
}

pub(super) fn counter(name: &str, help: &str, samples: Vec<Sample>) -> MetricFamily {
    let metric = |(labels, value): Sample| {
        let (mut metric, mut counter) = (labelled(labels), Counter::default());
        counter.set_value(value);
        metric.set_counter(counter);
        metric
    };
    family(name, help, MetricType::COUNTER, samples.into_iter().map(metric).collect())
}

pub(super) fn gauge(name: &str, help: &str, samples: Vec<Sample>) -> MetricFamily {
    let metric = |(labels, value): Sample| {
        let (mut metric, mut gauge) = (labelled(labels), Gauge::default());
        gauge.set_value(value);
        metric.set_gauge(gauge);
        metric
    };
    family(name, help, MetricType::GAUGE, samples.into_iter().map(metric).collect())
}

pub(super) fn histogram(name: &str, help: &str, metrics: Vec<Metric>) -> MetricFamily {
    family(name, help, MetricType::HISTOGRAM, metrics)
}

/// A metric of a histogram: `counts` has one for each of `bounds`, and one for what is above all of them.
pub(super) fn distribution(
    labels: Labels,
    bounds: impl Iterator<Item = f64>,
    counts: &[u64],
    sum: f64,
) -> Metric {
    let mut seen = 0;
    let bucket = |(bound, n): (f64, &u64)| {
        seen += n;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(seen);
        bucket
    };
    let mut sample = Histogram::default();
    sample.set_bucket(bounds.zip(counts).map(bucket).collect());
    sample.set_sample_count(counts.iter().sum());
    sample.set_sample_sum(sum);
    let mut metric = labelled(labels);
    metric.set_histogram(sample);
    metric
}
