//! The two text forms of metrics, and which of them a scraper wants.
//!
//! The registry writes OpenMetrics 1.0; `to_text` rewrites that as the older Prometheus text format 0.0.4, which is the
//! default because every scraper reads it. Pure: text in, text out.

/// A form in which `/metrics` answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exposition {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics text format 1.0.0.
    OpenMetrics,
}

impl Exposition {
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Reads an `Accept` header (RFC 9110 section 12.5.1). OpenMetrics only when it is named, and not less wanted
    /// than plain text. A header that cannot be read counts as none.
    pub fn negotiate(accept: Option<&str>) -> Exposition {
        let (mut open_metrics, mut text) = (None::<f32>, None::<f32>);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.filter_map(|part| part.split_once('=')).find_map(|(name, value)| {
                name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>().unwrap_or(0.0))
            });
            let quality = quality.unwrap_or(1.0);
            let best = |known: Option<f32>| Some(known.map_or(quality, |known| known.max(quality)));
            match media.as_str() {
                "application/openmetrics-text" => open_metrics = best(open_metrics),
                "text/plain" | "text/*" | "*/*" => text = best(text),
                _ => {}
            }
        }
        match open_metrics {
            Some(wanted) if wanted > 0.0 && wanted >= text.unwrap_or(0.0) => Exposition::OpenMetrics,
            _ => Exposition::Text,
        }
    }
}

/// OpenMetrics as Prometheus text format 0.0.4: a counter's family is named as its samples are, `info` is a gauge,
/// units and the end mark are left out.
pub fn to_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // The HELP line of a family comes before its TYPE line, which decides under which name both are written.
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(rest.split_once(' ').unwrap_or((rest, "")));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "gaugehistogram" => ("", "histogram"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, words)) = help.take().filter(|(helped, _)| *helped == name) {
                text.push_str(&format!("# HELP {name}{suffix} {words}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') && !line.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_form_it_asks_for_and_plain_text_otherwise() {
        let check = |accept: Option<&str>, expected| {
            assert_eq!(Exposition::negotiate(accept), expected, "{accept:?}");
        };
        use Exposition::{OpenMetrics, Text};
        check(None, Text);
        check(Some(""), Text);
        check(Some("*/*"), Text);
        check(Some("text/plain;version=0.0.4"), Text);
        check(Some("text/html, application/xhtml+xml"), Text);
        check(Some("application/openmetrics-text"), OpenMetrics);
        check(Some("application/openmetrics-text; version=1.0.0, text/plain;q=0.5"), OpenMetrics);
        // As Prometheus 2 and 3 ask.
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        check(Some(prometheus), OpenMetrics);
        check(Some("application/openmetrics-text;q=0.2, text/plain;q=0.8"), Text);
        check(Some("application/openmetrics-text;q=0"), Text);
        check(Some("APPLICATION/OpenMetrics-Text"), OpenMetrics);
        check(Some("application/openmetrics-text;q=many"), Text);
    }

    #[test]
    fn families_are_renamed_as_their_samples_are() {
        let open_metrics = "\
# HELP causeway_build The program that runs.
# TYPE causeway_build info
causeway_build_info{version=\"1\"} 1
# HELP requests Requests.
# TYPE requests counter
# UNIT requests seconds
requests_total{a=\"# x\"} 3
# HELP open Open.
# TYPE open gauge
open 1
# TYPE odd unknown
odd 2
# EOF
";
        let text = "\
# HELP causeway_build_info The program that runs.
# TYPE causeway_build_info gauge
causeway_build_info{version=\"1\"} 1
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{a=\"# x\"} 3
# HELP open Open.
# TYPE open gauge
open 1
# TYPE odd untyped
odd 2
";
        assert_eq!(to_text(open_metrics), text);
        assert_eq!(to_text(""), "");
    }
}
