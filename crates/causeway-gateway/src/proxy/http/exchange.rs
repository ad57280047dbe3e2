//! One request and its response, at either end of a crossing: judged, sent on, and answered whatever happens.
//!
//! What is forwarded is what was judged. The two ends differ only in whom they ask about, and in what they say of the client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_netmap::{DnsNameTarget, NetmapView, ServiceName, ServiceProtocol};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version, header};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;

use super::backend::{BackendProtocol, BackendRequest};
use super::body::{BodyGate, RequestAccount, RequestBody, ResponseBody};
use super::channel::{self, ChannelRoute};
use super::connection::HttpConnection;
use super::error_response::{ErrorFormat, ProxyError, end_of_word};
use super::extended::{self, ExtendedConnect};
use super::headers::{self, HeadError};
use super::pool::PoolLease;
use super::route::NextHop;
use super::{forwarded, request_target, tunnel, upgrade};
use crate::audit::ConnectionEnd;
use crate::connection_record::{
    AdmittedAccess, ByteMeter, ConnectionRecord, CrossingDirection, protocol_word,
};
use crate::limits::LimitExceeded;
use crate::live::{AccessRequest, AllowedRequest, RequestLine};
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;

/// What the requests of one connection have in common.
pub struct Exchange {
    pub proxy: Arc<Proxy>,
    pub connection: Arc<HttpConnection>,
    pub bearing: ExchangeSide,
}

/// Which end of the crossing this is.
pub enum ExchangeSide {
    /// Here is the client.
    Outbound { client: SocketAddr, door: ClientEntry },
    /// Here is the backend. `client` as the header of the stream tells it.
    Inbound { claim: AccessRequest, client: Option<SocketAddr> },
}

/// Where a client came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEntry {
    /// At the address of one service.
    Presence(ServiceName),
    /// At an address for many names, told apart by the host of each request.
    Entry,
}

/// A request that may pass.
struct Passing {
    admitted: AdmittedAccess,
    claim: AccessRequest,
    client: Option<SocketAddr>,
    allowed: AllowedRequest,
    meter: Arc<ByteMeter>,
}

/// The head of a response has come.
struct Answered {
    response: Response<Incoming>,
    lease: PoolLease,
    /// The client's end, and the protocols it offers, when it asked for an upgrade.
    upgrade: Option<(OnUpgrade, header::HeaderValue)>,
    /// It asked as HTTP/2 does: for one of many streams, not for the connection.
    is_extended: bool,
    /// It came from another gateway, which may have answered itself.
    from_gateway: bool,
}

