//! What a port with too much to do tells those it sends away: when to come again, and with which number.
//!
//! It travels as the text of QUIC's own refusal, so a peer that does not know it sees a refusal and nothing else. The
//! number comes back as the connection ID of the next first packet, which is the only thing that the port sees before
//! it begins to work. What a number is worth is the port's business (`port::numbers`).

use std::fmt::Write;
use std::time::Duration;

use quinn::ConnectionId;

/// As long as a connection ID may be (RFC 9000, section 17.2).
pub const NUMBER_BYTES: usize = 20;
/// No port sends a peer away for longer, whatever it says.
const WAIT_MAX: Duration = Duration::from_secs(5 * 60);
const WORD: &str = "busy";

/// Shown at the next try. Whoever does not make them cannot tell one from random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTicket(pub [u8; NUMBER_BYTES]);

impl RetryTicket {
    pub(crate) fn connection_id(self) -> ConnectionId {
        ConnectionId::new(&self.0)
    }
}

/// Come again after `wait`, and show `number` then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyRefusal {
    pub wait: Duration,
    pub number: RetryTicket,
}

impl BusyRefusal {
    /// `busy MILLISECONDS NUMBER`, the number in hexadecimal.
    pub fn to_text(self) -> String {
        let mut text = format!("{WORD} {} ", self.wait.as_millis());
        for byte in self.number.0 {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// `None`: the refusal says nothing of the kind. Words after the number are left to those who know them.
    pub fn from_text(text: &[u8]) -> Option<BusyRefusal> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        if words.next()? != WORD {
            return None;
        }
        let wait = Duration::from_millis(words.next()?.parse::<u32>().ok()?.into()).min(WAIT_MAX);
        let digits = words.next()?.as_bytes();
        if digits.len() != 2 * NUMBER_BYTES {
            return None;
        }
        let mut number = [0; NUMBER_BYTES];
        for (byte, digits) in number.iter_mut().zip(digits.chunks(2)) {
            let high = char::from(digits[0]).to_digit(16)?;
            let low = char::from(digits[1]).to_digit(16)?;
            *byte = (high * 16 + low) as u8;
        }
        Some(BusyRefusal { wait, number: RetryTicket(number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let mut number = [0; NUMBER_BYTES];
        (number[0], number[19]) = (0xab, 0x01);
        let busy = BusyRefusal { wait: Duration::from_millis(7_300), number: RetryTicket(number) };
        assert_eq!(busy.to_text(), "busy 7300 ab00000000000000000000000000000000000001");
        assert_eq!(BusyRefusal::from_text(busy.to_text().as_bytes()), Some(busy));
        let more = format!("{} and more", busy.to_text());
        assert_eq!(BusyRefusal::from_text(more.as_bytes()), Some(busy), "a newer port may say more");
    }

    #[test]
    fn other_refusals_say_nothing() {
        let number = "00".repeat(NUMBER_BYTES);
        let check = |text: &str| assert_eq!(BusyRefusal::from_text(text.as_bytes()), None, "{text}");
        check("");
        check("busy");
        check("busy 7300");
        check("busy 7300 ab");
        check(&format!("busy -1 {number}"));
        check(&format!("busy 99999999999 {number}"));
        check(&format!("idle 7300 {number}"));
        check(&format!("busy 7300 {}zz", "00".repeat(NUMBER_BYTES - 1)));
        check(&format!("busy 7300 {}é", "00".repeat(NUMBER_BYTES - 1)));
        assert_eq!(BusyRefusal::from_text(&[0xff; 60]), None);
    }

    #[test]
    fn no_port_sends_a_peer_away_for_hours() {
        let text = format!("busy 4294967295 {}", "00".repeat(NUMBER_BYTES));
        assert_eq!(BusyRefusal::from_text(text.as_bytes()).unwrap().wait, WAIT_MAX);
    }
}
