//! Answers the names of this site's netmap over DNS, and forwards the rest.
