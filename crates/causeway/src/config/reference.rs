//! Renders `docs/configuration.md`, the reference of the configuration file, from the types.
//!
//! Input: the fields of `Layer` with their comments, the constants of `defaults` with theirs, the variables that `environment`
//! asks for, and the flags that clap knows. Output: the page; a test compares it with the committed one, and
//! `UPDATE=1 cargo test --package causeway reference` writes it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use clap::CommandFactory;

use super::{Config, Layer, layer, toml_text};
use crate::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");

const HEAD: &str = "\
# Configuration

<!-- Written by `UPDATE=1 cargo test --package causeway reference` from `crates/causeway/src/config/`. Do not edit. -->

The configuration is a TOML file, named by `--config FILE` or the variable `CAUSEWAY_CONFIG`. A field that is unknown is an error.
Defaults, file, environment and flags are layers: each one is stronger than the one before. A variable that is empty counts as not set;
lists in variables are separated by commas. Cloud and edge read the same form of file and use their own sections.

`causeway check-config FILE` checks a file and prints every setting in force with its origin. `/debug` on the admin port shows the effective
configuration, and the cloud logs it at start, both without passwords. SIGHUP reads the file again: `log.filter`,
`gateway.backends-allow` and `gateway.backends-deny` change at once, and the log names every other setting that needs a restart.
";

struct Section {
    name: &'static str,
    layer: &'static str,
    intro: &'static str,
}

const SECTIONS: [Section; 13] = [
    Section { name: "", layer: "Layer", intro: "Settings outside any section, at the top of the file." },
    Section { name: "log", layer: "LogLayer", intro: "Log lines of both roles." },
    Section { name: "cloud", layer: "CloudLayer", intro: "Settings of `causeway cloud`." },
    Section { name: "edge", layer: "EdgeLayer", intro: "Settings of `causeway edge`." },
    Section {
        name: "gateway",
        layer: "GatewayLayer",
        intro: "Settings of the gateway, which both roles run.",
    },
    Section {
        name: "tunnel",
        layer: "TunnelLayer",
        intro: "Settings of layer 3 (`docs/layer3.md`), which both roles run.",
    },
    Section {
        name: "kubernetes",
        layer: "KubernetesLayer",
        intro: "The Kubernetes API that `causeway edge` serves (`docs/edge-api.md`).",
    },
    Section {
        name: "traces",
        layer: "TracesLayer",
        intro: "Spans for a collector (`docs/traces.md`), of both roles. Only builds with the feature `traces` accept a `url`.",
    },
    Section {
        name: "audit.export",
        layer: "ExportLayer",
        intro: "Copies of all audit records for collectors (`docs/audit.md`). Settings of `causeway cloud`.",
    },
    Section {
        name: "audit.export.files",
        layer: "ExportFilesLayer",
        intro: "Files for a collector on the cloud's host.",
    },
    Section { name: "audit.export.webhook", layer: "ExportWebhookLayer", intro: "A webhook." },
    Section { name: "audit.export.syslog", layer: "ExportSyslogLayer", intro: "A syslog server." },
    Section { name: "audit.export.otlp", layer: "ExportOtlpLayer", intro: "A collector of OpenTelemetry." },
];

/// A field of a struct or a constant, as its source says it.
struct Declared {
    /// In snake case, as declared.
    name: String,
    /// The type behind `Option<…>`.
    kind: String,
    /// The paragraphs of its comment.
    paragraphs: Vec<String>,
}

#[test]
fn the_page_of_the_configuration_is_as_the_types_say() {
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let committed = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        committed == page,
        "docs/configuration.md is not as the types say: UPDATE=1 cargo test --package causeway reference"
    );
}

