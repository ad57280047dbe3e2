//! The refusal of a busy port: when to retry, and the ticket to present then.
//!
//! The refusal is the reason text of a QUIC CONNECTION_REFUSED, so a peer that does not know the format sees
//! an ordinary refusal. The ticket comes back as the destination connection ID of the next Initial packet,
//! which is all that the port sees before it starts work. Tickets are issued and checked by
//! `port::retry_tickets`.

use std::fmt::Write;
use std::time::Duration;

use quinn::ConnectionId;

/// Longest connection ID (RFC 9000, section 17.2).
pub const NUMBER_BYTES: usize = 20;
/// Upper bound of the wait that a client accepts from a port.
const WAIT_MAX: Duration = Duration::from_secs(5 * 60);
const WORD: &str = "busy";

/// Presented with the next attempt. Only the port that issued it can tell it from random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTicket(pub [u8; NUMBER_BYTES]);

impl RetryTicket {
    pub(crate) fn connection_id(self) -> ConnectionId {
        ConnectionId::new(&self.0)
    }
}

/// Asks the client to retry after `wait` with this ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyRefusal {
    pub wait: Duration,
    pub number: RetryTicket,
}

impl BusyRefusal {
    /// Encodes as `busy MILLISECONDS TICKET`, the ticket in hexadecimal.
    pub fn to_text(self) -> String {
        let mut text = format!("{WORD} {} ", self.wait.as_millis());
        for byte in self.number.0 {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Returns `None` if the text is not a busy refusal. Words after the ticket are ignored, so that newer
    /// ports can add some.
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
