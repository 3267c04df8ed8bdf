//! When the calls of an open loop are due, drawn from a seed.

use crate::plan::Shape;

/// Times in ns from the start, in order, for a rate; nothing for a closed loop.
pub struct Arrivals {
    shape: Shape,
    state: u64,
    now_s: f64,
    end_s: f64,
}

impl Arrivals {
    /// Until `end_s`.
    pub fn new(shape: Shape, seed: u64, end_s: f64) -> Self {
        Self { shape, state: seed, now_s: 0.0, end_s }
    }

    /// Uniform in (0, 1]. SplitMix64, by Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((mixed >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.now_s += match self.shape {
            Shape::Closed(_) => return None,
            Shape::Poisson(rate) => -self.uniform().ln() / rate,
            Shape::Constant(rate) => 1.0 / rate,
        };
        (self.now_s < self.end_s).then_some((self.now_s * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_the_seed_decides() {
        let times = |shape, seed| Arrivals::new(shape, seed, 10.0).collect::<Vec<_>>();
        let poisson = times(Shape::Poisson(1000.0), 1);
        assert!((9_700..10_300).contains(&poisson.len()), "{}", poisson.len());
        assert!(poisson.is_sorted());
        assert_eq!(poisson, times(Shape::Poisson(1000.0), 1));
        assert_ne!(poisson, times(Shape::Poisson(1000.0), 2));
        assert_eq!(times(Shape::Constant(100.0), 1)[..2], [10_000_000, 20_000_000]);
        assert!(times(Shape::Closed(4), 1).is_empty());
    }

    #[test]
    fn the_gaps_of_poisson_arrivals_vary_as_they_should() {
        let times: Vec<u64> = Arrivals::new(Shape::Poisson(1000.0), 3, 20.0).collect();
        let long = times.windows(2).filter(|pair| pair[1] - pair[0] > 1_000_000).count();
        let share = long as f64 / times.len() as f64;
        assert!((0.35..0.385).contains(&share), "e^-1, not {share}");
    }
}
