//! `get -w`: the present state, then every change, across broken connections.
//!
//! A watch resumes from the last revision it saw. When that is too old (410), the state is listed
//! again and shown anew: nothing is skipped silently.

use std::time::Duration;

use anyhow::bail;
use causeway_api::{ApiVersion, Kind};
use serde_json::Value;

use super::{
    Args, GetOptionsShown, OutputFormat, drop_managed_fields, items, name_of, show_value, shown_table,
};
use crate::client::{self, ApiClient, CallError, RefusalKind};
use crate::output;

/// Delay between attempts to watch an unreachable server.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub async fn follow(
    api: &ApiClient,
    view: &GetOptionsShown,
    kind: Kind,
    name: Option<&str>,
    arguments: &Args,
) -> anyhow::Result<()> {
    let field = name.map(|name| format!("metadata.name={name}")).or_else(|| arguments.field_selector.clone());
    let mut screen = Screen { view: *view, kind, widths: Vec::new(), lost: false };
    let path = client::collection(ApiVersion::Group, kind);
    let accept = match view.form {
        OutputFormat::Table | OutputFormat::Wide => client::TABLE,
        _ => client::JSON,
    };
    let ask = |revision: Option<&str>| {
        let query = client::query(&[
            ("labelSelector", arguments.selector.as_deref()),
            ("fieldSelector", field.as_deref()),
            ("watch", revision.map(|_| "true")),
            ("allowWatchBookmarks", revision.map(|_| "true")),
            ("resourceVersion", revision),
        ]);
        format!("{path}{query}")
    };
    loop {
        let list = api.call(http::Method::GET, &ask(None), accept, None).await?.value;
        let mut revision = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        screen.list(list)?;
        // Ends with the revision too old: then list again.
        while resume(api, &ask(Some(&revision)), accept, &mut screen, &mut revision).await? {
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Watches until the connection ends. Returns false when the revision is too old to go on from.
async fn resume(
    api: &ApiClient,
    path: &str,
    accept: &str,
    screen: &mut Screen,
    revision: &mut String,
) -> anyhow::Result<bool> {
    let mut gone = false;
    let watched = api
        .stream_lines(path, accept, |event| {
            screen.lost = false;
            let object = &event["object"];
            match event["type"].as_str() {
                Some("ERROR") if object["code"] == 410 => {
                    gone = true;
                    return Ok(false);
                }
                Some("ERROR") => {
                    bail!("the watch was ended: {}", object["message"].as_str().unwrap_or("no reason given"))
                }
                Some("BOOKMARK") => {}
                _ => screen.change(&event)?,
            }
            if let Some(seen) = revision_of(object) {
                *revision = seen;
            }
            Ok(true)
        })
        .await;
    match watched {
        Ok(()) => Ok(!gone),
        Err(error) => match error.downcast_ref::<CallError>() {
            Some(call) if call.refusal() == Some(RefusalKind::Expired) => Ok(false),
            Some(CallError::Unreachable { .. }) => {
                if !std::mem::replace(&mut screen.lost, true) {
                    output::note("the connection is lost: trying again until it is back");
                }
                Ok(true)
            }
            _ => Err(error),
        },
    }
}

/// The revision of an event's object, or of the last row of its table.
fn revision_of(object: &Value) -> Option<String> {
    let row = object["rows"].as_array().and_then(|rows| rows.last()).map(|row| &row["object"]);
    let of = |value: &Value| value["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    row.and_then(of).or_else(|| of(object)).filter(|revision| !revision.is_empty())
}

struct Screen {
    view: GetOptionsShown,
    kind: Kind,
    widths: Vec<usize>,
    /// The connection is lost, and that was said.
    lost: bool,
}

impl Screen {
    fn list(&mut self, list: Value) -> anyhow::Result<()> {
        match self.view.form {
            OutputFormat::Table | OutputFormat::Wide => {
                let table = shown_table(&list, self.view.form == OutputFormat::Wide, None);
                self.widths = table.widths();
                let heads = if self.view.heads { table.head.clone() } else { Vec::new() };
                output::print(&output::TextTable { head: heads, rows: table.rows }.render(self.view.colours))
            }
            _ => items(self.kind, list).into_iter().try_for_each(|object| self.object(object)),
        }
    }

    fn change(&mut self, event: &Value) -> anyhow::Result<()> {
        let deleted = event["type"] == "DELETED";
        match self.view.form {
            OutputFormat::Table | OutputFormat::Wide => {
                let table = shown_table(&event["object"], self.view.form == OutputFormat::Wide, None);
                for mut row in table.rows {
                    if deleted {
                        row.push("(deleted)".to_owned());
                    }
                    let colour = |cell: &str| if self.view.colours { output::colour(cell) } else { "" };
                    output::print_line(&output::line(&row, &self.widths, colour))?;
                }
                Ok(())
            }
            OutputFormat::Name if deleted => {
                output::print_line(&format!("{} (deleted)", name_of(&event["object"])))
            }
            _ => self.object(event["object"].clone()),
        }
    }

    fn object(&self, mut object: Value) -> anyhow::Result<()> {
        if self.view.form == OutputFormat::Name {
            return output::print_line(&name_of(&object));
        }
        if !self.view.managed_fields {
            drop_managed_fields(&mut object);
        }
        if self.view.form == OutputFormat::Yaml {
            output::print_line("---")?;
        }
        show_value(&self.view, &object)
    }
}
