//! Forwards datagrams from the gateway of a client to a backend of this site.

use std::pin::pin;
use std::sync::Arc;

use causeway_channel::link::Stream;
use causeway_netmap::ServiceName;
use tokio_util::sync::CancellationToken;

use super::carry::{DatagramSide, carry, is_absent};
use super::table::UdpSessionSlot;
use crate::connection_record::{AdmittedAccess, ConnectionRecord};
use crate::live::AccessRequest;
use crate::proxy::Proxy;
use crate::proxy::copy::CopyEnd;
use crate::proxy::end_reason::{self, code_for_cut};
use crate::proxy::inbound::refuse;

/// Further reasons that end a session: they apply to local clients only.
#[derive(Clone, Copy, Default)]
pub struct SessionCancellation<'a> {
    pub slot: Option<&'a UdpSessionSlot>,
    pub closed: Option<&'a CancellationToken>,
}

/// Serves one session of another site.
pub async fn serve(proxy: Arc<Proxy>, mut record: ConnectionRecord, stream: Stream) {
    let admitted = match record.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(record, &refusal, stream),
    };
    let AccessRequest::Reach { service, .. } = &admitted.entry.claim else { return };
    let (service, mut far) = (service.clone(), DatagramSide::stream(stream));
    carry_to_backend(&proxy, record, admitted, service, &mut far, SessionCancellation::default()).await;
}

/// Connects to a backend and forwards until the session ends. Returns false when it was refused or failed.
pub async fn carry_to_backend(
    proxy: &Proxy,
    record: ConnectionRecord,
    admitted: AdmittedAccess,
    service: ServiceName,
    client: &mut DatagramSide,
    obstacles: SessionCancellation<'_>,
) -> bool {
    let Some(found) = admitted.view.services.get(&service) else { return false };
    let connected = match admitted.entry.until_cut(pin!(proxy.udp_backends.connect(found))).await {
        Ok(connected) => connected,
        Err(cut) => {
            client.give_up(code_for_cut(&cut));
            record.cut(&cut);
            return true;
        }
    };
    let entry = admitted.into_entry();
    let connected = match connected {
        Ok(connected) => connected,
        Err(refusal) => {
            client.give_up(refusal.code());
            record.refuse(&refusal);
            return false;
        }
    };
    let mut backend = DatagramSide::backend(connected.socket.clone());
    let meter = record.meter().clone();
    tokio::select! {
        biased;
        cut = entry.cut() => {
            client.give_up(code_for_cut(&cut));
            record.cut(&cut);
            true
        }
        (end, why) = obstacles.met() => {
            record.end(end, Some(why.to_owned()));
            true
        }
        ended = carry(client, &mut backend, &meter, &proxy.options.udp, &proxy.context.metrics) => match ended {
            // No backend is there: the next session asks another, if there is one.
            CopyEnd::Backend(error) if is_absent(&error) => {
                connected.place.failed();
                let refusal = crate::policy::PolicyRefusal::BackendDown { service };
                client.give_up(refusal.code());
                record.refuse(&refusal);
                false
            }
            ended => {
                let is_over_in_order = matches!(ended, CopyEnd::Idle | CopyEnd::Done);
                let ended = Ok(ended);
                client.give_up(end_reason::reset_code(&ended));
                end_reason::close_record(record, &ended, None);
                is_over_in_order
            }
        },
    }
}
