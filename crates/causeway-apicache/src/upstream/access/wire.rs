//! Messages of the stream on which an edge asks about access, and is told when an answer changes.
//!
//! Protobuf, so a field that a peer does not know is ignored. A cloud that is older than this stream resets it, and the edge sends reviews
//! of its own.

use std::fmt;

use prost::Message;

/// A question of the edge in the name of a caller. `Debug` is not derived, because it would show a token.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct AccessAsk {
    /// Chosen by the edge; answers carry it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub verb: String,
    #[prost(string, tag = "3")]
    pub group: String,
    #[prost(string, tag = "4")]
    pub plural: String,
    #[prost(string, tag = "5")]
    pub namespace: String,
    #[prost(string, tag = "6")]
    pub name: String,
    #[prost(string, tag = "7")]
    pub field_selector: String,
    /// The bearer token of the caller; verified by the API server.
    #[prost(string, tag = "8")]
    pub token: String,
    /// The node that the caller proved to be; believed for nodes of the edge's own site.
    #[prost(string, tag = "9")]
    pub node: String,
    /// The edge has no use for the answers of `id` any more; the other fields are empty.
    #[prost(bool, tag = "10")]
    pub forget: bool,
}

impl fmt::Debug for AccessAsk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AccessAsk({} {} {}/{})", self.id, self.verb, self.group, self.plural)
    }
}

/// An answer: the first one, and every later one that is different.
#[derive(Clone, PartialEq, Message)]
pub struct DecisionAnswer {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// 200: allowed, and the cloud tells when it is not any more. 401, 403: not allowed. Otherwise there is no answer.
    #[prost(uint32, tag = "2")]
    pub code: u32,
    #[prost(string, tag = "3")]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::session::question;
    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(ask) = AccessAsk::decode(&bytes[..]) {
                let again = AccessAsk::decode(&ask.encode_to_vec()[..]);
                prop_assert_eq!(again.as_ref(), Ok(&ask));
                let _ = question(&ask);
            }
        }

        #[test]
        fn a_question_of_an_edge_names_one_resource_and_shows_no_token(
            verb in prop_oneof![Just("get".to_owned()), Just("list".to_owned()), ".{0,6}"],
            names in proptest::collection::vec(prop_oneof!["[a-z.-]{0,20}", ".{0,20}"], 5),
            token in "[A-Z]{8,20}",
        ) {
            let [group, plural, namespace, name, field_selector] = &names[..] else { unreachable!() };
            let ask = AccessAsk {
                verb: verb.clone(),
                group: group.clone(),
                plural: plural.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                field_selector: field_selector.clone(),
                token,
                ..AccessAsk::default()
            };
            let silent = AccessAsk { token: String::new(), ..ask.clone() };
            prop_assert_eq!(format!("{ask:?}"), format!("{silent:?}"));
            if let Ok(question) = question(&ask) {
                prop_assert!(["get", "list", "watch"].contains(&question.verb));
                prop_assert!(!plural.is_empty() && !plural.contains('/') && !group.contains('/') && !namespace.contains('/'));
            }
        }
    }
}
