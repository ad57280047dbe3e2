//! Writes what gateways cannot do into objects: what they do not listen on into the EGateway, which backends do not answer
//! them into the EService.
//!
//! The cloud's own gateway says it here, edges say it in their status records. Written only when it changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use causeway_api::conditions::BACKENDS_ANSWER;
use causeway_api::meta::{Condition, ConditionStatus, set_condition};
use causeway_api::{Kind, Object};
use causeway_apiserver::Registry;
use causeway_gateway::regrets::{Outage, Regrets, Told};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::first::CLOUD;
use crate::reconcile::MANAGER;

/// The condition of an EGateway about what it listens on.
pub const LISTENING: &str = "Listening";
/// A status comes from an edge: no more of it than people read.
const MESSAGE_CHARS_MAX: usize = 1024;

/// Status, reason and message of a condition.
type Said = (ConditionStatus, &'static str, String);

/// What a gateway has said, and where its certificate says it stands.
struct News {
    site: String,
    told: Told,
}

/// What gateways have said and nobody has written yet. Bounded by the gateways there are.
#[derive(Default)]
pub struct Board {
    news: Mutex<HashMap<String, News>>,
    wake: Notify,
}

impl Board {
    pub fn tell(&self, site: &str, gateway: &str, told: Told) {
        let news = News { site: site.to_owned(), told };
        self.news.lock().unwrap_or_else(PoisonError::into_inner).insert(gateway.to_owned(), news);
        self.wake.notify_one();
    }

    /// What a status record of an edge says about it, if anything.
    pub fn tell_status(&self, site: &str, gateway: &str, status: &Value) {
        if status.get("regrets").is_none() {
            return;
        }
        match serde_json::from_value(status.clone()) {
            Ok(told) => self.tell(site, gateway, told),
            Err(error) => tracing::warn!(gateway, %error, "the report of a gateway cannot be read"),
        }
    }

    fn take(&self) -> HashMap<String, News> {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The loop that writes.
pub struct ReportWriter {
    pub board: Arc<Board>,
    pub registry: Arc<Registry>,
    /// Of the cloud's own gateway.
    pub own: Regrets,
}

impl ReportWriter {
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.board.wake.notified() => {}
                told = self.own.next() => self.board.tell(CLOUD, CLOUD, told),
            }
            let news = self.board.take();
            for (gateway, news) in &news {
                self.write(Kind::EGateway, gateway, LISTENING, listening(&news.told.regrets)).await;
            }
            self.write_backends(&news).await;
        }
    }

    /// A gateway speaks only of services of its own site.
    async fn write_backends(&self, news: &HashMap<String, News>) {
        let Ok((services, _)) = self.registry.objects(Kind::EService).await else { return };
        for loaded in services {
            let Object::EService(service) = &loaded.object else { continue };
            let name = &service.metadata.name;
            for (gateway, news) in news.iter().filter(|(_, news)| news.site == service.e_site_name) {
                let before = service.status.condition(BACKENDS_ANSWER);
                if let Some(said) = backends(before, gateway, news.told.backends.get(name)) {
                    self.write(Kind::EService, name, BACKENDS_ANSWER, said).await;
                }
            }
        }
    }

    async fn write(&self, kind: Kind, name: &str, about: &'static str, (status, reason, message): Said) {
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            set_condition(conditions, about, status, reason, &message, now, generation);
        };
        // A store that cannot be written says so elsewhere; the next change comes by again.
        if let Err(status) = self.registry.edit_status(MANAGER, kind, name, edit).await
            && status.code != 404
        {
            let (kind, reason) = (kind.name(), status.message);
            tracing::warn!(kind, name, about, reason, "the report of a gateway cannot be written");
        }
    }
}

fn listening(regrets: &[String]) -> Said {
    let reason = if regrets.is_empty() { "Listening" } else { "NotListening" };
    (regrets.is_empty().into(), reason, bounded(&regrets.join("; ")))
}

/// What to say now. None: nothing has changed. Of several gateways at a site the last to see an outage is believed, and only
/// it can take that back.
fn backends(before: Option<&Condition>, gateway: &str, outage: Option<&Outage>) -> Option<Said> {
    let by = format!("gateway {gateway} ");
    match outage {
        Some(Outage { up: 0, why, .. }) => {
            let message = bounded(&format!("{by}reaches no backend; {why}"));
            Some((ConditionStatus::False, "BackendDown", message))
        }
        Some(Outage { up, of, why }) => {
            let out = of.saturating_sub(*up);
            let message = bounded(&format!("{by}leaves out {out} of {of} backends; {why}"));
            Some((ConditionStatus::True, "BackendsLeftOut", message))
        }
        None if before.is_some_and(|before| before.message.starts_with(&by)) => {
            Some((ConditionStatus::True, "BackendsAnswer", String::new()))
        }
        None => None,
    }
}

fn bounded(message: &str) -> String {
    message.chars().filter(|letter| !letter.is_control()).take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use causeway_api::Time;

    use super::*;

    #[test]
    fn an_outage_is_told_once_and_taken_back_by_who_told_it() {
        let outage = |up| Outage { up, of: 3, why: "10.0.0.5:80: refused".into() };
        let condition = |(status, reason, message): Said| Condition {
            kind: BACKENDS_ANSWER.into(),
            status,
            observed_generation: 1,
            last_transition_time: Time::from_second(0),
            reason: reason.into(),
            message,
        };
        assert_eq!(backends(None, "a", None), None, "nobody has anything to say");
        let down = backends(None, "a", Some(&outage(0))).unwrap();
        let message = "gateway a reaches no backend; 10.0.0.5:80: refused";
        assert_eq!(down, (ConditionStatus::False, "BackendDown", message.into()));
        let some = backends(None, "a", Some(&outage(2))).unwrap();
        let message = "gateway a leaves out 1 of 3 backends; 10.0.0.5:80: refused";
        assert_eq!(some, (ConditionStatus::True, "BackendsLeftOut", message.into()));
        let down = condition(down);
        assert_eq!(backends(Some(&down), "b", None), None, "another gateway has seen none");
        let well = backends(Some(&down), "a", None).unwrap();
        assert_eq!(well, (ConditionStatus::True, "BackendsAnswer", String::new()));
        assert_eq!(backends(Some(&condition(well)), "a", None), None);
    }

    #[test]
    fn a_report_is_read_and_anything_else_is_not() {
        let board = Board::default();
        board.tell_status("x", "a", &serde_json::json!({"started": "now"}));
        board.tell_status("x", "b", &serde_json::json!({"regrets": 7}));
        board.tell_status("x", "c", &serde_json::json!({"regrets": ["no room"]}));
        let backends = serde_json::json!({"web": {"up": 1, "of": 2, "why": "gone"}});
        board.tell_status("x", "d", &serde_json::json!({"regrets": [], "backends": backends}));
        let mut news = board.take();
        assert_eq!(news.len(), 2);
        assert_eq!(news["c"].told.regrets, ["no room"]);
        let outage = Outage { up: 1, of: 2, why: "gone".into() };
        assert_eq!(news.remove("d").unwrap().told.backends, [("web".to_owned(), outage)].into());
    }
}
