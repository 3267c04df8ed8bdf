//! What the engine is told of requests that were served without it: sums per model, kind and lane, so that telling
//! costs by time and not by request.

use crate::measure::ids::ById;
use crate::templates::template::Subject;
use bytes::Bytes;
use std::collections::BTreeMap;

/// How often durations fell between two bounds, and their sum.
#[derive(Default, Clone)]
pub(crate) struct Histogram {
    /// By bucket; those behind the last one are empty.
    pub(crate) counts: Vec<u64>,
    /// Nanoseconds.
    pub(crate) sum_ns: u64,
}

impl Histogram {
    fn observe(&mut self, bucket: usize, ns: u64) {
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.sum_ns += ns;
    }
}

/// Batches of one size, and the nanoseconds that their stages took together.
#[derive(Default, Clone, Copy)]
pub(crate) struct Batches {
    /// How many.
    pub(crate) count: u64,
    /// Making them.
    pub(crate) gather_ns: u64,
    /// Running them.
    pub(crate) run_ns: u64,
    /// Splitting them.
    pub(crate) scatter_ns: u64,
}

/// A request that took long.
pub(crate) struct Slow {
    /// Its id.
    pub(crate) id: Bytes,
    /// Its client, by its certificate.
    pub(crate) client: String,
    /// Queue, gather, run, scatter, total.
    pub(crate) stages_ns: [u64; 5],
}

/// What happened to the requests of one subject.
#[derive(Default)]
pub(crate) struct Tally {
    /// Answered.
    pub(crate) requests: u64,
    /// Their rows.
    pub(crate) rows: u64,
    /// By rows.
    pub(crate) batches: BTreeMap<u32, Batches>,
    /// Queue, gather, run, scatter, total.
    pub(crate) stages: [Histogram; 5],
    /// Refused because they could not be in time.
    pub(crate) refused: u64,
    /// Given up by their clients.
    pub(crate) cancelled: u64,
    /// Answered too late.
    pub(crate) expired: u64,
    /// The shortest time that one of them brought until its deadline; 0: none had one.
    pub(crate) budget_ns: u64,
    /// The slow ones, some of them.
    pub(crate) slow: Vec<Slow>,
}

/// Characters of an id that are kept: with more, whole messages would stay.
const ID: usize = 64;

/// An id without the message that it is a part of.
pub(crate) fn kept(id: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&id[..id.len().min(ID)])
}

/// Slow requests kept until they are told; the others are only counted.
const SLOW: usize = 64;

/// Everything since it was last told.
pub(crate) struct News {
    bounds_ns: Vec<u64>,
    slow_ns: u64,
    tallies: ById<Subject, Tally>,
    broken: Vec<u32>,
}

impl News {
    /// Nothing yet. Durations are counted between these bounds; requests longer than `slow_ns` are told one by one (0:
    /// none is).
    pub(crate) fn new(bounds_ns: Vec<u64>, slow_ns: u64) -> Self {
        Self { bounds_ns, slow_ns, tallies: ById::default(), broken: Vec::new() }
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.tallies.is_empty() && self.broken.is_empty()
    }

    fn of(&mut self, subject: Subject) -> &mut Tally {
        self.tallies.entry(subject).or_default()
    }

    /// A batch came back.
    pub(crate) fn batch(&mut self, subject: Subject, rows: u32, stages: Batches) {
        let batches = self.of(subject).batches.entry(rows).or_default();
        batches.count += 1;
        batches.gather_ns += stages.gather_ns;
        batches.run_ns += stages.run_ns;
        batches.scatter_ns += stages.scatter_ns;
    }

    /// A request was answered; its id and its client.
    pub(crate) fn answered(
        &mut self,
        subject: Subject,
        (id, client): (&Bytes, &str),
        rows: u32,
        stages_ns: [u64; 5],
    ) {
        let slow = self.slow_ns > 0 && stages_ns[4] > self.slow_ns;
        let buckets = stages_ns.map(|ns| self.bounds_ns.partition_point(|bound| *bound < ns));
        let tally = self.of(subject);
        tally.requests += 1;
        tally.rows += u64::from(rows);
        for (place, histogram) in tally.stages.iter_mut().enumerate() {
            histogram.observe(buckets[place], stages_ns[place]);
        }
        if slow && tally.slow.len() < SLOW {
            let (id, client) = (kept(id), client.to_string());
            tally.slow.push(Slow { id, client, stages_ns });
        }
    }

    /// A request was refused.
    pub(crate) fn refused(&mut self, subject: Subject) {
        self.of(subject).refused += 1;
    }

    /// A client went away.
    pub(crate) fn cancelled(&mut self, subject: Subject) {
        self.of(subject).cancelled += 1;
    }

    /// A request brought so much time until its deadline.
    pub(crate) fn budget(&mut self, subject: Subject, ns: u64) {
        let known = &mut self.of(subject).budget_ns;
        *known = if *known == 0 { ns } else { ns.min(*known) };
    }

    /// The outputs came after the deadline.
    pub(crate) fn expired(&mut self, subject: Subject) {
        self.of(subject).expired += 1;
    }

    /// A worker said what cannot be.
    pub(crate) fn broken(&mut self, lane: u32) {
        self.broken.push(lane);
    }

    /// Takes everything.
    pub(crate) fn take(&mut self) -> (Vec<(Subject, Tally)>, Vec<u32>) {
        (self.tallies.drain().collect(), std::mem::take(&mut self.broken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_between_the_bounds() {
        let mut news = News::new(vec![10, 20], 0);
        for ns in [10, 11, 20, 21] {
            news.answered((1, 2, 3), (&Bytes::new(), ""), 2, [ns; 5]);
        }
        let (tallies, _) = news.take();
        let (subject, tally) = &tallies[0];
        assert_eq!((*subject, tally.requests, tally.rows), ((1, 2, 3), 4, 8));
        assert_eq!(tally.stages[4].counts, [1, 2, 1]);
        assert_eq!(tally.stages[0].sum_ns, 62);
        assert!(tally.slow.is_empty() && news.is_empty());
    }

    #[test]
    fn the_shortest_budget_is_told() {
        let mut news = News::new(vec![], 0);
        [30, 10, 20].into_iter().for_each(|ns| news.budget((1, 1, 1), ns));
        assert_eq!(news.take().0[0].1.budget_ns, 10);
    }

    #[test]
    fn slow_requests_are_told_up_to_a_bound() {
        let mut news = News::new(vec![], 5);
        for ns in 0..200 {
            news.answered((1, 1, 1), (&Bytes::from_static(b"id"), "camera"), 1, [0, 0, 0, 0, ns]);
        }
        let (tallies, _) = news.take();
        assert_eq!(tallies[0].1.slow.len(), SLOW);
        let slow = &tallies[0].1.slow[0];
        assert_eq!((slow.stages_ns[4], &slow.id[..], &slow.client[..]), (6, &b"id"[..], "camera"));
        assert_eq!(tallies[0].1.requests, 200);
    }

    #[test]
    fn batches_add_up_by_their_rows() {
        let mut news = News::new(vec![], 0);
        for rows in [4, 4, 8] {
            news.batch((1, 1, 1), rows, Batches { count: 0, gather_ns: 1, run_ns: 2, scatter_ns: 3 });
        }
        news.broken(7);
        let (tallies, broken) = news.take();
        let batches = &tallies[0].1.batches;
        assert_eq!((batches[&4].count, batches[&4].run_ns, batches[&8].count), (2, 4, 1));
        assert_eq!(broken, [7]);
    }
}