fn page() -> String {
    let source = include_str!("layer.rs");
    let defaults = constants(include_str!("defaults.rs"));
    let config = Config::resolve(Layer::default(), Layer::default(), Layer::default());
    let shown: BTreeMap<(&str, &str), serde_json::Value> =
        config.settings().into_iter().map(|(section, key, value, _)| ((section, key), value)).collect();
    let (variables, mut page, mut keys) = (variables(), HEAD.to_owned(), 0);
    let mut used = BTreeSet::new();
    for section in &SECTIONS {
        let title =
            if section.name.is_empty() { "Top level".to_owned() } else { format!("`[{}]`", section.name) };
        page.push_str(&format!("\n## {title}\n\n{}\n", section.intro));
        for field in fields(source, section.layer) {
            let key = field.name.replace('_', "-");
            let value = shown.get(&(section.name, key.as_str()));
            assert!(value.is_some(), "{key} is in no list of Config::settings");
            let value = value.unwrap();
            let variable = variable(&variables, section.name, &field.name);
            let reason = reason(&field, section.name, &defaults);
            page.push_str(&format!("\n### `{key}`\n\n{}\n\n", wrap(&field.paragraphs[0])));
            page.push_str(&format!("- form: {}\n", form(&field.kind)));
            page.push_str(&format!("- default: {}\n", default_text(value)));
            page.push_str(&format!("- reason: {}\n", wrap_item(&reason)));
            page.push_str(&format!("- also: {}variable `{variable}`\n", flags(section.name, &key)));
            used.insert(variable);
            keys += 1;
        }
    }
    assert_eq!(keys, shown.len(), "Config::settings and the fields of the layers are not the same");
    assert_eq!(used.len(), variables.len(), "a variable belongs to no setting: {variables:?}");
    page
}

/// The default's reason: the comment of its constant, or the second paragraph of the field.
fn reason(field: &Declared, section: &str, defaults: &BTreeMap<String, String>) -> String {
    let name = field.name.to_uppercase();
    let constant = defaults
        .get(&format!("{}_{name}", section.to_uppercase().replace('.', "_")))
        .or_else(|| defaults.get(&name));
    let own = field.paragraphs.get(1);
    let reason = constant.or(own);
    assert!(reason.is_some(), "{}: the default has no reason", field.name);
    reason.unwrap().clone()
}

fn default_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "not set".to_owned(),
        serde_json::Value::Array(list) if list.is_empty() => "none (`[]`)".to_owned(),
        value => format!("`{}`", toml_text(value)),
    }
}

/// The form of a value in the file, by its type.
fn form(kind: &str) -> String {
    if let Some(inner) = kind.strip_prefix("Vec<").and_then(|rest| rest.strip_suffix('>')) {
        return format!("list of {}", form(inner));
    }
    let form = match kind {
        "PathBuf" => "path",
        "String" => "text",
        "SocketAddr" => "`\"IP:PORT\"`",
        "NonZeroU32" => "number from 1",
        "u64" | "u16" | "f64" => "number",
        "bool" => "`true` or `false`",
        "HumanDuration" => "duration, as in `\"90s\"`, `\"1h30m\"`, `\"30d\"`",
        "AdvertisedEndpoint" => "`\"HOST:PORT\"`",
        "AllowRule" => "`\"HOST:PORT\"`, `\"*.SUFFIX:PORT\"`, `\"NETWORK:PORT\"`",
        "BackendRule" => "`\"ADDRESS\"`, `\"NETWORK\"`, `\"NETWORK:PORT\"`, `\"NETWORK:PORT-PORT\"`",
        "CommonName" => "text",
        "SiteLabelKey" => "key of a label, as in `\"region\"` or `\"example.org/tier\"`",
        "ServiceAccountSetting" => "`\"NAMESPACE/NAME\"`",
        "ServerName" => "DNS name or IP address",
        "ResourceSetting" => "`\"VERSION/PLURAL\"` or `\"GROUP/VERSION/PLURAL\"`",
        "PinSetting" => "`\"RESOURCE\"` or `\"RESOURCE?namespace=…&labelSelector=…&fieldSelector=…\"`",
        "CaHash" => "64 hexadecimal digits",
        "StoreSetting" => "`\"sqlite\"` or `\"etcd=URL,URL,…\"`",
        "TransportSetting" => "`\"auto\"`, `\"quic\"` or `\"tcp\"`",
        "ProxySetting" | "CollectorUrl" | "ApiUrl" => "URL",
        "DnsListen" => "`\"IP\"`, `\"IP:PORT\"`, or `\"off\"` alone",
        "NameServer" => "`\"IP\"` or `\"IP:PORT\"`",
        "DatapathSetting" => "`\"tun\"` or `\"ovs\"`",
        "PresenceModeSetting" => "`\"auto\"`, `\"namespace\"`, `\"host\"` or `\"off\"`",
        "PresencePort" => "`\"SERVICE=IP:PORT\"`",
        other => {
            assert_eq!(other, "", "no form is written for this type");
            ""
        }
    };
    form.to_owned()
}

