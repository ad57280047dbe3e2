//! Media types of a request: the accepted ones (`Accept`) and the one of the body (`Content-Type`).
//!
//! Pure text in, choices out. The list of forms is short: JSON, YAML, and Kubernetes' views Table and
//! PartialObjectMetadata in JSON. Its protobuf is not spoken; clients that offer it always offer JSON too.

/// One entry of an `Accept` header.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaRange {
    /// Type and subtype in lower case, for example `application/json`.
    pub media: String,
    params: Vec<(String, String)>,
    quality: f32,
}

impl MediaRange {
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns true if the range covers JSON. The wildcards do.
    fn takes_json(&self) -> bool {
        matches!(self.media.as_str(), "application/json" | "application/*" | "*/*")
    }
}

// Clients send three or four; more is an attempt to keep us busy.
const RANGES_MAX: usize = 32;

/// The ranges of an `Accept` header, best first. No header means anything goes.
pub fn parse_accept(accept: Option<&str>) -> Vec<MediaRange> {
    let accept = accept.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("*/*");
    let mut ranges: Vec<_> = accept.split(',').take(RANGES_MAX).filter_map(parse_range).collect();
    // Stable, so that the client's own order decides between equals.
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    ranges
}

fn parse_range(text: &str) -> Option<MediaRange> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().filter(|media| media.contains('/'))?.to_ascii_lowercase();
    let mut range = MediaRange { media, params: Vec::new(), quality: 1.0 };
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        match name.as_str() {
            "q" => range.quality = value.parse().ok().filter(|q| (0.0..=1.0).contains(q))?,
            _ => range.params.push((name, value.to_owned())),
        }
    }
    (range.quality > 0.0).then_some(range)
}

/// The view of an object the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectView {
    Object,
    Table(MetaVersion),
    /// PartialObjectMetadata, or its list.
    Metadata(MetaVersion),
}

/// The version of Kubernetes' meta group that a view is written in. Both have the same fields; clients that learnt the old
/// one still ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub const fn api_version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "meta.k8s.io/v1",
            MetaVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaEncoding {
    Json,
    Yaml,
}

/// The best form we can answer with; `None` is 406.
pub fn choose(accept: &[MediaRange]) -> Option<(ObjectView, MediaEncoding)> {
    accept.iter().find_map(|range| match (range.media.as_str(), range.param("as")) {
        (_, None) if range.takes_json() => Some((ObjectView::Object, MediaEncoding::Json)),
        ("application/yaml", None) => Some((ObjectView::Object, MediaEncoding::Yaml)),
        ("application/json", Some(view)) => {
            let version = match (range.param("g"), range.param("v")) {
                (Some("meta.k8s.io"), Some("v1")) => MetaVersion::V1,
                (Some("meta.k8s.io"), Some("v1beta1")) => MetaVersion::V1Beta1,
                _ => return None,
            };
            let view = match view {
                "Table" => ObjectView::Table(version),
                "PartialObjectMetadata" | "PartialObjectMetadataList" => ObjectView::Metadata(version),
                _ => return None,
            };
            Some((view, MediaEncoding::Json))
        }
        _ => None,
    })
}

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    Json,
    Yaml,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchFormat {
    Json,
    Merge,
    StrategicMerge,
    Apply,
}

/// The media types a write takes, in the words of the refusal.
pub const BODY_TYPES: &[&str] = &["application/json", "application/yaml"];
pub const PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// `None`: a media type we do not read. A missing header means JSON, as in Kubernetes.
pub fn body_format(content_type: Option<&str>) -> Option<BodyFormat> {
    match bare(content_type).as_str() {
        "" | "application/json" => Some(BodyFormat::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Some(BodyFormat::Yaml),
        _ => None,
    }
}

/// A patch has no default: what to do with the body stands only in the header.
pub fn patch_format(content_type: Option<&str>) -> Option<PatchFormat> {
    match bare(content_type).as_str() {
        "application/json-patch+json" => Some(PatchFormat::Json),
        "application/merge-patch+json" => Some(PatchFormat::Merge),
        "application/strategic-merge-patch+json" => Some(PatchFormat::StrategicMerge),
        "application/apply-patch+yaml" => Some(PatchFormat::Apply),
        _ => None,
    }
}

fn bare(content_type: Option<&str>) -> String {
    content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_form_we_speak_is_chosen() {
        let check = |accept: Option<&str>, expected: Option<(ObjectView, MediaEncoding)>| {
            assert_eq!(choose(&parse_accept(accept)), expected, "{accept:?}");
        };
        let json = Some((ObjectView::Object, MediaEncoding::Json));
        let table = Some((ObjectView::Table(MetaVersion::V1), MediaEncoding::Json));
        let old_table = Some((ObjectView::Table(MetaVersion::V1Beta1), MediaEncoding::Json));
        check(None, json);
        check(Some(""), json);
        check(Some("*/*"), json);
        check(Some("application/json, */*"), json);
        check(Some("application/vnd.kubernetes.protobuf,application/json"), json);
        check(Some("application/vnd.kubernetes.protobuf"), None);
        check(Some("text/html"), None);
        check(
            Some("text/html;q=0.9,application/yaml;q=0.8"),
            Some((ObjectView::Object, MediaEncoding::Yaml)),
        );
        check(Some("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), table);
        check(Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"), old_table);
        check(Some("application/json;q=0.1,application/json;as=Table;v=v1;g=meta.k8s.io"), table);
        check(Some("application/json;as=Table;v=v9;g=meta.k8s.io"), None);
        check(Some("application/json;q=0"), None);
        check(
            Some("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Some((ObjectView::Metadata(MetaVersion::V1), MediaEncoding::Json)),
        );
        check(Some(",;;,=,/;q=x"), None);
    }

    #[test]
    fn a_body_without_a_type_is_json_and_a_patch_must_say() {
        assert_eq!(body_format(None), Some(BodyFormat::Json));
        assert_eq!(body_format(Some("application/json; charset=utf-8")), Some(BodyFormat::Json));
        assert_eq!(body_format(Some("text/plain")), None);
        assert_eq!(patch_format(None), None);
        assert_eq!(patch_format(Some("application/apply-patch+yaml")), Some(PatchFormat::Apply));
    }
}
