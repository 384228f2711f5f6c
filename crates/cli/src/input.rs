//! Reading what is to be produced: delimited records without a copy of each.

use std::io::{self, Read};

use bytes::{Bytes, BytesMut};

/// Read at once.
const CHUNK: usize = 256 << 10;
/// The longest record between two delimiters. Brokers take 1 MiB by default; this only bounds memory.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// Splits a stream at a delimiter. The records of one chunk share its memory.
pub(crate) struct Splitter<R> {
    from: R,
    delimiter: Vec<u8>,
    /// What follows the last delimiter.
    rest: BytesMut,
    ended: bool,
}

impl<R: Read> Splitter<R> {
    /// `delimiter` has one byte at least.
    pub(crate) fn new(from: R, delimiter: Vec<u8>) -> Self {
        Self { from, delimiter, rest: BytesMut::new(), ended: false }
    }

    /// The next records and how many bytes were read for them; `None` at the end. What follows the last delimiter is
    /// a record unless it is empty.
    pub(crate) fn next(&mut self) -> io::Result<Option<(Vec<Bytes>, u64)>> {
        let mut read = 0_u64;
        // Where no delimiter can begin: those bytes were looked at before.
        let mut searched = self.rest.len().saturating_sub(self.delimiter.len() - 1);
        loop {
            if self.ended {
                let last = std::mem::take(&mut self.rest).freeze();
                return Ok((!last.is_empty()).then(|| (vec![last], read)));
            }
            let have = self.rest.len();
            self.rest.resize(have + CHUNK, 0);
            let got = self.from.read(&mut self.rest[have..]);
            let got = match got {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => 0,
                Err(cause) => {
                    self.rest.truncate(have);
                    return Err(cause);
                }
                Ok(0) => {
                    self.ended = true;
                    0
                }
                Ok(got) => got,
            };
            self.rest.truncate(have + got);
            read += got as u64;
            let mut ends = Vec::new();
            let mut at = searched;
            while let Some(found) = find(&self.rest[at..], &self.delimiter) {
                ends.push(at + found);
                at += found + self.delimiter.len();
            }
            if let Some(&last) = ends.last() {
                let mut whole = self.rest.split_to(last + self.delimiter.len()).freeze();
                let mut start = 0;
                let mut records = Vec::with_capacity(ends.len());
                for end in ends {
                    records.push(whole.split_to(end - start));
                    let _ = whole.split_to(self.delimiter.len());
                    start = end + self.delimiter.len();
                }
                return Ok(Some((records, read)));
            }
            if self.rest.len() > RECORD_BYTES_MAX {
                let text = format!("no delimiter within {RECORD_BYTES_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            searched = self.rest.len().saturating_sub(self.delimiter.len() - 1);
        }
    }
}

/// Where `needle` (not empty) begins in `hay`.
pub(crate) fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let (&first, _) = needle.split_first()?;
    let mut from = 0;
    loop {
        let at = from + hay[from..].iter().position(|&byte| byte == first)?;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(to.len());
            to[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn split(text: &[u8], delimiter: &[u8], step: usize) -> (Vec<Vec<u8>>, u64) {
        let mut splitter = Splitter::new(Slow(text, step), delimiter.to_vec());
        let (mut records, mut bytes) = (Vec::new(), 0);
        while let Some((some, read)) = splitter.next().unwrap() {
            records.extend(some.into_iter().map(|record| record.to_vec()));
            bytes += read;
        }
        (records, bytes)
    }

    #[test]
    fn empty_records_count_and_an_empty_end_does_not() {
        let text: &[u8] = b"a\n\nb\n";
        assert_eq!(split(text, b"\n", 2), (vec![b"a".to_vec(), Vec::new(), b"b".to_vec()], 5));
        assert_eq!(split(b"a\nb", b"\n", 9).0, [b"a", b"b"]);
        assert_eq!(split(b"", b"\n", 1).0, Vec::<Vec<u8>>::new());
        assert_eq!(split(b"a--b---c", b"--", 1).0, [b"a".to_vec(), b"b".to_vec(), b"-c".to_vec()]);
    }

    proptest! {
        #[test]
        fn joining_what_was_split_gives_the_input(
            text in proptest::collection::vec(prop_oneof![Just(b'-'), Just(b'\n'), any::<u8>()], 0..200),
            delimiter in proptest::sample::select(vec![&b"\n"[..], b"--", b"-\n-"]),
            step in 1..50_usize,
        ) {
            let (records, _) = split(&text, delimiter, step);
            let mut joined = records.join(delimiter);
            if joined != text {
                joined.extend_from_slice(delimiter);
            }
            prop_assert_eq!(joined, text);
        }
    }
}
