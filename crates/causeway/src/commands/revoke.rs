//! `causeway revoke`: a gateway is out.

use std::process::ExitCode;

use serde_json::json;

use crate::client::Connection;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway revoke tokyo
  causeway revoke tokyo && causeway token create --site Tokyo --gateway tokyo     it may come back with a new key";

/// Put a gateway out: its keys are refused from now on, live connections included
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the EGateway
    gateway: String,
    #[command(flatten)]
    connection: Connection,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let answer = api.post("/causeway/v1/revoke", &json!({"gateway": arguments.gateway})).await?;
    let keys = answer["keys"].as_array().map_or(0, Vec::len);
    output::print_line(&format!("egateway/{} revoked ({keys} keys)", output::plain(&arguments.gateway)))?;
    Ok(ExitCode::SUCCESS)
}
