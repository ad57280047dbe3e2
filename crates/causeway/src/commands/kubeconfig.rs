//! `causeway kubeconfig`: a kubeconfig for the API of a cloud.
//!
//! Without flags the one that the cloud keeps in its data dir is printed. With `--role`, `--user` or `--ttl` a new
//! certificate is asked for over the API; its key is made here and never leaves this process but for standard output.

use std::process::ExitCode;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_api::management::{
    ApiRole, CertificateList, CreateCertificateRequest, IssuedUserCertificate, paths,
};
use causeway_channel::{PeerId, PrivateKey};
use causeway_cloud::identity::kubeconfig;
use serde::Deserialize;

use super::WrongUsage;
use crate::client::ApiConnectionArgs;
use crate::config::{Config, Layer};
use crate::duration::{HumanDuration, age};
use crate::output::{self, TextTable};

const EXAMPLES: &str = "\
Examples:
  causeway kubeconfig > causeway.kubeconfig
  causeway kubeconfig --server https://cloud.example.org:7443 --role viewer --user ann --ttl 8h > ann.kubeconfig
  causeway kubeconfig --list                                  certificates that were given out
  causeway kubeconfig --data-dir /srv/causeway > ~/.kube/causeway && kubectl --kubeconfig ~/.kube/causeway get esites

The server of the first form is an address of this host. From other hosts, name the one they reach with --server; the cloud's
certificate must know it: start the cloud with --advertise or --api-name.";

/// Print a kubeconfig, for kubectl and every Kubernetes client
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// URL of the API for clients, as https://HOST:PORT [default: as this host reaches it]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Make a new certificate with this role [default: admin]
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Make a new certificate with this name in it, by which the audit log knows its holder [default: the role]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Make a new certificate that lasts this long, a year at most [default: 24h]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<HumanDuration>,
    /// List the certificates that were given out, instead
    #[arg(long, conflicts_with_all = ["server", "role", "user", "ttl"])]
    list: bool,
    /// As JSON, with --list
    #[arg(long, requires = "list")]
    json: bool,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    Admin,
    Viewer,
}

impl From<Role> for ApiRole {
    fn from(role: Role) -> ApiRole {
        match role {
            Role::Admin => ApiRole::Admin,
            Role::Viewer => ApiRole::Viewer,
        }
    }
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    if let Some(server) = &arguments.server {
        check_server(server).map_err(WrongUsage)?;
    }
    if arguments.list {
        list(&arguments).await?;
    } else if arguments.role.is_some() || arguments.user.is_some() || arguments.ttl.is_some() {
        output::print(&new(&arguments).await?)?;
    } else {
        output::print(&kept(&arguments)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The file in the data dir, with another server when one is named.
fn kept(arguments: &Args) -> anyhow::Result<String> {
    let flags = Layer { data_dir: arguments.connection.data_dir.clone(), ..Layer::default() };
    let path = Config::load(flags, None)?.data_dir.value.join("admin.kubeconfig");
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "{} cannot be read; it is made by the first start of `causeway cloud` and belongs to its user. \
             Elsewhere, with a kubeconfig: `causeway kubeconfig --role admin --kubeconfig FILE`",
            output::path(&path)
        )
    })?;
    Ok(match &arguments.server {
        Some(server) => with_server(&text, server),
        None => text,
    })
}

/// The file is the cloud's own and has one cluster.
fn with_server(text: &str, server: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with("server: ") {
        true => format!("{}server: {server}\n", &line[..line.len() - line.trim_start().len()]),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

async fn new(arguments: &Args) -> anyhow::Result<String> {
    let api = arguments.connection.connect().await?;
    let role = arguments.role.unwrap_or(Role::Admin);
    let key = PrivateKey::generate()?;
    // The cloud ignores the names in the request; they must only be valid.
    let csr = key.request(&PeerId::new("cloud", "user")?)?;
    let request = CreateCertificateRequest {
        role: role.into(),
        user: arguments.user.clone(),
        ttl_seconds: arguments.ttl.as_ref().map(|ttl| ttl.as_secs()),
        csr: STANDARD.encode(csr),
    };
    let made = api.post(paths::CERTIFICATES, &request).await?;
    let issued: IssuedUserCertificate = serde_json::from_value(made)
        .with_context(|| format!("{} did not send a certificate", api.server()))?;
    // Without a flag, the server this command itself has reached.
    let server = arguments.server.as_deref().unwrap_or(api.server());
    if let Some(warning) = unknown_name(server, &issued.names) {
        output::note(&warning);
    }
    output::note(&format!(
        "certificate {} of {} ({}) until {}; take it back with: causeway revoke --certificate {}",
        issued.serial,
        issued.user,
        issued.role.as_str(),
        issued.expires,
        issued.serial
    ));
    Ok(kubeconfig::text(server, &issued.user, &issued.authorities, &issued.certificate, &key.to_pem()))
}

fn check_server(server: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("--server `{server}`: {why}, as in https://cloud.example.org:7443"));
    if server.chars().any(|char| char.is_whitespace() || char.is_control()) {
        return wrong("write one URL");
    }
    match server.parse::<http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty()) => {
            Ok(())
        }
        Ok(uri) if uri.scheme_str() == Some("http") => wrong("the API speaks TLS only: write https://"),
        _ => wrong("write https://HOST:PORT"),
    }
}

