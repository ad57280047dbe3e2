//! `causeway revoke`: revokes the keys of a gateway or a user certificate.

use std::process::ExitCode;

use causeway_api::management::{RevokeRequest, RevokedCertificate, RevokedGateway, paths};
use serde_json::Value;

use crate::client::ApiConnectionArgs;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway revoke tokyo
  causeway revoke tokyo && causeway token create --site Tokyo --gateway tokyo     it may come back with a new key
  causeway revoke tokyo --keep-tokens                                             tokens that are on their way stay good
  causeway kubeconfig --list && causeway revoke --certificate 4f0c9a64b2d3        the kubeconfig of a user
  causeway revoke --certificate current                                           the one this command uses";

/// Revoke a gateway or a user certificate: its keys are refused from now on and its connections are closed
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the EGateway
    #[arg(required_unless_present = "certificate", conflicts_with = "certificate")]
    gateway: Option<String>,
    /// Leave the join tokens of the gateway open
    #[arg(long, conflicts_with = "certificate")]
    keep_tokens: bool,
    /// Serial number of a certificate, as `kubeconfig --list` shows it, or `current`
    #[arg(long, value_name = "SERIAL")]
    certificate: Option<String>,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let answer = api.post(paths::REVOKE, &arguments.request()).await?;
    output::print(&summary(answer)?)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn request(&self) -> RevokeRequest {
        RevokeRequest {
            gateway: self.gateway.clone(),
            certificate: self.certificate.clone(),
            keep_tokens: self.keep_tokens,
        }
    }
}

/// Returns a line for everything that was revoked. A response about a certificate has a serial number.
fn summary(answer: Value) -> serde_json::Result<String> {
    if answer["serial"].is_string() {
        let RevokedCertificate { serial, user, .. } = serde_json::from_value(answer)?;
        return Ok(format!("certificate/{serial} of {user} revoked\n"));
    }
    let RevokedGateway { gateway, keys, tokens } = serde_json::from_value(answer)?;
    let mut text = format!("egateway/{gateway} revoked ({} keys)\n", keys.len());
    for id in tokens {
        text.push_str(&format!("token/{id} closed\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_names_keys_and_tokens() {
        let check = |answer: Value, expected: &str| assert_eq!(summary(answer).unwrap(), expected);
        check(json!({"gateway": "a", "keys": ["x"]}), "egateway/a revoked (1 keys)\n");
        check(
            json!({"gateway": "a", "keys": [], "tokens": ["t1", "t2"]}),
            "egateway/a revoked (0 keys)\ntoken/t1 closed\ntoken/t2 closed\n",
        );
        check(json!({"serial": "4f", "user": "ann", "key": "x"}), "certificate/4f of ann revoked\n");
    }
}
