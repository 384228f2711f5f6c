//! The five codecs, in the framings that Kafka's clients write.
//!
//! | codec  | framing |
//! |--------|---------|
//! | gzip   | members, as many as there are |
//! | snappy | xerial's (magic, then blocks with a length in front); a raw block is read too |
//! | lz4    | LZ4 frames; written with independent blocks of 64 KiB, which Java's reader needs |
//! | zstd   | frames, as many as there are |
//!
//! Decompression stops at the limit it was given, whatever the bytes claim.

use std::{
    fmt,
    io::{self, Read, Write},
};

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

use crate::BatchError;

/// How records are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not at all.
    None,
    /// RFC 1952.
    Gzip,
    /// Snappy blocks in xerial's framing.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// RFC 8878 (KIP-110).
    Zstd,
}

impl Codec {
    /// All of them, by id.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The number in a batch's attributes.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The codec of a number in a batch's attributes.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Kafka's name, as in `compression.type`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The codec of a name; `uncompressed` is `compression.type`'s word for `none`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" | "uncompressed" => Some(Self::None),
            "gzip" => Some(Self::Gzip),
            "snappy" => Some(Self::Snappy),
            "lz4" => Some(Self::Lz4),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A codec and how hard it tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Which codec.
    pub codec: Codec,
    /// gzip 1 to 9, zstd -131072 to 22 (outside, the nearest is taken); the others have no levels here. `None`
    /// is the codec's default: 6 and 3.
    pub level: Option<i32>,
}

impl Compression {
    /// No compression.
    pub const NONE: Self = Self::of(Codec::None);

    /// `codec` at its default level.
    #[must_use]
    pub const fn of(codec: Codec) -> Self {
        Self { codec, level: None }
    }
}

/// What a reader is ready to hold of an untrusted batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Of one batch's records after decompression, in bytes, inclusive.
    pub decompressed_bytes_max: usize,
}

impl Default for DecodeLimits {
    /// 128 MiB: a hundred times what Kafka lets a batch have on the wire by default.
    fn default() -> Self {
        Self { decompressed_bytes_max: 128 << 20 }
    }
}

const XERIAL_MAGIC: [u8; 8] = *b"\x82SNAPPY\x00";
/// Magic, then the version and the lowest version that can read it.
const XERIAL_HEADER_SIZE: usize = 16;
/// As snappy-java writes them.
const XERIAL_BLOCK_SIZE: usize = 32 * 1024;

const LZ4_MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();

/// The largest window zstd's own levels up to 19 ask for is 8 MiB, whatever the content's size is.
const ZSTD_WINDOW_LOG_ALWAYS: u32 = 23;
/// 128 MiB: more needs `--long` on both sides, which no Kafka client sets.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Appends `plain` to `to`, compressed.
pub(crate) fn compress(compression: Compression, plain: &[u8], to: &mut Vec<u8>) -> Result<(), BatchError> {
    let codec = compression.codec;
    let result = match codec {
        Codec::None => to.write_all(plain),
        Codec::Gzip => compress_gzip(compression.level, plain, to),
        Codec::Snappy => compress_snappy(plain, to),
        Codec::Lz4 => compress_lz4(plain, to),
        Codec::Zstd => compress_zstd(compression.level, plain, to),
    };
    result.map_err(|cause| BatchError::Compress { codec, cause })
}

/// The plain bytes of `packed`, at most `limits` of them.
pub(crate) fn decompress(codec: Codec, packed: &[u8], limits: &DecodeLimits) -> Result<Vec<u8>, BatchError> {
    let max = limits.decompressed_bytes_max;
    // A guess that costs little: what is claimed in the bytes is not believed.
    let mut sink = Sink { plain: Vec::with_capacity(packed.len().saturating_mul(3).min(max)), max };
    let result = match codec {
        Codec::None => sink.append(packed),
        Codec::Gzip => sink.drain(flate2::read::MultiGzDecoder::new(packed)),
        Codec::Snappy => decompress_snappy(packed, &mut sink),
        Codec::Lz4 => decompress_lz4(packed, &mut sink),
        Codec::Zstd => decompress_zstd(packed, &mut sink),
    };
    match result {
        Ok(()) => Ok(sink.plain),
        Err(Refused::TooLarge) => Err(BatchError::DecompressedTooLarge { max }),
        Err(Refused::Codec(cause)) => Err(BatchError::Decompress { codec, cause }),
    }
}

enum Refused {
    TooLarge,
    Codec(io::Error),
}

impl From<io::Error> for Refused {
    fn from(cause: io::Error) -> Self {
        Self::Codec(cause)
    }
}

