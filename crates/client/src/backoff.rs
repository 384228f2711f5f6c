//! Waits between attempts.

use std::time::Duration;

use semel_env::Entropy;

use crate::Config;

/// The wait after `failures` (≥ 1) failures in a row: doubles from `backoff_first` to `backoff_max`, ±20 %, so that
/// clients which failed together don't come back together (KIP-580).
pub(crate) fn delay(config: &Config, entropy: &dyn Entropy, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(20);
    let base = config.backoff_first.saturating_mul(1 << doublings).min(config.backoff_max);
    // 0 to 4095 maps to 0.8 to 1.2.
    let draw = (entropy.next_u64() & 0xfff) as f64 / 4095.0;
    base.mul_f64(0.8 + 0.4 * draw)
}

#[cfg(test)]
mod tests {
    use semel_env::RealEntropy;

    use super::*;

    #[test]
    fn waits_double_up_to_the_bound() {
        let config = Config::default();
        for (failures, milliseconds) in [(1, 50), (2, 100), (3, 200), (6, 1000), (40, 1000), (u32::MAX, 1000)]
        {
            let wait = delay(&config, &RealEntropy, failures).as_millis();
            assert!(
                wait >= milliseconds * 79 / 100 && wait <= milliseconds * 121 / 100,
                "{failures}: {wait} ms"
            );
        }
    }
}
