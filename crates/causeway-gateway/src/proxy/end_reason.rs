//! Decides how the end of a crossing is reported: to the other gateway as a reset code, to the audit as a `ConnectionEnd`.
//!
//! Input: the result of the copy, or the reason for which the gateway cut it. Both ends of a crossing use it. Pure, but for
//! `close_record`.

use causeway_channel::link::ResetCode;

use super::copy::CopyEnd;
use crate::audit::ConnectionEnd;
use crate::connection_record::ConnectionRecord;
use crate::live::CutReason;

/// Returns the code with which the stream to the other gateway is reset.
pub(crate) fn reset_code(ended: &Result<CopyEnd, CutReason>) -> ResetCode {
    match ended {
        Ok(ended) => code_for(ended),
        Err(cut) => code_for_cut(cut),
    }
}

/// Closes the record of a crossing. `received`: bytes from the backend, if that is behind another gateway.
pub(crate) fn close_record(
    record: ConnectionRecord,
    ended: &Result<CopyEnd, CutReason>,
    received: Option<u64>,
) {
    match ended {
        Ok(ended) => {
            let (end, reason) = judge_end(ended, received);
            record.end(end, reason);
        }
        Err(cut) => record.cut(cut),
    }
}

/// Returns the reset code for the end of a copy.
pub(crate) fn code_for(ended: &CopyEnd) -> ResetCode {
    match ended {
        CopyEnd::Idle => ResetCode::Timeout,
        _ => ResetCode::Abandoned,
    }
}

/// Returns the reset code for a crossing that this gateway cut.
pub(crate) fn code_for_cut(cut: &CutReason) -> ResetCode {
    match cut {
        CutReason::Revoked(_) => ResetCode::Revoked,
        CutReason::Limit(_) => ResetCode::Limit,
        CutReason::Stopped => ResetCode::Draining,
    }
}

/// Returns the end and the reason for the audit. `received`: bytes from the backend, if that is behind another gateway.
pub(crate) fn judge_end(ended: &CopyEnd, received: Option<u64>) -> (ConnectionEnd, Option<String>) {
    match ended {
        CopyEnd::Done => (ConnectionEnd::Done, None),
        CopyEnd::Idle => (ConnectionEnd::Idle, None),
        CopyEnd::Client(error) => (client_end(error), Some(error.to_string())),
        CopyEnd::Backend(error) => (backend_end(error, received), Some(error.to_string())),
    }
}

/// The client's side failed: a socket here, or the stream of the gateway of the client.
fn client_end(error: &std::io::Error) -> ConnectionEnd {
    match ResetCode::of(error) {
        Some(ResetCode::Revoked | ResetCode::NotAllowed) => ConnectionEnd::Revoked,
        Some(ResetCode::Timeout) => ConnectionEnd::Idle,
        Some(ResetCode::Draining) => ConnectionEnd::Stopped,
        Some(ResetCode::Limit) => ConnectionEnd::Limit,
        None if error.kind() == std::io::ErrorKind::NotConnected => ConnectionEnd::LinkLost,
        _ => ConnectionEnd::ClientReset,
    }
}

fn backend_end(error: &std::io::Error, received: Option<u64>) -> ConnectionEnd {
    let is_begun = received.is_some_and(|bytes| bytes > 0);
    match ResetCode::of(error) {
        Some(ResetCode::Revoked) => ConnectionEnd::Revoked,
        // An older gateway sends the same code for a connection that is no longer allowed.
        Some(ResetCode::NotAllowed) if is_begun => ConnectionEnd::Revoked,
        Some(ResetCode::NotAllowed | ResetCode::NoRoute | ResetCode::Refused | ResetCode::Malformed) => {
            ConnectionEnd::Refused
        }
        Some(ResetCode::BackendDown) => ConnectionEnd::BackendDown,
        Some(ResetCode::Timeout) if is_begun => ConnectionEnd::Idle,
        Some(ResetCode::Timeout) => ConnectionEnd::Timeout,
        Some(ResetCode::Limit) => ConnectionEnd::Limit,
        Some(ResetCode::Draining) => ConnectionEnd::Stopped,
        None if error.kind() == std::io::ErrorKind::NotConnected => ConnectionEnd::LinkLost,
        _ => ConnectionEnd::BackendReset,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use causeway_channel::link::Reset;

    use super::*;

    #[test]
    fn how_a_crossing_ended_is_told_from_what_broke_and_how() {
        let check = |ended: CopyEnd, received: Option<u64>, expected: ConnectionEnd| {
            assert_eq!(judge_end(&ended, received).0, expected, "{ended:?} after {received:?}");
        };
        let reset = |code| Reset::reading(code);
        let socket = || io::Error::from(io::ErrorKind::ConnectionReset);
        let link = || io::Error::from(io::ErrorKind::NotConnected);
        check(CopyEnd::Done, Some(1), ConnectionEnd::Done);
        check(CopyEnd::Idle, None, ConnectionEnd::Idle);
        check(CopyEnd::Client(socket()), None, ConnectionEnd::ClientReset);
        check(CopyEnd::Client(reset(ResetCode::Abandoned)), None, ConnectionEnd::ClientReset);
        check(CopyEnd::Client(reset(ResetCode::NotAllowed)), None, ConnectionEnd::Revoked);
        check(CopyEnd::Client(reset(ResetCode::Timeout)), None, ConnectionEnd::Idle);
        check(CopyEnd::Client(reset(ResetCode::Draining)), None, ConnectionEnd::Stopped);
        check(CopyEnd::Client(link()), None, ConnectionEnd::LinkLost);
        check(CopyEnd::Backend(socket()), None, ConnectionEnd::BackendReset);
        check(CopyEnd::Backend(reset(ResetCode::Abandoned)), Some(0), ConnectionEnd::BackendReset);
        check(CopyEnd::Backend(reset(ResetCode::BackendDown)), Some(0), ConnectionEnd::BackendDown);
        check(CopyEnd::Backend(reset(ResetCode::NoRoute)), Some(0), ConnectionEnd::Refused);
        // The other gateway refuses what has not begun, and revokes what has, also before it said anything.
        check(CopyEnd::Backend(reset(ResetCode::Revoked)), Some(0), ConnectionEnd::Revoked);
        check(CopyEnd::Client(reset(ResetCode::Revoked)), None, ConnectionEnd::Revoked);
        check(CopyEnd::Backend(reset(ResetCode::NotAllowed)), Some(0), ConnectionEnd::Refused);
        check(CopyEnd::Backend(reset(ResetCode::NotAllowed)), Some(9), ConnectionEnd::Revoked);
        check(CopyEnd::Backend(reset(ResetCode::Timeout)), Some(0), ConnectionEnd::Timeout);
        check(CopyEnd::Backend(reset(ResetCode::Limit)), Some(0), ConnectionEnd::Limit);
        check(CopyEnd::Backend(link()), Some(9), ConnectionEnd::LinkLost);
    }
}