/// Where plain bytes gather, up to a limit.
struct Sink {
    plain: Vec<u8>,
    max: usize,
}

impl Sink {
    fn room(&self) -> usize {
        self.max - self.plain.len()
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if bytes.len() > self.room() {
            return Err(Refused::TooLarge);
        }
        self.plain.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads `from` to its end, or one byte past the limit.
    fn drain(&mut self, mut from: impl Read) -> Result<(), Refused> {
        let room = self.room();
        let taken = from.by_ref().take(room as u64).read_to_end(&mut self.plain)?;
        if taken < room {
            return Ok(());
        }
        // Exactly full: the stream must end here.
        let mut one_more = [0_u8];
        if from.read(&mut one_more)? == 0 { Ok(()) } else { Err(Refused::TooLarge) }
    }
}

fn compress_gzip(level: Option<i32>, plain: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    let level = level.map_or(6, |level| level.clamp(1, 9) as u32);
    let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::new(level));
    encoder.write_all(plain)?;
    encoder.finish()?;
    Ok(())
}

fn compress_snappy(plain: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    to.extend_from_slice(&XERIAL_MAGIC);
    to.extend_from_slice(&1_i32.to_be_bytes());
    to.extend_from_slice(&1_i32.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in plain.chunks(XERIAL_BLOCK_SIZE) {
        let at = to.len();
        to.resize(at + 4 + snap::raw::max_compress_len(block.len()), 0);
        let size = encoder.compress(block, &mut to[at + 4..]).map_err(io::Error::other)?;
        to[at..at + 4].copy_from_slice(&(size as u32).to_be_bytes());
        to.truncate(at + 4 + size);
    }
    Ok(())
}

fn decompress_snappy(packed: &[u8], sink: &mut Sink) -> Result<(), Refused> {
    if !packed.starts_with(&XERIAL_MAGIC) {
        // Some clients write one bare block; snappy-java reads it too.
        return decompress_snappy_block(packed, sink);
    }
    let mut rest = packed;
    while !rest.is_empty() {
        // Streams may follow each other.
        if rest.starts_with(&XERIAL_MAGIC) {
            rest = rest.get(XERIAL_HEADER_SIZE..).ok_or_else(cut_off)?;
            continue;
        }
        let (size, behind) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
        let size = u32::from_be_bytes(*size) as usize;
        let block = behind.get(..size).ok_or_else(cut_off)?;
        decompress_snappy_block(block, sink)?;
        rest = &behind[size..];
    }
    Ok(())
}

fn decompress_snappy_block(block: &[u8], sink: &mut Sink) -> Result<(), Refused> {
    let size = snap::raw::decompress_len(block).map_err(io::Error::other)?;
    if size > sink.room() {
        return Err(Refused::TooLarge);
    }
    let at = sink.plain.len();
    sink.plain.resize(at + size, 0);
    snap::raw::Decoder::new().decompress(block, &mut sink.plain[at..]).map_err(io::Error::other)?;
    Ok(())
}

fn cut_off() -> io::Error {
    io::Error::from(io::ErrorKind::UnexpectedEof)
}

fn compress_lz4(plain: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, to);
    encoder.write_all(plain)?;
    encoder.finish().map_err(io::Error::other)?;
    Ok(())
}

