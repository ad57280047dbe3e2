//! The one link between an edge and the cloud: identities, join tokens, enrolment.
//!
//! Identity comes from certificates and tokens only, never from what a peer says of itself.
