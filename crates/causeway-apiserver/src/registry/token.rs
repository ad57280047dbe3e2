//! Continue tokens: the position and the revision at which a list continues.
//!
//! Opaque to clients, but not secret: a forged token can only name a position inside the collection it is
//! used on.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_api::{Kind, Status};
use causeway_store::Revision;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinueToken {
    /// The revision of the page; `None` continues in the newest state, knowingly inconsistent.
    pub at: Option<Revision>,
    /// The name after which the page begins.
    pub after: String,
}

// Written into every token, so that a token in an old format is refused and not misread.
const FORM: &str = "causeway/1";
// Far above a name of 253 bytes in base64.
const TOKEN_BYTES_MAX: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Wire {
    v: String,
    /// The collection, so that a token of one is not used on another.
    c: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rv: Option<u64>,
    start: String,
}

impl ContinueToken {
    pub fn print(&self, kind: Kind) -> String {
        let wire = Wire {
            v: FORM.into(),
            c: kind.plural().into(),
            rv: self.at.map(|revision| revision.0),
            start: self.after.clone(),
        };
        let text = serde_json::to_vec(&wire).expect("strings and a number always become JSON");
        URL_SAFE_NO_PAD.encode(text)
    }

    pub fn parse(kind: Kind, text: &str) -> Result<ContinueToken, Status> {
        let refuse = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        if text.len() > TOKEN_BYTES_MAX {
            return Err(refuse("it is too long"));
        }
        // Some clients add the padding that is omitted here.
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|_| refuse("it is no token of this server"))?;
        let wire: Wire =
            serde_json::from_slice(&bytes).map_err(|_| refuse("it is no token of this server"))?;
        if wire.v != FORM {
            return Err(refuse("server does not recognize this encoded version"));
        }
        if wire.c != kind.plural() {
            return Err(refuse("it belongs to another collection"));
        }
        if wire.start.is_empty() || wire.start.contains(['/', '\0']) || wire.rv == Some(0) {
            return Err(refuse("it names no place in this collection"));
        }
        Ok(ContinueToken { at: wire.rv.map(Revision), after: wire.start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_went_out_and_nothing_else_is_taken() {
        let token = ContinueToken { at: Some(Revision(7)), after: "Tokyo".into() };
        let text = token.print(Kind::ESite);
        assert_eq!(ContinueToken::parse(Kind::ESite, &text), Ok(token));
        let inconsistent = ContinueToken { at: None, after: "x".into() };
        assert_eq!(ContinueToken::parse(Kind::ESite, &inconsistent.print(Kind::ESite)), Ok(inconsistent));
        let forged = |json: &str| URL_SAFE_NO_PAD.encode(json);
        for bad in [
            "".to_owned(),
            "!!!".into(),
            "abcd".into(),
            "A".repeat(5_000),
            ContinueToken { at: Some(Revision(7)), after: "x".into() }.print(Kind::EGateway),
            forged(r#"{"v":"meta.k8s.io/v1","c":"esites","rv":7,"start":"a"}"#),
            forged(r#"{"v":"causeway/1","c":"esites","rv":7,"start":"../identity/ca"}"#),
            forged(r#"{"v":"causeway/1","c":"esites","rv":7,"start":""}"#),
            forged(r#"{"v":"causeway/1","c":"esites","rv":0,"start":"a"}"#),
            forged(r#"{"v":"causeway/1","c":"esites","rv":-1,"start":"a"}"#),
            forged(r#"{"v":"causeway/1"}"#),
        ] {
            assert_eq!(
                ContinueToken::parse(Kind::ESite, &bad).map_err(|status| status.code),
                Err(400),
                "{bad:.80}"
            );
        }
    }
}
