//! Nothing but tests: whole systems in network namespaces, with NATs, blocked paths and links that break.
