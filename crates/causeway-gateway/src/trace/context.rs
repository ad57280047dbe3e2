//! The context of a trace, as W3C Trace Context (version 00) writes it in `traceparent`, and the sampling decision. Pure.
//!
//! Streams carry the same values in 25 bytes. Input is untrusted: a value that does not follow the specification is no context.

use bytes::Bytes;

/// The bytes of a context in the header of a stream: trace id, span id, flags.
const BYTES: usize = 16 + 8 + 1;
/// W3C Trace Context, section 3.2.2.5: the flag "sampled".
const SAMPLED: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    pub is_sampled: bool,
}

impl TraceContext {
    /// Parses `traceparent`. Versions above 00 are read by their first four parts, as section 4.3 asks; ids of zeros are invalid.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_extended = parts.next().is_some();
        let lengths = [version, trace, span, flags].map(str::len);
        if lengths != [2, 32, 16, 2] || version == "ff" || (version == "00" && is_extended) {
            return None;
        }
        hexadecimal(version)?;
        TraceContext::checked(
            hexadecimal(trace)?,
            u64::try_from(hexadecimal(span)?).ok()?,
            u8::try_from(hexadecimal(flags)?).ok()?,
        )
    }

    /// Parses the bytes of a stream header. Empty or wrong bytes are no context.
    pub fn from_bytes(bytes: &[u8]) -> Option<TraceContext> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (trace, rest) = bytes.split_first_chunk::<16>()?;
        let (span, flags) = rest.split_first_chunk::<8>()?;
        TraceContext::checked(u128::from_be_bytes(*trace), u64::from_be_bytes(*span), *flags.first()?)
    }

    pub fn to_bytes(self) -> Bytes {
        let flags = if self.is_sampled { SAMPLED } else { 0 };
        let parts = [&self.trace.to_be_bytes()[..], &self.span.to_be_bytes(), &[flags]];
        Bytes::from(parts.concat())
    }

    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }

    fn checked(trace: u128, span: u64, flags: u8) -> Option<TraceContext> {
        let is_sampled = flags & SAMPLED != 0;
        (trace != 0 && span != 0).then_some(TraceContext { trace, span, is_sampled })
    }
}

/// Digits in lower case only (section 3.2.2).
fn hexadecimal(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.bytes().all(is_digit).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Decides from the trace id alone whether a trace belongs to the share `ratio`, as OpenTelemetry's TraceIdRatioBased does:
/// the lowest 56 bits of the id are random.
pub fn is_in_ratio(trace: u128, ratio: f64) -> bool {
    /// A double holds 53 bits exactly.
    const BITS: u32 = 53;
    let random = ((trace as u64) & ((1 << 56) - 1)) >> (56 - BITS);
    (random as f64) < ratio * (1u64 << BITS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_written_as_it_was_read() {
        let context = TraceContext::parse(TEXT).unwrap();
        assert_eq!(context.traceparent(), TEXT);
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
        let unsampled = TraceContext::parse(&TEXT.replace("-01", "-00")).unwrap();
        assert!(!unsampled.is_sampled);
        assert_eq!(TraceContext::from_bytes(&unsampled.to_bytes()), Some(unsampled));
    }

    #[test]
    fn other_text_is_no_context() {
        let check = |text: &str, is_context: bool| {
            assert_eq!(TraceContext::parse(text).is_some(), is_context, "{text}");
        };
        check("", false);
        check("00-aa-bb-01", false);
        check(&TEXT.to_uppercase(), false);
        check(&TEXT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)), false);
        check(&TEXT.replace("00f067aa0ba902b7", &"0".repeat(16)), false);
        check(&TEXT.replacen("00", "ff", 1), false);
        check(&format!("{TEXT}-more"), false);
        check(&format!("{}-more", TEXT.replacen("00", "cc", 1)), true);
        check(&TEXT.replace("4bf9", "+bf9"), false);
        for length in [0, 24, 26] {
            assert_eq!(TraceContext::from_bytes(&vec![1; length]), None);
        }
    }

    #[test]
    fn the_id_decides_whether_a_trace_is_in_the_ratio() {
        assert!(!is_in_ratio(1, 0.0) && is_in_ratio(u128::MAX, 1.0));
        let half = 1u128 << 55;
        assert!(is_in_ratio(half - 1, 0.5) && !is_in_ratio(half, 0.5));
    }
}
