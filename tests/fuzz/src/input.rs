//! How inputs are laid out.
//!
//! Numbers are big-endian; a number that is cut off is 0, so that every input means something. Inputs that stand for
//! several files are a row of sections:
//!
//! ```text
//! section:  kind (u8)  base (u16)  length (u16)  bytes, as many as there are
//! ```
//!
//! The highest bit of `kind` asks for the checksums of the file to be put right.

/// A file of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Which file, 0 to 127; what that means is the target's.
    pub kind: u8,
    /// Whether its checksums shall be put right.
    pub repair: bool,
    /// The offset in its name; the last sixteen stand for the largest there are.
    pub base: u16,
    /// Its content.
    pub bytes: Vec<u8>,
}

impl Section {
    /// Appends the section to an input. Content beyond 65,535 bytes is cut.
    pub fn write(&self, to: &mut Vec<u8>) {
        let length = self.bytes.len().min(usize::from(u16::MAX));
        to.push(self.kind & 0x7f | if self.repair { 0x80 } else { 0 });
        to.extend_from_slice(&self.base.to_be_bytes());
        to.extend_from_slice(&(length as u16).to_be_bytes());
        to.extend_from_slice(&self.bytes[..length]);
    }

    /// The base as an offset.
    #[must_use]
    pub fn offset(&self) -> i64 {
        let from_top = i64::from(u16::MAX - self.base);
        if from_top < 16 { i64::MAX - from_top } else { i64::from(self.base) }
    }
}

/// A cursor over an input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// From the first byte on.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// The next `length` bytes, or what is left.
    pub fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    #[must_use]
    pub const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The next section; `None` at the end.
    pub fn section(&mut self) -> Option<Section> {
        if self.0.is_empty() {
            return None;
        }
        let kind = self.u8();
        let base = self.u16();
        let length = usize::from(self.u16());
        Some(Section { kind: kind & 0x7f, repair: kind & 0x80 != 0, base, bytes: self.take(length).to_vec() })
    }
}
