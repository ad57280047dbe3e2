//! Reads the client id from the first request of a Kafka connection, for the audit.
//!
//! Every request header carries it after the correlation id (request header versions 1 and 2). It is chosen
//! by the client and not verified: it is made printable, truncated, and used for no decision.

/// More than real client ids have; longer ones are not read.
const NAME_BYTES_MAX: usize = 256;
const NAME_CHARS_MAX: usize = 64;
/// No first request is this long; TLS and HTTP, parsed as Kafka, are.
const REQUEST_BYTES_MAX: i32 = 256 << 20;
/// Length, key, version and correlation id, then the length of the client id.
const HEAD_BYTES: usize = 14;

/// Buffers the first bytes of a client until its id can be read.
#[derive(Default)]
pub struct ClientIdReader {
    begun: Vec<u8>,
    is_over: bool,
}

impl ClientIdReader {
    /// Takes chunks as they arrive. Returns Some once, if the client has an id.
    pub fn take(&mut self, chunk: &[u8]) -> Option<String> {
        if self.is_over {
            return None;
        }
        let space = HEAD_BYTES + NAME_BYTES_MAX - self.begun.len();
        self.begun.extend_from_slice(&chunk[..chunk.len().min(space)]);
        let name = read(&self.begun)?;
        *self = ClientIdReader { begun: Vec::new(), is_over: true };
        name
    }
}

/// None: more bytes are needed.
fn read(bytes: &[u8]) -> Option<Option<String>> {
    let length = i32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
    let name_bytes = i16::from_be_bytes(bytes.get(HEAD_BYTES - 2..HEAD_BYTES)?.try_into().ok()?);
    // A negative length: there is no id. A length beyond the request is invalid and treated the same.
    let needed = i32::from(name_bytes) + (HEAD_BYTES as i32 - 4);
    let fits = (needed..=REQUEST_BYTES_MAX).contains(&length);
    let Some(name_bytes) = usize::try_from(name_bytes).ok().filter(|bytes| *bytes > 0 && fits) else {
        return Some(None);
    };
    let name = bytes.get(HEAD_BYTES..HEAD_BYTES + name_bytes.min(NAME_BYTES_MAX))?;
    Some(Some(legible(name)))
}

fn legible(name: &[u8]) -> String {
    let mut text = String::new();
    for letter in String::from_utf8_lossy(name).chars().take(NAME_CHARS_MAX) {
        match letter.is_control() {
            true => text.extend(letter.escape_default()),
            false => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: Option<&[u8]>) -> Vec<u8> {
        let body = match name {
            Some(name) => [&(name.len() as i16).to_be_bytes(), name, b"\0more of it"].concat(),
            None => vec![0xff, 0xff, 0],
        };
        let length = (8 + body.len() as i32).to_be_bytes();
        [&length[..], &[0, 18, 0, 3, 0, 0, 0, 1], &body].concat()
    }

    #[test]
    fn a_client_is_called_what_it_says_however_that_is_cut() {
        let check = |sent: &[u8], expected: Option<&str>| {
            for step in 1..=sent.len() {
                let mut reader = ClientIdReader::default();
                let names: Vec<String> = sent.chunks(step).filter_map(|chunk| reader.take(chunk)).collect();
                assert_eq!(names.first().map(String::as_str), expected, "{step}");
                assert!(names.len() < 2, "once");
            }
        };
        check(&request(Some(b"rdkafka")), Some("rdkafka"));
        check(&[request(Some(b"first")), request(Some(b"second"))].concat(), Some("first"));
        check(&request(Some(b"two\nlines \x1b[31m")), Some("two\\nlines \\u{1b}[31m"));
        check(&request(Some(b"\xffodd")), Some("\u{fffd}odd"));
        check(&request(Some(&[b'x'; 1000])), Some(&"x".repeat(NAME_CHARS_MAX)));
        check(&request(Some(b"")), None);
        check(&request(None), None);
        let mut lie = request(Some(b"short"));
        lie[12] = 0x7f;
        check(&lie, None);
        check(b"GET / HTTP/1.1\r\nHost: kafka\r\n", None);
        check(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 7, 0, 4, b'a', b'b', b'c', b'd'], None);
    }
}
