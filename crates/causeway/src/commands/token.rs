//! `causeway token`: join tokens for edges and bearer tokens for the API.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use causeway_api::management::{ApiRole, CreateTokenRequest, CreatedToken, TokenKind, TokenList, paths};
use clap::Subcommand;

use crate::client::{self, ApiConnectionArgs};
use crate::duration::{HumanDuration, age};
use crate::output::{self, TextTable};

/// Create, list and delete tokens
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Create),
    List(List),
    Delete(Delete),
}

const CREATE_EXAMPLES: &str = "\
Examples:
  causeway token create --site Tokyo                              gateway Tokyo of site Tokyo, one use, one day
  causeway token create --site Tokyo --ip 10.0.0.1                other hosts of the site ask the gateway for names there
  causeway token create --site Tokyo --gateway tokyo-2 --ttl 1h   a second host at the same site
  causeway token create --site Tokyo --replace                    another host takes the place of the one that is enrolled
  causeway token create --role viewer --ttl 30d                   a bearer token for the API
  causeway token create --site Tokyo > token && causeway edge --data-dir DIR --join @token";

/// Create a token and print it; creates the site and the gateway if they do not exist
#[derive(Debug, clap::Args)]
#[command(after_help = CREATE_EXAMPLES)]
struct Create {
    /// The site an edge joins with this token
    #[arg(long, value_name = "NAME", required_unless_present = "role", conflicts_with = "role")]
    site: Option<String>,
    /// The gateway at that site [default: the name of the site]
    #[arg(long, value_name = "NAME", requires = "site")]
    gateway: Option<String>,
    /// Address of the gateway inside its site, for the EGateway: hosts of the site ask it for names there, and reach nodes by it
    #[arg(long, value_name = "ADDRESS", requires = "site")]
    ip: Option<IpAddr>,
    /// Create an API token with this role instead of a join token
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Time until the token expires
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    ttl: HumanDuration,
    /// Number of hosts that may join with the token; a gateway has one key, so only 1 is accepted
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// Let the token replace a host that is enrolled under this name: its key is revoked when another one joins
    #[arg(long, requires = "site")]
    replace: bool,
    /// As JSON, with its id and when it expires
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Role {
    Viewer,
    Admin,
}

const LIST_EXAMPLES: &str = "\
Examples:
  causeway token list
  causeway token list --json";

/// List tokens; the secrets are not kept
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
struct List {
    /// As JSON, for scripts
    #[arg(long)]
    json: bool,
}

const DELETE_EXAMPLES: &str = "\
Examples:
  causeway token delete 1f0c9a64b2d3";

/// Delete tokens; they are refused from now on
#[derive(Debug, clap::Args)]
#[command(after_help = DELETE_EXAMPLES)]
struct Delete {
    /// Id, as `token list` shows it
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    match arguments.action {
        Action::Create(create) => {
            let answer = api.post(paths::TOKENS, &create.request()).await?;
            let made: CreatedToken = serde_json::from_value(answer.clone())
                .with_context(|| format!("{} did not send a token", api.server()))?;
            if let Some(note) = replaced(&made) {
                output::note(&note);
            }
            if let Some(note) = without_ip(&made) {
                output::note(&note);
            }
            match create.json {
                true => output::print(&output::json(&answer))?,
                false => output::print_line(&made.token)?,
            }
        }
        Action::List(list) => {
            let tokens = api.get(paths::TOKENS).await?;
            match list.json {
                true => output::print(&output::json(&tokens))?,
                false => {
                    let tokens: TokenList = serde_json::from_value(tokens)
                        .with_context(|| format!("{} did not send its tokens", api.server()))?;
                    output::print(&render(&tokens, jiff::Timestamp::now()).render(output::colours()))?;
                }
            }
        }
        Action::Delete(delete) => {
            for id in &delete.ids {
                api.delete(&format!("{}/{}", paths::TOKENS, client::encode(id))).await?;
                output::print_line(&format!("token/{} deleted", output::plain(id)))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Create {
    /// Fields that are not meant are left out: an older cloud refuses fields that it does not know.
    fn request(&self) -> CreateTokenRequest {
        let is_join = self.site.is_some();
        CreateTokenRequest {
            site: self.site.clone(),
            gateway: self.gateway.clone(),
            role: self.role.map(|role| match role {
                Role::Viewer => ApiRole::Viewer,
                Role::Admin => ApiRole::Admin,
            }),
            ttl_seconds: Some(self.ttl.as_secs()),
            uses: is_join.then_some(self.uses),
            ip: self.ip.filter(|_| is_join).map(|ip| ip.to_string()),
            replace: is_join && self.replace,
        }
    }
}

/// The warning about the host that is enrolled under the name of the token.
fn replaced(made: &CreatedToken) -> Option<String> {
    let connected = if made.replaces.as_ref()?.connected { " and connected now" } else { "" };
    Some(format!(
        "Warning: egateway/{} is enrolled{connected}. The host that joins with this token replaces it: the key of the present one is revoked then, and it is put out for good",
        made.gateway.as_deref().unwrap_or_default()
    ))
}

/// A gateway without an address answers DNS on its own host only. An older cloud does not send the address.
fn without_ip(made: &CreatedToken) -> Option<String> {
    let is_missing = made.ip.as_deref().is_some_and(str::is_empty);
    is_missing.then(|| {
        let gateway = made.gateway.as_deref().unwrap_or_default();
        format!(
            "Note: EGateway {gateway} has no ip, so only its own host can ask it for names. If other hosts of the site shall, \
             add --ip ADDRESS (the gateway's address inside the site), or later: \
             kubectl patch egateway {gateway} --type merge -p '{{\"ip\": \"ADDRESS\"}}'"
        )
    })
}

fn render(tokens: &TokenList, now: jiff::Timestamp) -> TextTable {
    let mut table = TextTable::new(&["ID", "FOR", "USES LEFT", "EXPIRES"]);
    for token in &tokens.tokens {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "<none>".to_owned());
        let target = match token.kind {
            TokenKind::Viewer => "role viewer".to_owned(),
            TokenKind::Admin => "role admin".to_owned(),
            TokenKind::Join => format!("site {}, gateway {}", name(&token.site), name(&token.gateway)),
        };
        let left = token.uses.map(|uses| uses.saturating_sub(token.used.unwrap_or(0)));
        let left = left.map_or_else(|| "-".to_owned(), |left| left.to_string());
        let expires = token.expires.parse::<jiff::Timestamp>().ok();
        let expires = match expires.map(|time| time.as_second() - now.as_second()) {
            Some(seconds) if seconds <= 0 => "expired".to_owned(),
            Some(seconds) => format!("in {}", age(seconds)),
            None => "-".to_owned(),
        };
        table.row([token.id.clone(), target, left, expires]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_without_an_address_is_told() {
        let made = |ip: Option<&str>| CreatedToken {
            gateway: Some("oslo".into()),
            ip: ip.map(str::to_owned),
            ..CreatedToken::default()
        };
        let note = without_ip(&made(Some(""))).unwrap_or_default();
        assert!(note.contains("EGateway oslo has no ip") && note.contains("--ip ADDRESS"), "{note}");
        assert_eq!(without_ip(&made(Some("10.0.0.1"))), None);
        assert_eq!(without_ip(&made(None)), None);
        let role = Some(ApiRole::Viewer);
        assert_eq!(without_ip(&CreatedToken { role, ..CreatedToken::default() }), None);
    }
}
