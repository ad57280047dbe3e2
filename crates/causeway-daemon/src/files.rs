//! The limit on open files of the process (RLIMIT_NOFILE): every connection is a file.
//!
//! Systems start programs with a soft limit of 1,024, for those that still use `select`; we do not, and take what we may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. Says how many files may be open from now on.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Cannot fail below the hard limit; if it does, the limit in force is logged below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    max()
}

/// Returns the limit in force.
pub fn max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_had_is_taken() {
        let before = getrlimit(Resource::Nofile);
        assert_eq!(raise(), before.maximum.unwrap_or(u64::MAX));
        assert_eq!(max(), raise(), "twice changes nothing");
    }
}
