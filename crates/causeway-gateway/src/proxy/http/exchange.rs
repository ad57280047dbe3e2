//! One HTTP request and its response, at either end of a crossing: judges the request, forwards it, and
//! always responds.
//!
//! The forwarded path is the one that was judged. The two ends differ only in how they identify the client
//! and in the fields about it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use causeway_netmap::{DnsNameTarget, NetmapView, ServiceEntry, ServiceName, ServiceProtocol, SiteName};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version, header};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;

use super::backend::{BackendProtocol, BackendRequest};
use super::body::{BodyGate, RequestAccount, RequestBody, ResponseBody};
use super::channel::{self, ChannelRoute};
use super::connection::HttpConnection;
use super::error_response::{ErrorFormat, ProxyError, end_of_word};
use super::pool::PoolLease;
use super::upgrade::{self, ExtendedConnect};
use super::{forwarded, headers, tunnel};
use crate::audit::ConnectionEnd;
use crate::connection_record::{
    AdmittedAccess, ByteMeter, ConnectionRecord, CrossingDirection, protocol_word,
};
use crate::live::{AccessRequest, AllowedRequest, RequestLine};
use crate::policy::{MalformedPart, PolicyRefusal, Principal};
use crate::proxy::Proxy;
use crate::trace::RecordSpan;

/// State that the requests of one connection share.
pub struct Exchange {
    pub proxy: Arc<Proxy>,
    pub connection: Arc<HttpConnection>,
    pub side: ExchangeSide,
}

/// The end of the crossing.
pub enum ExchangeSide {
    /// The gateway of the client.
    Outbound { client: SocketAddr, listener: ClientEntry },
    /// The gateway of the backend. `client` is from the header of the stream.
    Inbound { claim: AccessRequest, client: Option<SocketAddr> },
}

/// The listener at which a client connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEntry {
    /// The address of one service.
    Presence(ServiceName),
    /// A shared entry: the Host of each request selects the service.
    Entry,
}

/// A request that is allowed.
struct AllowedExchange {
    admitted: AdmittedAccess,
    claim: AccessRequest,
    client: Option<SocketAddr>,
    allowed: AllowedRequest,
    meter: Arc<ByteMeter>,
    span: RecordSpan,
}

/// The head of a response that has arrived.
struct Answered {
    response: Response<Incoming>,
    lease: PoolLease,
    /// The client's side and the protocols it offers, if it asked for an upgrade.
    upgrade: Option<(OnUpgrade, header::HeaderValue)>,
    /// The upgrade is an extended CONNECT of HTTP/2: for one stream, not for the connection.
    is_extended: bool,
    /// It arrived from another gateway, which may have responded itself.
    from_gateway: bool,
}