impl Exchange {
    /// Never fails: a request always has an answer.
    pub async fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        if request.version() == Version::HTTP_2 {
            self.connection.set_multiplexed();
        }
        if request.version() == Version::HTTP_11 && request.headers().contains_key(header::UPGRADE) {
            let client = hyper::upgrade::on(&mut request);
            // Until `switch` has something better to do with it.
            self.connection.become_tunnel(Box::pin(tunnel::close(client.clone())));
            request.extensions_mut().insert(client);
        }
        if let ExchangeSide::Outbound { .. } = self.bearing {
            extended::translate(&mut request);
        }
        // Requests are large futures and idle connections many: the box is there only while a request is.
        Ok(Box::pin(self.answer(request)).await)
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response<ResponseBody> {
        let form = ErrorFormat::wanted(request.headers());
        let (claim, client, word) = match self.claim(&mut request) {
            Ok(claim) => claim,
            Err(verdict) => return self.say(&verdict, form),
        };
        let direction = match self.bearing {
            ExchangeSide::Outbound { .. } => CrossingDirection::Outbound,
            ExchangeSide::Inbound { .. } => CrossingDirection::Inbound,
        };
        let line =
            RequestLine { method: request.method().to_string(), path: request.uri().path().to_owned() };
        let access = claim.for_request(line);
        let mut passage = ConnectionRecord::begin(&self.proxy.context, direction, word, access, client);
        passage.set_request(request.method().as_str(), request.uri().path(), None);
        let (admitted, allowed) = match self.admit(&mut passage, &claim, &request) {
            Ok(admitted) => admitted,
            Err(LimitExceeded { refusal, again }) => {
                let mut verdict = ProxyError::from(&refusal);
                verdict.again = again;
                passage.set_status(verdict.status.as_u16());
                passage.refuse(&refusal);
                return ResponseBody::said(verdict.response(form));
            }
        };
        let entry = admitted.entry.clone();
        let boarded = self.connection.board(&entry);
        let meter = passage.meter().clone();
        let account = RequestAccount::new(passage, entry.clone(), boarded);
        let passing = Passing { admitted, claim, client, allowed, meter };
        let answered = tokio::select! {
            biased;
            cut = entry.cut() => Err(ProxyError::from(&cut)),
            answered = self.send(&passing, request) => answered,
        };
        match answered {
            Ok(answered) if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.switch(answered, account, form)
            }
            // A success would open the stream, and nobody would be at its other end.
            Ok(answered) if answered.is_extended && answered.response.status().is_success() => {
                let verdict = ProxyError::broken("the backend does not speak WebSocket");
                self.fail(&verdict, account, form)
            }
            Ok(answered) => pass_on(answered, account),
            Err(verdict) => self.fail(&verdict, account, form),
        }
    }

    /// What a request claims, of whom it is, and what it speaks.
    fn claim(
        &self,
        request: &mut Request<Incoming>,
    ) -> Result<(AccessRequest, Option<SocketAddr>, &'static str), ProxyError> {
        let view = self.proxy.context.view();
        match &self.bearing {
            ExchangeSide::Inbound { claim, client } => {
                let told = forwarded::take_client(request.headers_mut());
                let service = match claim {
                    AccessRequest::Reach { service, .. } => view.services.get(service),
                    _ => None,
                };
                let protocol = service.map_or(ServiceProtocol::Http, |service| service.protocol);
                Ok((claim.clone(), told.or(*client), protocol_word(protocol)))
            }
            ExchangeSide::Outbound { client, door } => {
                let service = match door {
                    ClientEntry::Presence(service) => service.clone(),
                    ClientEntry::Entry => named(&view, headers::host(request))?,
                };
                let protocol =
                    view.presences.get(&service).map_or(ServiceProtocol::Http, |presence| presence.protocol);
                let claim = AccessRequest::Use { service, client: client.ip(), request: None };
                Ok((claim, Some(*client), protocol_word(protocol)))
            }
        }
    }

    /// Judges a request and counts it. The path that comes back is the one that was judged.
    fn admit(
        &self,
        passage: &mut ConnectionRecord,
        claim: &AccessRequest,
        request: &Request<Incoming>,
    ) -> Result<(AdmittedAccess, AllowedRequest), LimitExceeded> {
        let (admitted, allowed) = self.judge(passage, request).map_err(at_once)?;
        self.connection.count(&self.proxy, claim, &admitted).map_err(at_once)?;
        passage.request(&admitted)?;
        Ok((admitted, allowed))
    }

    fn judge(
        &self,
        passage: &mut ConnectionRecord,
        request: &Request<Incoming>,
    ) -> Result<(AdmittedAccess, AllowedRequest), PolicyRefusal> {
        let malformed = |why: &'static str| PolicyRefusal::Malformed { why };
        if self.connection.take_two_lengths() {
            return Err(malformed(HeadError::TwoLengths.why()));
        }
        headers::inspect(request).map_err(|error| malformed(error.why()))?;
        let mut admitted = passage.admit()?;
        let allowed = admitted.request.take().ok_or(malformed("it is not for a service"))?;
        passage.set_request(request.method().as_str(), &allowed.path, Some(allowed.rule.as_str()));
        Ok((admitted, allowed))
    }

    /// Sends a request on its way and waits for the head of its response.
    async fn send(&self, passing: &Passing, mut request: Request<Incoming>) -> Result<Answered, ProxyError> {
        let Passing { admitted, claim, client, allowed, meter } = passing;
        let is_single = request.version() == Version::HTTP_11;
        let is_extended = request.extensions_mut().remove::<ExtendedConnect>().is_some();
        let AllowedRequest { path, has_rules, .. } = allowed;
        let has_rules = *has_rules;
        let next = NextHop::of(&admitted.view, claim, &admitted.who);
        let next = next.map_err(|refusal| ProxyError::from(&refusal))?;
        let protocol = upgrade::wanted(request.headers(), has_rules).filter(|_| is_single || is_extended);
        let upgrade = protocol.clone().map(|protocol| (hyper::upgrade::on(&mut request), protocol));
        let (mut parts, body) = request.into_parts();
        let waits = is_single && headers::expects_continue(&parts.headers) && !body.is_end_stream();
        let host = headers::host_of(&parts).map(str::to_owned);
        headers::strip(&mut parts.headers);
        forwarded::strip_overrides(&mut parts.headers, has_rules);
        if let (ExchangeSide::Outbound { .. }, Some(client)) = (&self.bearing, client) {
            forwarded::set_client(&mut parts.headers, *client, host.as_deref());
        }
        let gate = waits.then(Arc::<BodyGate>::default);
        let upload = RequestBody::new(body, meter.clone());
        let service = claim.service().ok_or_else(|| ProxyError::broken("not a service"))?;
        let host = host.as_deref().unwrap_or(service.as_str());
        let from_gateway = matches!(next, NextHop::Away(_));
        let (response, lease) = match next {
            NextHop::Away(home) => {
                let route =
                    ChannelRoute { service: service.clone(), home: home.clone(), who: admitted.who.clone() };
                let client = client.ok_or_else(|| ProxyError::broken("nobody asks"))?;
                if upgrade.is_some() || waits {
                    request_target::over_http1(&mut parts, host, path)?;
                    let request = dress(parts, upload, protocol, gate);
                    channel::send_alone(&self.proxy, &route, client, request).await?
                } else {
                    request_target::over_http2(&mut parts, host, path, false)?;
                    let request = dress(parts, upload, None, None);
                    self.proxy.http.routes.send(&self.proxy, &route, client, request).await?
                }
            }
            NextHop::Here(service) => {
                forwarded::take_client(&mut parts.headers);
                let way = BackendProtocol::to(service, &parts.headers, upgrade.is_some());
                match way {
                    BackendProtocol::Line => {
                        request_target::over_http2(&mut parts, host, path, service.backend_tls.is_some())?
                    }
                    BackendProtocol::Single | BackendProtocol::Alone => {
                        request_target::over_http1(&mut parts, host, path)?
                    }
                }
                let gate = gate.filter(|_| way != BackendProtocol::Line);
                let request = dress(parts, upload, protocol, gate.clone());
                let errand = BackendRequest { request, way, client: *client, meter: meter.clone(), gate };
                self.proxy.http.yards.send(&self.proxy, service, errand).await?
            }
        };
        Ok(Answered { response, lease, upgrade, is_extended, from_gateway })
    }

    /// The backend speaks something else from now on.
    fn switch(
        &self,
        answered: Answered,
        mut account: RequestAccount,
        form: ErrorFormat,
    ) -> Response<ResponseBody> {
        let Answered { mut response, lease, upgrade, is_extended, .. } = answered;
        let offered = upgrade.filter(|(_, offered)| upgrade::is_offered(offered, response.headers()));
        let protocol = response.headers().get(header::UPGRADE).cloned();
        let (Some((client, _)), Some(protocol)) = (offered, protocol) else {
            let verdict = ProxyError::broken("the backend switched to another protocol without being asked");
            return self.fail(&verdict, account, form);
        };
        let backend = hyper::upgrade::on(&mut response);
        account.set_status(response.status().as_u16());
        let tunnel = Box::pin(tunnel::tunnel(client, backend, account, lease));
        let (mut parts, _) = response.into_parts();
        headers::strip(&mut parts.headers);
        if is_extended {
            self.connection.carry_tunnel(tunnel);
            extended::open(&mut parts);
        } else {
            self.connection.become_tunnel(tunnel);
            headers::put_upgrade(&mut parts.headers, protocol);
        }
        ResponseBody::said(Response::from_parts(parts, bytes::Bytes::new()))
    }

    fn fail(
        &self,
        verdict: &ProxyError,
        mut account: RequestAccount,
        form: ErrorFormat,
    ) -> Response<ResponseBody> {
        account.set_status(verdict.status.as_u16());
        account.end(verdict.end, Some(verdict.text.clone()));
        self.say(verdict, form)
    }

    fn say(&self, verdict: &ProxyError, form: ErrorFormat) -> Response<ResponseBody> {
        self.proxy.context.figures.refused(verdict.word);
        ResponseBody::said(verdict.response(form))
    }
}

