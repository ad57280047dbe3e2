//! The metrics of the process, in Prometheus' text form or as OpenMetrics.
//! Each crate registers its own metrics under the names of its log fields. Metrics of the process itself
//! (memory, CPU, files) are read from /proc at each scrape. `exposition` encodes the two formats.

mod exposition;

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use causeway_api::sync::MutexExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use exposition::Exposition;

/// One registry per process. Clones share it.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// A registry with the metrics of the process and its version in it.
    pub fn new(version: &str) -> Metrics {
        let mut registry = Registry::default();
        let build = Info::new(vec![("version".to_owned(), version.to_owned())]);
        registry.register("causeway_build", "The program that runs", build);
        registry.register_collector(Box::new(ProcessMetrics::now()));
        Metrics { registry: Arc::new(Mutex::new(registry)) }
    }

    /// Lets a module register its metrics.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.registry.lock_ignoring_poison())
    }

    /// The text that `/metrics` answers when no form is asked for.
    pub fn encode(&self) -> String {
        self.encode_as(Exposition::Text)
    }

    pub fn encode_as(&self, form: Exposition) -> String {
        let mut text = String::new();
        let registry = self.registry.lock_ignoring_poison();
        // Writing to a string cannot fail; a metric that cannot be written is left out.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        drop(registry);
        match form {
            Exposition::OpenMetrics => text,
            Exposition::Text => exposition::to_text(&text),
        }
    }
}

#[derive(Debug)]
struct ProcessMetrics {
    started: f64,
}

impl ProcessMetrics {
    fn now() -> ProcessMetrics {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        ProcessMetrics { started }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        gauge("process_start_time_seconds", "When the process started", self.started)?;
        if let Some(bytes) = resident_bytes() {
            gauge("process_resident_memory_bytes", "Resident memory", bytes as f64)?;
        }
        if let Some(open) = open_files() {
            gauge("process_open_fds", "Open files", open as f64)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let metric = ConstCounter::new(seconds);
            let name = "process_cpu_seconds";
            let help = "Processor time, user and system";
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}

/// VmRSS in /proc is in kB whatever the page size.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

fn open_files() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

/// The first number is the time this process's threads ran, in nanoseconds, summed over tasks.
fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0u64;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may end between listing and reading.
        let Ok(text) = std::fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn metrics_of_modules_and_of_the_process_are_in_the_text() {
        let metrics = Metrics::new("1.2.3");
        let counter: Counter = Counter::default();
        metrics.register(|registry| registry.register("causeway_tests", "Tests", counter.clone()));
        counter.inc();
        let text = metrics.encode();
        for line in
            ["causeway_tests_total 1", "causeway_build_info{version=\"1.2.3\"} 1", "process_open_fds "]
        {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("# EOF"));
        assert!(metrics.encode_as(Exposition::OpenMetrics).ends_with("# EOF\n"));
    }
}
