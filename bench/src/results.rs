//! Appends measured figures to the file that `BENCH_RESULTS` names, as JSON lines. `cargo xtask benchmarks` makes a table of them.

use std::io::Write;

use anyhow::Result;
use serde_json::json;

/// One figure for the table. `goal` is a comparison such as `< 40`, or empty.
pub struct ResultLine<'a> {
    pub command: &'a str,
    pub figure: String,
    pub goal: &'a str,
    pub result: f64,
}

/// Without `BENCH_RESULTS` nothing is written.
pub fn append(lines: &[ResultLine<'_>]) -> Result<()> {
    let Some(path) = std::env::var_os("BENCH_RESULTS") else { return Ok(()) };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    for line in lines.iter().filter(|line| line.result.is_finite()) {
        let ResultLine { command, figure, goal, result } = line;
        writeln!(file, "{}", json!({"command": command, "figure": figure, "goal": goal, "result": result}))?;
    }
    Ok(())
}