/// Refused for another reason than that it was asked too often: nobody knows when to come again.
fn at_once(refusal: PolicyRefusal) -> LimitExceeded {
    LimitExceeded { refusal, again: None }
}

/// A response goes on to whoever asked.
fn pass_on(answered: Answered, mut account: RequestAccount) -> Response<ResponseBody> {
    let Answered { response, lease, from_gateway, .. } = answered;
    let (mut parts, body) = response.into_parts();
    account.set_status(parts.status.as_u16());
    let refusal = parts.headers.remove(headers::REFUSAL).filter(|_| from_gateway);
    headers::strip(&mut parts.headers);
    let mut end = (ConnectionEnd::Done, None);
    if let Some(refusal) = refusal {
        if let Ok(word) = refusal.to_str() {
            end = (end_of_word(word), Some(word.to_owned()));
        }
        parts.headers.insert(headers::REFUSAL, refusal);
    }
    // Each hop has its own version; the server writes the one its client speaks.
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, ResponseBody::streamed(body, account, lease, end))
}

/// The request of the next hop.
fn dress(
    mut parts: Parts,
    upload: RequestBody,
    protocol: Option<header::HeaderValue>,
    gate: Option<Arc<BodyGate>>,
) -> Request<RequestBody> {
    if let Some(protocol) = protocol {
        headers::put_upgrade(&mut parts.headers, protocol);
    }
    let Some(gate) = gate else {
        // Whoever is asked would answer `100 Continue` to nobody.
        parts.headers.remove(header::EXPECT);
        return Request::from_parts(parts, upload);
    };
    let mut request = Request::from_parts(parts, upload.behind(gate.clone()));
    hyper::ext::on_informational(&mut request, move |response| {
        if response.status() == StatusCode::CONTINUE {
            gate.open();
        }
    });
    request
}

/// The service that a host stands for at a shared entry. Nobody learns here what exists elsewhere: the netmap has only what
/// this site may see.
fn named(view: &NetmapView, host: Option<&str>) -> Result<ServiceName, ProxyError> {
    let host = host.ok_or_else(|| ProxyError::bad_request("the request names no host"))?;
    let name = headers::without_port(host);
    match view.named(name) {
        Some(DnsNameTarget::Presence(service)) => {
            let protocol = view.presences.get(service).map(|presence| presence.protocol);
            match protocol {
                Some(ServiceProtocol::Http | ServiceProtocol::Grpc) => Ok(service.clone()),
                _ => Err(ProxyError::misdirected(format!("{name} does not speak HTTP here"))),
            }
        }
        Some(DnsNameTarget::Node(_)) => {
            Err(ProxyError::misdirected(format!("{name} is a node, not a service")))
        }
        None => Err(ProxyError::unknown_name(format!("nothing is called {name} here"))),
    }
}