/// A client could not verify a server whose certificate has another name.
fn unknown_name(server: &str, names: &[String]) -> Option<String> {
    let uri = server.parse::<http::Uri>().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_lowercase();
    // An older cloud does not send the names.
    let is_known = names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(&host));
    (!is_known).then(|| {
        format!(
            "Warning: the cloud's certificate does not name {host}, so clients will refuse it: start the cloud with --api-name {host} (or --advertise {host}:PORT, if edges reach it there, too)"
        )
    })
}

async fn list(arguments: &Args) -> anyhow::Result<()> {
    let api = arguments.connection.connect().await?;
    let listed = api.get(paths::CERTIFICATES).await?;
    let list = CertificateList::deserialize(&listed)
        .with_context(|| format!("{} did not send a list of certificates", api.server()))?;
    if arguments.json {
        return output::print(&output::json(&listed));
    }
    output::print(&render(&list, jiff::Timestamp::now()).render(output::colours()))
}

fn render(list: &CertificateList, now: jiff::Timestamp) -> TextTable {
    let mut table = TextTable::new(&["SERIAL", "USER", "ROLE", "EXPIRES", "STATE"]);
    for certificate in &list.certificates {
        let expires = certificate.expires.parse::<jiff::Timestamp>().ok();
        let expires = match expires.map(|time| time.as_second() - now.as_second()) {
            Some(seconds) if seconds <= 0 => "expired".to_owned(),
            Some(seconds) => format!("in {}", age(seconds)),
            None => "-".to_owned(),
        };
        let role = certificate.group.trim_start_matches("causeway:");
        let state = if certificate.revoked { "revoked" } else { "good" };
        table.row([&certificate.serial, &certificate.user, role, &expires, state].map(str::to_owned));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_with_tls() {
        let check = |server: &str, expected: Result<(), &str>| match (check_server(server), expected) {
            (Ok(()), Ok(())) => {}
            (Err(why), Err(part)) => assert!(why.contains(part), "{server}: {why}"),
            (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{server}"),
        };
        check("https://cloud.example.org:7443", Ok(()));
        check("https://[2001:db8::1]:7443", Ok(()));
        check("http://cloud.example.org", Err("TLS only"));
        check("cloud.example.org:7443", Err("https://HOST:PORT"));
        check("https://a\nb", Err("one URL"));
        check("", Err("https://"));
    }

    #[test]
    fn another_server_takes_the_place_of_the_first() {
        let text = kubeconfig::text("https://127.0.0.1:7443", "admin", "a", "c", "k");
        let changed = with_server(&text, "https://x:1");
        assert_eq!(changed, kubeconfig::text("https://x:1", "admin", "a", "c", "k"));
    }

    #[test]
    fn a_server_that_the_certificate_does_not_name_is_told() {
        let names = ["cloud.example.org", "10.0.0.1", "2001:db8::1"].map(str::to_owned);
        let check = |server: &str, is_known: bool| {
            assert_eq!(unknown_name(server, &names).is_none(), is_known, "{server}");
        };
        check("https://Cloud.Example.org:7443", true);
        check("https://10.0.0.1:7443", true);
        check("https://[2001:db8::1]:7443", true);
        check("https://203.0.113.9:7443", false);
        let warning = unknown_name("https://203.0.113.9:7443", &names).unwrap();
        assert!(warning.contains("--api-name 203.0.113.9") && warning.contains("--advertise"), "{warning}");
    }
}