/// The flags of `causeway cloud` and `causeway edge` that set this key.
fn flags(section: &str, key: &str) -> String {
    let roles: &[&str] = match section {
        "cloud" => &["cloud"],
        "edge" => &["edge"],
        section if section.starts_with("audit.") => return String::new(),
        _ => &["cloud", "edge"],
    };
    // The flag of the address that a section listens on has the name of the section; `--kubernetes` is the kubeconfig of a cloud.
    let listen = if key == "listen" && section != "kubernetes" { section } else { key };
    let names = [listen.to_owned(), key.trim_end_matches('s').to_owned(), format!("{section}-{key}")];
    let command = Cli::command();
    let found = roles.iter().find_map(|role| {
        let role = command.find_subcommand(role)?;
        let mut longs = role.get_arguments().filter_map(clap::Arg::get_long);
        longs.find(|long| names.iter().any(|name| name == long)).map(|long| format!("flag `--{long}`, "))
    });
    found.unwrap_or_default()
}

/// Every variable that the environment is asked for.
fn variables() -> BTreeSet<String> {
    let asked = RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        None
    };
    layer::environment(&lookup).unwrap();
    asked.into_inner()
}

fn variable(variables: &BTreeSet<String>, section: &str, name: &str) -> String {
    let (section, name) = (section.to_uppercase().replace('.', "_"), name.to_uppercase());
    let names =
        [format!("CAUSEWAY_{section}_{name}"), format!("CAUSEWAY_{name}"), format!("CAUSEWAY_{section}")];
    let found = names.into_iter().find(|name| variables.contains(name));
    assert!(found.is_some(), "{name} has no variable");
    found.unwrap()
}

/// The fields of a struct whose type is an `Option`.
fn fields(source: &str, layer: &str) -> Vec<Declared> {
    let start = source.find(&format!("pub struct {layer} {{")).unwrap();
    let body = &source[start..start + source[start..].find("\n}").unwrap()];
    declared(body, |line| {
        let (name, kind) = line.strip_prefix("pub ")?.split_once(": Option<")?;
        Some((name.to_owned(), kind.strip_suffix(">,")?.to_owned()))
    })
}

/// The constants of a file with the text of their comments.
fn constants(source: &str) -> BTreeMap<String, String> {
    let declared = declared(source, |line| {
        let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
        Some((name.to_owned(), rest.to_owned()))
    });
    declared.into_iter().map(|constant| (constant.name, constant.paragraphs.join(" "))).collect()
}

fn declared(source: &str, read: impl Fn(&str) -> Option<(String, String)>) -> Vec<Declared> {
    let mut paragraphs = vec![String::new()];
    let mut all = Vec::new();
    for line in source.lines().map(str::trim) {
        match line.strip_prefix("///").map(str::trim) {
            Some("") => paragraphs.push(String::new()),
            Some(text) => {
                let last = paragraphs.last_mut().unwrap();
                *last = format!("{last} {text}").trim().to_owned();
            }
            None => {
                let paragraphs = std::mem::replace(&mut paragraphs, vec![String::new()]);
                if let Some((name, kind)) = read(line) {
                    assert!(!paragraphs[0].is_empty(), "{name} has no comment");
                    all.push(Declared { name, kind, paragraphs });
                }
            }
        }
    }
    all
}

/// Breaks a paragraph into lines of the page's width.
fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().unwrap();
        match line.len() + 1 + word.len() <= 130 || line.is_empty() {
            true => *line = format!("{line} {word}").trim().to_owned(),
            false => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

fn wrap_item(text: &str) -> String {
    wrap(text).replace('\n', "\n  ")
}