impl Exchange {
    /// Handles one request. Never fails: every request gets a response.
    pub async fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        if request.version() == Version::HTTP_2 {
            self.connection.set_multiplexed();
        }
        if request.version() == Version::HTTP_11 && request.headers().contains_key(header::UPGRADE) {
            let client = hyper::upgrade::on(&mut request);
            // A default that `switch` replaces.
            self.connection.become_tunnel(Box::pin(tunnel::close(client.clone())));
            request.extensions_mut().insert(client);
        }
        if let ExchangeSide::Outbound { .. } = self.side {
            upgrade::translate_extended(&mut request);
        }
        // The future of a request is large and idle connections are many: it is boxed, and exists only during
        // the request.
        Ok(Box::pin(self.answer(request)).await)
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response<ResponseBody> {
        let format = ErrorFormat::wanted(request.headers());
        let (claim, client, word) = match self.claim(&mut request) {
            Ok(claim) => claim,
            Err(error) => return self.respond(&error, format),
        };
        let direction = match self.side {
            ExchangeSide::Outbound { .. } => CrossingDirection::Outbound,
            ExchangeSide::Inbound { .. } => CrossingDirection::Inbound,
        };
        let line =
            RequestLine { method: request.method().to_string(), path: request.uri().path().to_owned() };
        let access = claim.for_request(line);
        let mut record = ConnectionRecord::begin(&self.proxy.context, direction, word, access, client);
        record.continue_request(request.headers());
        record.set_request(request.method().as_str(), request.uri().path(), None);
        let (admitted, allowed) = match self.admit(&mut record, &claim, &request) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let error = ProxyError::from(&refusal);
                record.set_status(error.status.as_u16());
                record.refuse(&refusal);
                return ResponseBody::own(error.response(format));
            }
        };
        let entry = admitted.entry.clone();
        let guard = self.connection.begin_request(&entry);
        let (meter, span) = (record.meter().clone(), record.span().clone());
        let account = RequestAccount::new(record, entry.clone(), guard);
        let exchange = AllowedExchange { admitted, claim, client, allowed, meter, span };
        let answered = entry.until_cut(pin!(self.send(&exchange, request))).await;
        let answered = answered.unwrap_or_else(|cut| Err(ProxyError::from(&cut)));
        match answered {
            Ok(answered) if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.switch(answered, account, format)
            }
            // A success would open the stream, with no backend at its other end.
            Ok(answered) if answered.is_extended && answered.response.status().is_success() => {
                let error = ProxyError::bad_gateway("the backend does not speak WebSocket");
                self.fail(&error, account, format)
            }
            Ok(answered) => pass_on(answered, account),
            Err(error) => self.fail(&error, account, format),
        }
    }

    /// Returns the access that a request needs, its client and its protocol.
    fn claim(
        &self,
        request: &mut Request<Incoming>,
    ) -> Result<(AccessRequest, Option<SocketAddr>, &'static str), ProxyError> {
        let view = self.proxy.context.view();
        match &self.side {
            ExchangeSide::Inbound { claim, client } => {
                let told = forwarded::take_client(request.headers_mut());
                let service = match claim {
                    AccessRequest::Reach { service, .. } => view.services.get(service),
                    _ => None,
                };
                let protocol = service.map_or(ServiceProtocol::Http, |service| service.protocol);
                Ok((claim.clone(), told.or(*client), protocol_word(protocol)))
            }
            ExchangeSide::Outbound { client, listener } => {
                let service = match listener {
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
        record: &mut ConnectionRecord,
        claim: &AccessRequest,
        request: &Request<Incoming>,
    ) -> Result<(AdmittedAccess, AllowedRequest), PolicyRefusal> {
        let (admitted, allowed) = self.judge(record, request)?;
        self.connection.count(&self.proxy, claim, &admitted)?;
        record.request(&admitted)?;
        Ok((admitted, allowed))
    }

    fn judge(
        &self,
        record: &mut ConnectionRecord,
        request: &Request<Incoming>,
    ) -> Result<(AdmittedAccess, AllowedRequest), PolicyRefusal> {
        let malformed = |why| PolicyRefusal::Malformed { why };
        if self.connection.take_two_lengths() {
            return Err(malformed(MalformedPart::TwoLengths));
        }
        headers::inspect(request).map_err(malformed)?;
        let mut admitted = record.admit()?;
        let allowed = admitted.request.take().ok_or(malformed(MalformedPart::NoService))?;
        record.set_request(request.method().as_str(), &allowed.path, Some(allowed.rule.as_str()));
        Ok((admitted, allowed))
    }

    /// Forwards a request and waits for the head of its response.
    async fn send(
        &self,
        exchange: &AllowedExchange,
        mut request: Request<Incoming>,
    ) -> Result<Answered, ProxyError> {
        let AllowedExchange { admitted, claim, client, allowed, meter, span } = exchange;
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
        if let (ExchangeSide::Outbound { .. }, Some(client)) = (&self.side, client) {
            forwarded::set_client(&mut parts.headers, *client, host.as_deref());
        }
        span.set_request_context(&mut parts.headers);
        let gate = waits.then(Arc::<BodyGate>::default);
        let upload = RequestBody::new(body, meter.clone());
        let service = claim.service().ok_or_else(|| ProxyError::bad_gateway("not a service"))?;
        let host = host.as_deref().unwrap_or(service.as_str());
        let from_gateway = matches!(next, NextHop::Away(_));
        let (response, lease) = match next {
            NextHop::Away(site) => {
                let route =
                    ChannelRoute { service: service.clone(), site: site.clone(), who: admitted.who.clone() };
                let client =
                    client.ok_or_else(|| ProxyError::bad_gateway("the request has no client address"))?;
                if upgrade.is_some() || waits {
                    headers::over_http1(&mut parts, host, path)?;
                    let request = next_request(parts, upload, protocol, gate);
                    channel::send_alone(&self.proxy, &route, client, request).await?
                } else {
                    headers::over_http2(&mut parts, host, path, false)?;
                    let request = next_request(parts, upload, None, None);
                    self.proxy.http.channels.send(&self.proxy, &route, client, request).await?
                }
            }
            NextHop::Here(service) => {
                forwarded::take_client(&mut parts.headers);
                let way = BackendProtocol::to(service, &parts.headers, upgrade.is_some());
                match way {
                    BackendProtocol::Http2 => {
                        headers::over_http2(&mut parts, host, path, service.backend_tls.is_some())?
                    }
                    BackendProtocol::Http1 | BackendProtocol::Http1Exclusive => {
                        headers::over_http1(&mut parts, host, path)?
                    }
                }
                let gate = gate.filter(|_| way != BackendProtocol::Http2);
                let request = next_request(parts, upload, protocol, gate.clone());
                let outgoing = BackendRequest { request, way, client: *client, meter: meter.clone(), gate };
                self.proxy.http.backends.send(&self.proxy, service, outgoing).await?
            }
        };
        Ok(Answered { response, lease, upgrade, is_extended, from_gateway })
    }

    /// Switches the connection to the protocol that the backend accepted.
    fn switch(
        &self,
        answered: Answered,
        mut account: RequestAccount,
        format: ErrorFormat,
    ) -> Response<ResponseBody> {
        let Answered { mut response, lease, upgrade, is_extended, .. } = answered;
        let offered = upgrade.filter(|(_, offered)| upgrade::is_offered(offered, response.headers()));
        let protocol = response.headers().get(header::UPGRADE).cloned();
        let (Some((client, _)), Some(protocol)) = (offered, protocol) else {
            let error =
                ProxyError::bad_gateway("the backend switched to another protocol without being asked");
            return self.fail(&error, account, format);
        };
        let backend = hyper::upgrade::on(&mut response);
        account.set_status(response.status().as_u16());
        let tunnel = Box::pin(tunnel::tunnel(client, backend, account, lease));
        let (mut parts, _) = response.into_parts();
        headers::strip(&mut parts.headers);
        if is_extended {
            self.connection.carry_tunnel(tunnel);
            upgrade::open_extended(&mut parts);
        } else {
            self.connection.become_tunnel(tunnel);
            headers::put_upgrade(&mut parts.headers, protocol);
        }
        ResponseBody::own(Response::from_parts(parts, bytes::Bytes::new()))
    }

    fn fail(
        &self,
        error: &ProxyError,
        mut account: RequestAccount,
        format: ErrorFormat,
    ) -> Response<ResponseBody> {
        account.set_status(error.status.as_u16());
        account.end(error.end, Some(error.text.clone()));
        self.respond(error, format)
    }

    fn respond(&self, error: &ProxyError, format: ErrorFormat) -> Response<ResponseBody> {
        self.proxy.context.metrics.refused(error.word);
        ResponseBody::own(error.response(format))
    }
}

/// Forwards a response to the client.
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
    // Each hop has its own version; the server writes the version of its client.
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, ResponseBody::streamed(body, account, lease, end))
}

