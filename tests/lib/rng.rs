//! A small seeded generator, so that a failure names a seed and a seed repeats a failure.

/// SplitMix64: enough to choose inputs, not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed in `SEMEL_TEST_SEED`, or `default`.
    #[must_use]
    pub fn from_env(default: u64) -> Self {
        Self(std::env::var("SEMEL_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(default))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; `bound` is exclusive and at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }
}
