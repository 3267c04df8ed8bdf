//! From recorded calls to the figures of a run. Pure: no clock, no I/O. The figures are those of `benchmarks/latency.py`.
//!
//! Every latency is counted from the moment a call was due, not from when it was sent, so a generator or a server that
//! stalls cannot hide the wait it caused.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The code of a call that has not ended.
pub const OPEN: u32 = u32::MAX;
const OK: u32 = 0;
const SECOND: u64 = 1_000_000_000;
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

/// One call. Times in ns from the start; `code` is the gRPC status.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// When it was to be sent.
    pub due: u64,
    /// When it was.
    pub sent: u64,
    /// When it ended.
    pub done: u64,
    /// How.
    pub code: u32,
}

impl Call {
    fn latency(&self) -> u64 {
        self.done - self.due
    }
}

/// The part of the run that counts, by due time, and the bound within which an answer is useful.
pub struct Window {
    /// First moment, in ns.
    pub begin: u64,
    /// The moment after the last.
    pub end: u64,
    /// In ns.
    pub bound: u64,
}

impl Window {
    fn seconds(&self) -> f64 {
        (self.end - self.begin) as f64 / 1e9
    }

    fn holds(&self, moment: u64) -> bool {
        (self.begin..self.end).contains(&moment)
    }

    fn in_time(&self, call: &Call) -> bool {
        call.code == OK && call.latency() <= self.bound
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn percentile_us(ordered: &[u64], share: f64) -> f64 {
    let place = ((share * ordered.len() as f64) as usize).min(ordered.len().saturating_sub(1));
    tenths(ordered.get(place).map_or(0.0, |value| *value as f64 / 1e3))
}

/// Count and percentiles in microseconds.
fn spread(mut latencies: Vec<u64>) -> Value {
    latencies.sort_unstable();
    let mut figures = Map::new();
    figures.insert("count".into(), json!(latencies.len() as f64));
    for (name, share) in PERCENTILES {
        figures.insert(name.into(), json!(percentile_us(&latencies, share)));
    }
    Value::Object(figures)
}

/// All figures of one run. `throughput` counts good answers by when they came, `offered` and `goodput` calls by when
/// they were due.
pub fn summarise(calls: &[Call], window: &Window) -> Map<String, Value> {
    let seconds = window.seconds();
    let ended: Vec<&Call> = calls.iter().filter(|call| call.code != OPEN).collect();
    let counted: Vec<&Call> = ended.iter().copied().filter(|call| window.holds(call.due)).collect();
    let answers = ended.iter().filter(|call| call.code == OK && window.holds(call.done)).count();
    let good = counted.iter().filter(|call| window.in_time(call)).count();
    let mut by_code: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for call in &counted {
        by_code.entry(call.code).or_default().push(call.latency());
    }
    let ok = spread(by_code.remove(&OK).unwrap_or_default());
    let failed: Map<_, _> = by_code.into_iter().map(|(code, all)| (code.to_string(), spread(all))).collect();
    let fields = json!({
        "seconds": seconds,
        "offered": tenths(counted.len() as f64 / seconds),
        "throughput": tenths(answers as f64 / seconds),
        "goodput": tenths(good as f64 / seconds),
        "in_time_share": if counted.is_empty() { 0.0 } else { good as f64 / counted.len() as f64 },
        "ok": ok,
        "failed": failed,
        "lag": spread(counted.iter().map(|call| call.sent - call.due).collect()),
        "series": series(&counted, window),
    });
    match fields {
        Value::Object(fields) => fields,
        _ => unreachable!("an object was written"),
    }
}

/// One row per second of the window.
fn series(counted: &[&Call], window: &Window) -> Vec<Value> {
    let mut seconds: BTreeMap<u64, Vec<&Call>> = BTreeMap::new();
    for call in counted {
        seconds.entry((call.due - window.begin) / SECOND).or_default().push(call);
    }
    seconds.into_iter().map(|(second, calls)| row(second, &calls, window)).collect()
}

fn row(second: u64, calls: &[&Call], window: &Window) -> Value {
    let ordered = |good: bool| {
        let wanted = calls.iter().filter(|call| (call.code == OK) == good);
        let mut latencies: Vec<u64> = wanted.map(|call| call.latency()).collect();
        latencies.sort_unstable();
        latencies
    };
    let (good, failed) = (ordered(true), ordered(false));
    json!({
        "second": second as f64,
        "offered": calls.len() as f64,
        "in_time": calls.iter().filter(|call| window.in_time(call)).count() as f64,
        "failed": failed.len() as f64,
        "p50_us": percentile_us(&good, 0.5),
        "p99_us": percentile_us(&good, 0.99),
        "failed_p50_us": percentile_us(&failed, 0.5),
        "failed_p99_us": percentile_us(&failed, 0.99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn call(due_ms: u64, latency_ms: u64, code: u32) -> Call {
        let due = due_ms * MS;
        Call { due, sent: due + 1000, done: due + latency_ms * MS, code }
    }

    #[test]
    fn what_was_due_in_the_window_counts() {
        let calls =
            [call(500, 1, 0), call(1100, 2, 0), call(1200, 30, 0), call(2900, 1, 8), call(3100, 1, 0)];
        let window = Window { begin: 1000 * MS, end: 3000 * MS, bound: 10 * MS };
        let figures = summarise(&calls, &window);
        assert_eq!(figures["offered"], 1.5);
        assert_eq!(figures["throughput"], 1.0);
        assert_eq!(figures["goodput"], 0.5);
        assert_eq!(figures["ok"]["max"], 30_000.0);
        assert_eq!(figures["failed"]["8"]["p50"], 1000.0);
        assert_eq!(figures["lag"]["p99"], 1.0);
        assert_eq!(figures["series"][0]["in_time"], 1.0);
        assert_eq!(figures["series"][1]["failed_p99_us"], 1000.0);
    }

    #[test]
    fn percentiles_of_nothing_are_nothing() {
        assert_eq!(spread(vec![])["p99"], 0.0);
        let hundred = spread((1..=100).map(|value| value * 1000).collect());
        assert_eq!(
            (&hundred["p50"], &hundred["p99"], &hundred["max"]),
            (&json!(51.0), &json!(100.0), &json!(100.0))
        );
    }
}