fn decompress_lz4(packed: &[u8], sink: &mut Sink) -> Result<(), Refused> {
    let mut rest = packed;
    loop {
        // The legacy and skippable frames that the crate knows are in no Kafka client's hand.
        if !rest.starts_with(&LZ4_MAGIC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not an LZ4 frame").into());
        }
        // A decoder for each frame: one that goes on to another keeps the first one's buffers.
        sink.drain(FrameDecoder::new(&mut rest))?;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

fn compress_zstd(level: Option<i32>, plain: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    let range = zstd::compression_level_range();
    let level = level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL).clamp(*range.start(), *range.end());
    let mut encoder = zstd::stream::write::Encoder::new(to, level)?;
    encoder.set_pledged_src_size(Some(plain.len() as u64))?;
    encoder.write_all(plain)?;
    encoder.finish()?;
    Ok(())
}

fn decompress_zstd(packed: &[u8], sink: &mut Sink) -> Result<(), Refused> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    // The window is allocated before the first byte comes out, so it has a limit of its own.
    let log = usize::BITS - sink.max.leading_zeros();
    decoder.window_log_max(log.clamp(ZSTD_WINDOW_LOG_ALWAYS, ZSTD_WINDOW_LOG_MAX))?;
    sink.drain(decoder)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(max: usize) -> DecodeLimits {
        DecodeLimits { decompressed_bytes_max: max }
    }

    fn pack(codec: Codec, plain: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        compress(Compression::of(codec), plain, &mut packed).unwrap();
        packed
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn every_codec_gives_back_what_it_took(
            seed in proptest::collection::vec(any::<u8>(), 1..300),
            repeat in 1_usize..2000,
        ) {
            let plain = seed.repeat(repeat);
            for codec in Codec::ALL {
                let packed = pack(codec, &plain);
                // The limit is inclusive.
                prop_assert_eq!(&decompress(codec, &packed, &limits(plain.len())).unwrap(), &plain);
                let short = decompress(codec, &packed, &limits(plain.len() - 1));
                let refused = matches!(short, Err(BatchError::DecompressedTooLarge { .. }));
                prop_assert!(refused, "{}: {:?}", codec, short.map(|plain| plain.len()));
            }
        }

        #[test]
        fn garbage_is_refused_or_read_but_never_panics(garbage: Vec<u8>, keep in 0_usize..40) {
            for codec in Codec::ALL {
                let _ = decompress(codec, &garbage, &limits(1 << 16));
                // Damage behind a good start gets further in.
                let mut packed = pack(codec, &[7; 5000]);
                packed.truncate(keep);
                packed.extend_from_slice(&garbage);
                let _ = decompress(codec, &packed, &limits(1 << 16));
            }
        }
    }

    #[test]
    fn levels_outside_the_range_are_the_nearest() {
        for codec in Codec::ALL {
            for level in [i32::MIN, -1, 0, 1, 9, 22, i32::MAX] {
                let mut packed = Vec::new();
                compress(Compression { codec, level: Some(level) }, b"hello hello", &mut packed).unwrap();
                assert_eq!(
                    decompress(codec, &packed, &limits(100)).unwrap(),
                    b"hello hello",
                    "{codec} {level}"
                );
            }
        }
    }

    #[test]
    fn bombs_stop_at_the_limit() {
        let plain = vec![0; 64 << 20];
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let bomb = pack(codec, &plain);
            assert!(bomb.len() < 4 << 20, "{codec}");
            let refused = decompress(codec, &bomb, &limits(1 << 20));
            assert!(
                matches!(refused, Err(BatchError::DecompressedTooLarge { max }) if max == 1 << 20),
                "{codec}"
            );
        }
        // A raw snappy block that claims 4 GiB in five bytes.
        let refused = decompress(Codec::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0], &limits(1 << 20));
        assert!(matches!(refused, Err(BatchError::DecompressedTooLarge { .. })));
    }

    #[test]
    fn what_other_clients_write_is_read() {
        // Raw snappy.
        let raw = snap::raw::Encoder::new().compress_vec(b"hello hello hello").unwrap();
        assert_eq!(decompress(Codec::Snappy, &raw, &limits(100)).unwrap(), b"hello hello hello");
        // Streams that follow each other, in all three codecs that allow it.
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let two = [pack(codec, b"one"), pack(codec, b"two")].concat();
            assert_eq!(decompress(codec, &two, &limits(100)).unwrap(), b"onetwo", "{codec}");
        }
        // LZ4 as the reference library's defaults and librdkafka write it, and with all checksums; a second
        // frame with smaller blocks behind one with larger.
        let plain = b"0123456789".repeat(100_000);
        let mut both = Vec::new();
        for size in [BlockSize::Max4MB, BlockSize::Max64KB] {
            for mode in [BlockMode::Linked, BlockMode::Independent] {
                let info = FrameInfo::new()
                    .block_size(size)
                    .block_mode(mode)
                    .block_checksums(true)
                    .content_checksum(true)
                    .content_size(Some(plain.len() as u64));
                let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
                encoder.write_all(&plain).unwrap();
                let packed = encoder.finish().unwrap();
                assert_eq!(decompress(Codec::Lz4, &packed, &limits(plain.len())).unwrap(), plain);
                both.extend(packed);
            }
        }
        assert_eq!(decompress(Codec::Lz4, &both, &limits(4 * plain.len())).unwrap(), plain.repeat(4));
    }

    #[test]
    fn names_and_ids_come_back() {
        for codec in Codec::ALL {
            assert_eq!(Codec::from_id(codec.id()), Some(codec));
            assert_eq!(Codec::from_name(codec.name()), Some(codec));
        }
        assert_eq!(Codec::from_id(5), None);
        assert_eq!(Codec::from_name("uncompressed"), Some(Codec::None));
        assert_eq!(Codec::from_name("producer"), None);
    }
}
