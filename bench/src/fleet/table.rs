//! The fleet's figures as a table: one column per transport, and the goal.

use std::time::Duration;

use super::edge_events::Return;
use super::site::SiteFigures;
use super::{Figures, Restart};
use crate::results::ResultLine;

const KEEPALIVES_PER_DAY: f64 = 86_400.0 / 5.0;

type Row = (&'static str, &'static str, fn(&Figures) -> String);

const ROWS: &[Row] = &[
    ("edges", "20,000", |f| f.edges.to_string()),
    ("memory of the cloud per idle edge, KB", "< 40", |f| {
        format!("{:.1}", f.full_bytes.saturating_sub(f.empty_bytes) as f64 / f.edges as f64 / 1e3)
    }),
    ("resident, with no edge attached, MB", "", |f| format!("{:.0}", f.empty_bytes as f64 / 1e6)),
    ("resident, with all attached, MB", "", |f| format!("{:.0}", f.full_bytes as f64 / 1e6)),
    ("CPU of the cloud while idle, % of a core", "", |f| format!("{:.1}", f.idle_cpu * 100.0)),
    ("bytes of an idle link per day, MB (without IP)", "", |f| format!("{:.2}", f.link_bytes_per_day / 1e6)),
    ("attached, edges per second", "", |f| format!("{:.0}", f.edges as f64 / f.gathered.as_secs_f64())),
    ("netmaps accepted / refused", "", |f| format!("{} / {}", f.netmaps.0, f.netmaps.1)),
];

type ReturnRow = (&'static str, &'static str, fn(&Restart) -> String);

const RETURN_ROWS: &[ReturnRow] = &[
    ("cloud ready again, s", "", |r| seconds(r.ready)),
    ("back, p50, s", "", |r| seconds(r.back.percentile(50))),
    ("back, p99, s", "", |r| seconds(r.back.percentile(99))),
    ("back, last, s", "10,000 within 20", |r| seconds(r.back.percentile(100))),
    ("not back", "0", |r| (r.edges - r.back.times.len().min(r.edges)).to_string()),
    ("refused once", "", |r| r.back.refused_once.to_string()),
    ("refused more than once", "0", |r| r.back.refused_more.to_string()),
    ("CPU of the cloud per edge, ms", "", |r| {
        format!("{:.2}", r.cpu.as_secs_f64() * 1e3 / r.edges.max(1) as f64)
    }),
    ("CPU of the edges per edge, ms", "", |r| {
        format!("{:.2}", r.edges_cpu.as_secs_f64() * 1e3 / r.edges.max(1) as f64)
    }),
    ("attempts per edge", "", |r| format!("{:.2}", r.back.attempts as f64 / r.edges.max(1) as f64)),
];

pub fn print_table(all: &[Figures], sites: &[SiteFigures]) {
    print!("\n{:<60}", "");
    all.iter().for_each(|figures| print!("{:>16}", figures.transport.as_str()));
    println!("{:>20}", "goal");
    for (name, goal, value) in ROWS {
        print_row(name, goal, all.iter().map(value));
    }
    for (number, first) in all.first().map_or(&[][..], |figures| &figures.returns).iter().enumerate() {
        for (name, goal, value) in RETURN_ROWS {
            let name = format!("kill -9 with {} edges: {name}", first.edges);
            print_row(&name, goal, all.iter().filter_map(|figures| figures.returns.get(number)).map(value));
        }
    }
    for figures in all {
        for restart in &figures.returns {
            let (transport, edges) = (figures.transport, restart.edges);
            println!(
                "attempts that failed, {transport}, kill -9 with {edges} edges: {:?}",
                restart.back.failures
            );
        }
    }
    if !sites.is_empty() {
        print!("\n{:<60}", "one real edge, idle");
        sites.iter().for_each(|figures| print!("{:>16}", figures.transport.as_str()));
        println!("{:>20}", "goal");
        let resident = |site: &SiteFigures| format!("{:.1}", site.resident_bytes as f64 / 1e6);
        print_row("resident memory of the edge, MB", "< 20", sites.iter().map(resident));
        let bytes = |site: &SiteFigures| format!("{:.2}", site.bytes_per_day / 1e6);
        print_row("IP packets per day, both ways, MB", "< 5", sites.iter().map(bytes));
        let packets = |site: &SiteFigures| format!("{:.1}", site.packets_per_day / KEEPALIVES_PER_DAY);
        print_row("packets for every five seconds of silence", "", sites.iter().map(packets));
    }
}

/// The figures with a number, for the page of benchmarks.
pub fn result_lines(all: &[Figures], sites: &[SiteFigures]) -> Vec<ResultLine<'static>> {
    let command = "bench/run fleet";
    let mut lines = Vec::new();
    let mut add = |figure: String, goal, value: String| {
        if let Ok(result) = value.parse() {
            lines.push(ResultLine { command, figure, goal, result });
        }
    };
    for of in all {
        let edges = format!("{} edges over {}", of.edges, of.transport);
        for (name, goal, value) in &ROWS[1..] {
            add(format!("{edges}: {name}"), goal, value(of));
        }
        for restart in &of.returns {
            for (name, goal, value) in RETURN_ROWS {
                let goal = match *goal {
                    "0" => "<= 0",
                    // Set for 10,000 edges.
                    "10,000 within 20" => {
                        if restart.edges == 10_000 {
                            "<= 20"
                        } else {
                            ""
                        }
                    }
                    other => other,
                };
                add(format!("{edges}, kill -9 with {}: {name}", restart.edges), goal, value(restart));
            }
        }
    }
    for site in sites {
        let edge = format!("one idle edge over {}", site.transport);
        add(
            format!("{edge}: resident memory, MB"),
            "< 20",
            format!("{:.1}", site.resident_bytes as f64 / 1e6),
        );
        add(format!("{edge}: IP packets per day, MB"), "< 5", format!("{:.2}", site.bytes_per_day / 1e6));
    }
    lines
}

fn print_row(name: &str, goal: &str, values: impl Iterator<Item = String>) {
    print!("{name:<60}");
    values.for_each(|value| print!("{value:>16}"));
    println!("{goal:>20}");
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

impl Return {
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.times.len().saturating_sub(1);
        self.times.get(last * percent / 100).copied().unwrap_or_default()
    }
}