/// Builds the request for the next hop.
fn next_request(
    mut parts: Parts,
    upload: RequestBody,
    protocol: Option<header::HeaderValue>,
    gate: Option<Arc<BodyGate>>,
) -> Request<RequestBody> {
    if let Some(protocol) = protocol {
        headers::put_upgrade(&mut parts.headers, protocol);
    }
    let Some(gate) = gate else {
        // The next hop would send `100 Continue` for which no client waits.
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

/// Returns the service of a Host at a shared entry. It reveals no services of other sites: the netmap has
/// only what this site may see.
fn named(view: &NetmapView, host: Option<&str>) -> Result<ServiceName, ProxyError> {
    let host = host.ok_or_else(|| ProxyError::bad_request("the request has no Host"))?;
    let name = headers::without_port(host);
    match view.named(name) {
        Some(DnsNameTarget::Presence(service)) => {
            let protocol = view.presences.get(service).map(|presence| presence.protocol);
            match protocol {
                Some(ServiceProtocol::Http | ServiceProtocol::Grpc) => Ok(service.clone()),
                _ => Err(ProxyError::misdirected(format!("{name} is not an HTTP service"))),
            }
        }
        Some(DnsNameTarget::Node(_) | DnsNameTarget::Host(_)) => {
            Err(ProxyError::misdirected(format!("{name} is a host, not a service")))
        }
        Some(DnsNameTarget::TranslatedPresence(_)) => {
            Err(ProxyError::misdirected(format!("{name} is not an HTTP service")))
        }
        None => Err(ProxyError::unknown_name(format!("no service has the name {name} at this site"))),
    }
}

/// The destination of an allowed request.
enum NextHop<'a> {
    /// The gateway of that site.
    Away(&'a SiteName),
    /// A backend of this site.
    Here(&'a ServiceEntry),
}

impl<'a> NextHop<'a> {
    /// Returns the next hop of an access that was granted by the same netmap.
    fn of(
        view: &'a NetmapView,
        claim: &AccessRequest,
        who: &Principal,
    ) -> Result<NextHop<'a>, PolicyRefusal> {
        let service = claim.service();
        let service = service.ok_or(PolicyRefusal::Malformed { why: MalformedPart::NoService })?;
        let unknown = || PolicyRefusal::NoService { service: service.clone() };
        if let AccessRequest::Use { .. } = claim {
            let presence = view.presences.get(service).ok_or_else(unknown)?;
            if presence.service_site != who.site {
                return Ok(NextHop::Away(&presence.service_site));
            }
        }
        view.services.get(service).map(NextHop::Here).ok_or_else(unknown)
    }
}
