//! Writes the figures of a benchmark run into `docs/benchmarks.md`.
//!
//! Input: a file of JSON lines, one per figure, which the parts of `bench/run` append to (`BENCH_RESULTS`). Output: the page with a
//! new block between its two marks: machine, commit, and per figure the command, goal, result, and whether the goal is met. The text
//! around the block is written by hand. `render` and `replace_block` are pure.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- figures of the last run: written by `make bench` -->";
const END: &str = "<!-- end of the figures of the last run -->";

/// One measured figure.
#[derive(Debug, Clone, PartialEq)]
struct MeasuredFigure {
    command: String,
    figure: String,
    /// A comparison, such as `< 40` or `>= 1.5`; empty where no goal is set.
    goal: String,
    result: f64,
}

/// The circumstances that all figures of a run share.
#[derive(Debug, Clone, PartialEq)]
struct RunCircumstances {
    date: String,
    commit: String,
    machine: String,
}

/// Writes the figures in the file `results` into the page.
pub fn write(root: &Path, results: &str) -> Result<()> {
    let text = std::fs::read_to_string(results).with_context(|| format!("cannot read {results}"))?;
    let figures = text.lines().map(parse).collect::<Result<Vec<MeasuredFigure>>>()?;
    ensure!(!figures.is_empty(), "{results} holds no figures");
    let block = render(&circumstances(root)?, &figures)?;
    let page = std::fs::read_to_string(root.join(PAGE))?;
    std::fs::write(root.join(PAGE), replace_block(&page, &block)?)?;
    println!("{PAGE}: {} figures written", figures.len());
    Ok(())
}

fn parse(line: &str) -> Result<MeasuredFigure> {
    let value: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
    let text =
        |key: &str| value[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {line}"));
    let result = value["result"].as_f64().with_context(|| format!("no result in {line}"))?;
    Ok(MeasuredFigure { command: text("command")?, figure: text("figure")?, goal: text("goal")?, result })
}

/// Returns the block: one table with a row per figure.
fn render(run: &RunCircumstances, figures: &[MeasuredFigure]) -> Result<String> {
    let mut block = format!("Machine: {}. Commit {}, {}.\n\n", run.machine, run.commit, run.date);
    block.push_str("| command | figure | goal | result | |\n| --- | --- | ---: | ---: | --- |\n");
    for row in figures {
        let verdict = match is_met(&row.goal, row.result)? {
            None => "",
            Some(true) => "met",
            Some(false) => "**missed**",
        };
        let MeasuredFigure { command, figure, goal, result } = row;
        writeln!(block, "| `{command}` | {figure} | {goal} | {} | {verdict} |", number(*result))?;
    }
    Ok(block)
}

/// Tells whether a result meets a goal. `None` without a goal.
fn is_met(goal: &str, result: f64) -> Result<Option<bool>> {
    if goal.is_empty() {
        return Ok(None);
    }
    let (comparison, bound) =
        goal.split_once(' ').with_context(|| format!("goal {goal:?} is no comparison"))?;
    let bound: f64 = bound.parse().with_context(|| format!("goal {goal:?} has no number"))?;
    Ok(Some(match comparison {
        "<" => result < bound,
        "<=" => result <= bound,
        ">=" => result >= bound,
        _ => anyhow::bail!("goal {goal:?}: write <, <= or >="),
    }))
}

fn number(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn replace_block(page: &str, block: &str) -> Result<String> {
    let begin = page.find(BEGIN).with_context(|| format!("{PAGE} has no line {BEGIN}"))? + BEGIN.len();
    let length = page[begin..].find(END).with_context(|| format!("{PAGE} has no line {END}"))?;
    Ok(format!("{}\n\n{block}\n{}", &page[..begin], &page[begin + length..]))
}

fn circumstances(root: &Path) -> Result<RunCircumstances> {
    let run = |program: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program).args(arguments).current_dir(root).output()?;
        ensure!(output.status.success(), "{program} {arguments:?} failed");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let processors = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism()?;
    Ok(RunCircumstances {
        date: run("date", &["-u", "+%Y-%m-%d %H:%M UTC"])?,
        commit: run("git", &["describe", "--always", "--dirty"])?,
        machine: format!("{cores} cores, {}", model.trim_start_matches([' ', '\t', ':'])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(goal: &str, result: f64) -> MeasuredFigure {
        MeasuredFigure {
            command: "bench/run fleet".into(),
            figure: "memory, KB".into(),
            goal: goal.into(),
            result,
        }
    }

    #[test]
    fn a_goal_is_met_or_missed_and_none_is_neither() {
        let check = |goal: &str, result: f64, expected: Option<bool>| {
            assert_eq!(is_met(goal, result).unwrap(), expected, "{goal} {result}");
        };
        check("", 1.0, None);
        check("< 40", 38.5, Some(true));
        check("< 40", 40.0, Some(false));
        check("<= 0", 0.0, Some(true));
        check(">= 1.5", 1.49, Some(false));
        assert!(is_met("about 3", 3.0).is_err() && is_met("<", 3.0).is_err());
    }

    #[test]
    fn a_row_names_command_figure_goal_result_and_verdict() {
        let run = RunCircumstances { date: "D".into(), commit: "C".into(), machine: "M".into() };
        let block = render(&run, &[figure("< 40", 38.5), figure("", 1234.5), figure("< 40", 41.0)]).unwrap();
        let lines: Vec<&str> = block.lines().collect();
        assert_eq!(lines[0], "Machine: M. Commit C, D.");
        assert_eq!(lines[4], "| `bench/run fleet` | memory, KB | < 40 | 38.50 | met |");
        assert_eq!(lines[5], "| `bench/run fleet` | memory, KB |  | 1234 |  |");
        assert_eq!(lines[6], "| `bench/run fleet` | memory, KB | < 40 | 41.00 | **missed** |");
    }

    #[test]
    fn only_the_block_is_replaced() {
        let page = format!("before\n{BEGIN}\n\nold\n\n{END}\nafter\n");
        let once = replace_block(&page, "new\n").unwrap();
        assert_eq!(once, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replace_block(&once, "new\n").unwrap(), once);
        assert!(replace_block("no marks", "new").is_err());
    }

    #[test]
    fn a_line_without_a_part_is_refused() {
        let line = r#"{"command":"bench/run fleet","figure":"memory, KB","goal":"< 40","result":38.5}"#;
        assert_eq!(parse(line).unwrap(), figure("< 40", 38.5));
        for wrong in ["", "{}", r#"{"command":"a","figure":"b","goal":""}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
