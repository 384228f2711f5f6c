//! Randomness.

use std::fmt;

use uuid::Uuid;

/// Draws random numbers.
pub trait Entropy: fmt::Debug + Send + Sync + 'static {
    /// Fills `bytes`, all of them.
    fn fill(&self, bytes: &mut [u8]);

    /// Uniform over all of `u64`.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A random (version 4) UUID, for topics, directories and clusters.
    fn uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Uuid::from_bytes(bytes)
    }
}

impl<E: Entropy + ?Sized> Entropy for std::sync::Arc<E> {
    fn fill(&self, bytes: &mut [u8]) {
        (**self).fill(bytes);
    }
}

/// The operating system's generator (`getrandom`), fit for secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealEntropy;

impl Entropy for RealEntropy {
    fn fill(&self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()) {
                Ok(filled) => bytes = &mut bytes[filled..],
                Err(rustix::io::Errno::INTR) => {}
                // Nothing that needs a secret may run on without one, and no caller could do better.
                Err(cause) => panic!("the operating system gives no random bytes: {cause}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_entropy_fills_and_makes_uuids_of_version_4() {
        assert_ne!(RealEntropy.next_u64(), RealEntropy.next_u64());
        assert_eq!(RealEntropy.uuid().get_version_num(), 4);
    }
}
