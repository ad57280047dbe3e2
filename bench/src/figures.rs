//! The measured figures and their table: one row per figure, one column per peer, and the ratio.
//!
//! The ratio compares our SQLite column with the better of the kube-apiserver columns.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::peer::Usage;
use crate::results::ResultLine;

pub struct Figures {
    pub name: &'static str,
    pub ours: bool,
    pub idle: Usage,
    pub loaded: Usage,
    pub single: Sample,
    pub many: Sample,
    pub list: Sample,
    pub paged: Sample,
    pub fan_out: Sample,
}

pub struct Sample {
    sorted: Vec<Duration>,
    count: usize,
    elapsed: Duration,
    cpu: Duration,
    memory: Option<Usage>,
}

impl Sample {
    pub fn new(
        mut latencies: Vec<Duration>,
        count: usize,
        elapsed: Duration,
        cpu: Duration,
    ) -> Result<Sample> {
        ensure!(!latencies.is_empty(), "nothing was measured");
        latencies.sort_unstable();
        Ok(Sample { sorted: latencies, count, elapsed, cpu, memory: None })
    }

    pub fn with_memory(self, usage: Usage) -> Sample {
        Sample { memory: Some(usage), ..self }
    }

    fn milliseconds(&self, percent: usize) -> f64 {
        let index = (self.sorted.len() - 1) * percent / 100;
        self.sorted[index].as_secs_f64() * 1e3
    }

    fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }

    fn cpu_milliseconds(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.count as f64
    }
}

enum Better {
    Lower,
    Higher,
}

type Row = (&'static str, Better, fn(&Figures) -> f64);

/// Name, the better direction, and the figure.
const ROWS: &[Row] = &[
    ("list of all objects, p50 ms", Better::Lower, |f| f.list.milliseconds(50)),
    ("list of all objects, p99 ms", Better::Lower, |f| f.list.milliseconds(99)),
    ("list of all objects, CPU ms each", Better::Lower, |f| f.list.cpu_milliseconds()),
    ("page of 500 objects, p50 ms", Better::Lower, |f| f.paged.milliseconds(50)),
    ("creates per second, 64 writers", Better::Higher, |f| f.many.per_second()),
    ("create, 64 writers, p99 ms", Better::Lower, |f| f.many.milliseconds(99)),
    ("create, 64 writers, CPU ms each", Better::Lower, |f| f.many.cpu_milliseconds()),
    ("creates per second, 1 writer", Better::Higher, |f| f.single.per_second()),
    ("one change to all watchers, p50 ms", Better::Lower, |f| f.fan_out.milliseconds(50)),
    ("one change to all watchers, p99 ms", Better::Lower, |f| f.fan_out.milliseconds(99)),
    ("delivery, CPU microseconds each", Better::Lower, |f| f.fan_out.cpu_milliseconds() * 1e3),
    ("resident, idle, MB (without etcd)", Better::Lower, |f| megabytes(f.idle.server_bytes)),
    ("resident, with objects, MB (without etcd)", Better::Lower, |f| megabytes(f.loaded.server_bytes)),
    ("resident, with watchers, MB (without etcd)", Better::Lower, |f| {
        megabytes(f.fan_out.memory.map_or(0, |usage| usage.server_bytes))
    }),
    ("etcd beside it, with objects, MB", Better::Lower, |f| megabytes(f.loaded.etcd_bytes)),
];

pub fn print_table(all: &[Figures]) {
    print!("\n{:<44}", "");
    for figures in all {
        print!("{:>34}", figures.name);
    }
    println!("{:>22}", "ours / best of theirs");
    for (name, better, value) in ROWS {
        print!("{name:<44}");
        for figures in all {
            print!("{:>34.2}", value(figures));
        }
        println!("{:>22}", ratio(all, better, value));
    }
    println!("\nA ratio above 1 means ours is better by that factor.");
}

/// The ratios, for the page of benchmarks.
pub fn result_lines(all: &[Figures]) -> Vec<ResultLine<'static>> {
    let line = |(name, better, value): &Row| {
        let goal = if MEMORY_GOALS.contains(name) { ">= 10" } else { "" };
        let result = ratio(all, better, value).parse().ok()?;
        Some(ResultLine {
            command: "bench/run api",
            figure: format!("{name}: times better than the best peer"),
            goal,
            result,
        })
    };
    ROWS.iter().filter_map(line).collect()
}

/// Goal: a tenth of kube-apiserver's memory.
const MEMORY_GOALS: &[&str] =
    &["resident, with objects, MB (without etcd)", "resident, with watchers, MB (without etcd)"];

fn ratio(all: &[Figures], better: &Better, value: &fn(&Figures) -> f64) -> String {
    let theirs = all.iter().filter(|figures| !figures.ours).map(value);
    let Some(ours) = all.iter().find(|figures| figures.ours).map(value) else { return String::new() };
    let ratio = match better {
        Better::Lower => theirs.fold(f64::INFINITY, f64::min) / ours,
        Better::Higher => ours / theirs.fold(0.0, f64::max),
    };
    if ratio.is_finite() { format!("{ratio:.1}") } else { "-".to_owned() }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
