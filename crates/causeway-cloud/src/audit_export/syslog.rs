//! Delivers batches as syslog messages (RFC 5424) over TLS with octet counting (RFC 5425).
//!
//! Syslog has no receipts. Each batch has a connection of its own, and counts as delivered when the collector has answered our
//! close_notify with its own: it has then read to the end. A reset, a bare end or silence in place of that is a failure, and the
//! batch is sent again. A collector that closes in order before it has read a batch loses it; the protocol cannot tell.

use std::borrow::Cow;

use causeway_daemon::collector::{self, CollectorError, TlsFiles};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ExportBatch;

/// RFC 5424, section 6.2.1: facility 13 is "log audit"; severity 6 is informational, 5 notice.
const FACILITY: u8 = 13;
const INFORMATIONAL: u8 = 6;
const NOTICE: u8 = 5;
/// RFC 5424, section 6: bounds of HOSTNAME.
const HOSTNAME_MAX: usize = 255;

#[derive(Clone, Debug)]
pub struct SyslogTarget {
    pub host: String,
    pub port: u16,
    pub tls: TlsFiles,
}

pub struct SyslogSender {
    target: SyslogTarget,
}

impl SyslogSender {
    pub fn new(target: SyslogTarget) -> SyslogSender {
        SyslogSender { target }
    }

    pub async fn send(&mut self, batch: &ExportBatch) -> Result<(), CollectorError> {
        let SyslogTarget { host, port, tls } = &self.target;
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), *port)).await?;
        let mut stream = collector::connect(tls, host, stream).await?;
        let mut frames = Vec::new();
        for line in &batch.lines {
            frame(line, &mut frames);
        }
        stream.write_all(&frames).await?;
        // Sends close_notify and the end of the stream.
        stream.shutdown().await?;
        loop {
            let mut ignored = [0; 512];
            match stream.read(&mut ignored).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // A connection that ends without close_notify may have ended before the batch was read (RFC 5425, section 4.4).
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The fields of a line that the header of a message shows.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Shown<'a> {
    #[serde(borrow)]
    source: Cow<'a, str>,
    sequence: u64,
    #[serde(borrow)]
    journal: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    gateway: Option<Cow<'a, str>>,
    #[serde(borrow)]
    replica: Option<Cow<'a, str>>,
    #[serde(borrow)]
    decision: Option<Cow<'a, str>>,
}

/// Appends one message with its length. The message is the line itself, in UTF-8 without a byte order mark (MSG-ANY).
fn frame(line: &[u8], frames: &mut Vec<u8>) {
    let shown: Shown<'_> = serde_json::from_slice(line).unwrap_or_default();
    let severity = if shown.decision.as_deref() == Some("deny") { NOTICE } else { INFORMATIONAL };
    let priority = FACILITY * 8 + severity;
    let time = timestamp(&shown.time);
    let host = shown.gateway.as_deref().or(shown.replica.as_deref()).unwrap_or_default();
    let (host, journal) = (printable(host, HOSTNAME_MAX), printable(&shown.journal, 32));
    // 32473 is the enterprise number for documentation (RFC 5612); Causeway has none of its own.
    let data = format!(
        "[causeway@32473 source=\"{}\" sequence=\"{}\"]",
        printable(&shown.source, 64),
        shown.sequence
    );
    let header = format!("<{priority}>1 {time} {host} causeway - {journal} {data} ");
    frames.extend_from_slice(format!("{} ", header.len() + line.len()).as_bytes());
    frames.extend_from_slice(header.as_bytes());
    frames.extend_from_slice(line);
}

/// TIMESTAMP of RFC 5424: RFC 3339 with at most six digits of a second; `-` when unknown.
fn timestamp(text: &str) -> String {
    let time = text.parse::<jiff::Timestamp>();
    time.map_or_else(|_| "-".to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string())
}

/// PRINTUSASCII without the characters that end a parameter; `-` when nothing is left.
fn printable(text: &str, length_max: usize) -> String {
    let is_plain = |letter: &char| letter.is_ascii_graphic() && !['"', '\\', ']'].contains(letter);
    let text: String = text.chars().filter(is_plain).take(length_max).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &str) {
        let mut frames = Vec::new();
        frame(line.as_bytes(), &mut frames);
        let text = String::from_utf8(frames).unwrap();
        let (length, message) = text.split_once(' ').unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), message.len());
        assert_eq!(message, format!("{expected} {line}"));
    }

    #[test]
    fn messages_are_as_rfc_5424_says() {
        check(
            r#"{"source":"ab","sequence":7,"journal":"traffic","time":"2026-11-18T00:00:01.123456789Z","gateway":"oslo-1","decision":"deny"}"#,
            "<109>1 2026-11-18T00:00:01.123456Z oslo-1 causeway - traffic [causeway@32473 source=\"ab\" sequence=\"7\"]",
        );
        check(
            r#"{"source":"ab","sequence":8,"journal":"admin","time":"never","replica":"a b\"]:1","user":"ö"}"#,
            "<110>1 - ab:1 causeway - admin [causeway@32473 source=\"ab\" sequence=\"8\"]",
        );
        check("{}", "<110>1 - - causeway - - [causeway@32473 source=\"-\" sequence=\"0\"]");
    }
}
