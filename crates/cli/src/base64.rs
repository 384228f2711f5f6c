//! Base64 with the standard alphabet and padding (RFC 4648), for bytes that are no UTF-8.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().enumerate().fold(0, |word, (at, &byte)| word | u32::from(byte) << (16 - 8 * at));
        for at in 0..4 {
            if at <= chunk.len() {
                text.push(char::from(ALPHABET[(word >> (18 - 6 * at)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// `None` if `text` is not exactly what [`encode`] gives for some bytes.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&letter| letter == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let letters = &text[..text.len() - padding];
    for chunk in letters.chunks(4) {
        let mut word = 0_u32;
        for (at, letter) in chunk.iter().enumerate() {
            let digit = ALPHABET.iter().position(|one| one == letter)? as u32;
            word |= digit << (18 - 6 * at);
        }
        let count = chunk.len() * 6 / 8;
        let [_, rest @ ..] = word.to_be_bytes();
        // Bits beyond the last byte must be zero, so that bytes have one text only.
        if rest[count..].iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&rest[..count]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfcs_examples() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()));
        }
        for bad in ["Z", "Zg=", "Zh==", "Z===", "====", "Zm9v\n", "Zg==Zg=="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
