//! Spans of both gateways of a crossing at a real HTTP collector: a TCP connection and an HTTP request from a client in Oslo, over a link,
//! to backends in Berlin.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::{Link, Stream, StreamHeader, StreamPurpose, Transport};
use causeway_daemon::collector::HttpTarget;
use causeway_gateway::audit::NullAuditSink;
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::trace::TraceOptions;
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::{
    BackendEndpoint, ExposureEntry, GatewayEntry, Generation, NetmapEntry, NetmapView, PolicyEntry,
    PresenceEntry, PresenceIp, ServiceEntry, ServiceProtocol,
};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::links;

const DEADLINE: Duration = Duration::from_secs(30);
const SERVICES: [(&str, ServiceProtocol, u16); 2] =
    [("raw", ServiceProtocol::Tcp, 7001), ("web", ServiceProtocol::Http, 7002)];
const CLIENT_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A loopback address that no other test process uses.
fn presence(port: u16) -> SocketAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::new(IpAddr::from([127, 40u8.wrapping_add(high), low, 78]), port)
}

fn view(site: &str, backend: SocketAddr) -> Arc<NetmapView> {
    let mut facts = vec![
        NetmapEntry::Gateway(GatewayEntry::named(format!("{site}-1").as_str(), site)),
        NetmapEntry::Policy(PolicyEntry {
            name: "guests".into(),
            servers: vec![],
            sites: vec!["oslo".into()],
            limits: None,
            http: vec![],
            ports: Vec::new(),
        }),
    ];
    for (name, protocol, port) in SERVICES {
        facts.push(match site {
            "berlin" => NetmapEntry::Service(ServiceEntry {
                name: name.into(),
                port,
                protocol,
                backends: vec![BackendEndpoint::Address(backend.ip(), backend.port())],
                domain_name: None,
                health_check: None,
                backend_tls: None,
                proxy_protocol: false,
                exposures: vec![ExposureEntry {
                    sites: vec!["oslo".into()],
                    policies: vec!["guests".into()],
                }],
            }),
            _ => NetmapEntry::Presence(PresenceEntry {
                service: name.into(),
                addresses: vec![PresenceIp(presence(port).ip())],
                port,
                protocol,
                brokers: 0,
                names: vec![],
                service_site: "berlin".into(),
                policies: vec!["guests".into()],
            }),
        });
    }
    let generation = Generation { epoch: 1, revision: 1 };
    Arc::new(NetmapView::of_entries(generation, &facts).unwrap())
}

struct OverLink(Option<Link>);

impl GatewayPeers for OverLink {
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>> {
        Box::pin(async move {
            let away = |why: String| PeerError::Away { site: "berlin".into(), why };
            let link = self.0.as_ref().ok_or_else(|| away("no link".to_owned()))?;
            link.open_stream(header).await.map_err(|error| away(error.to_string()))
        })
    }
}

/// Answers HTTP requests with the traceparent that arrived, and remembers what was posted.
async fn http_server() -> (SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let posted = Arc::new(Mutex::new(Vec::new()));
    let kept = posted.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let kept = kept.clone();
                async move {
                    let trace = request.headers().get("traceparent").cloned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    kept.lock().unwrap().extend(serde_json::from_slice::<Value>(&body));
                    let trace =
                        trace.map(|trace| Bytes::copy_from_slice(trace.as_bytes())).unwrap_or_default();
                    Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::new(trace)))
                }
            });
            let serving =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { drop(serving.await) });
        }
    });
    (address, posted)
}

fn start(
    view: Arc<NetmapView>,
    link: Option<Link>,
    collector: SocketAddr,
    stop: &CancellationToken,
) -> Gateway {
    let (netmaps, netmap) = watch::channel(view);
    let url = format!("http://{collector}/v1/traces").parse().unwrap();
    let traces = Some(TraceOptions { target: HttpTarget { url, token_file: None, ca: None }, ratio: 1.0 });
    let options = GatewayOptions { traces, ..GatewayOptions::default() };
    let peers = Arc::new(OverLink(link));
    let audit = Arc::new(NullAuditSink);
    let gateway = Gateway::new(GatewayParts { netmaps: netmap, peers, audit, options, role_facts: None });
    let (run, stop) = (gateway.clone(), stop.clone());
    tokio::spawn(async move {
        let _netmaps = netmaps;
        run.run(stop).await;
    });
    gateway
}

/// The spans that the collector has received, as (trace, parent, span, name, gateway).
fn spans(posted: &Mutex<Vec<Value>>) -> Vec<[String; 5]> {
    let posted = posted.lock().unwrap();
    let spans = posted.iter().flat_map(|request| {
        request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned().unwrap_or_default()
    });
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    spans
        .map(|span| {
            let attributes = span["attributes"].as_array().unwrap();
            let gateway = attributes.iter().find(|attribute| attribute["key"] == "causeway.gateway").unwrap();
            let [trace, parent, id, name] =
                ["traceId", "parentSpanId", "spanId", "name"].map(|field| text(&span[field]));
            [trace, parent, id, name, text(&gateway["value"]["stringValue"])]
        })
        .collect()
}

/// Waits until both gateways have exported a span of this name, and returns those of Oslo and Berlin.
async fn both(posted: &Mutex<Vec<Value>>, name: &str) -> [[String; 5]; 2] {
    let waiting = async {
        loop {
            let found = spans(posted);
            let of = |gateway: &str| found.iter().find(|span| span[3] == name && span[4] == gateway).cloned();
            if let (Some(oslo), Some(berlin)) = (of("oslo-1"), of("berlin-1")) {
                return [oslo, berlin];
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(DEADLINE, waiting).await;
    found.unwrap_or_else(|_| panic!("{name}: {:?}", spans(posted)))
}

async fn request(to: SocketAddr, header: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let text = format!("GET /page HTTP/1.1\r\nHost: web\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_spans_of_both_gateways_have_one_trace_id() {
    let (backend, _) = http_server().await;
    let (collector, posted) = http_server().await;
    let (near, far, _port) = links::pair(Transport::Tcp).await;
    let _control = near.open_stream(StreamHeader::new(StreamPurpose::Control)).await.unwrap();
    let begun = far.accept_stream().await.unwrap();
    let stop = CancellationToken::new();
    let berlin = start(view("berlin", backend), None, collector, &stop);
    let oslo = start(view("oslo", backend), Some(near), collector, &stop);
    tokio::spawn(async move {
        let _begun = begun;
        while let Ok((header, stream)) = far.accept_stream().await {
            berlin.serve("oslo".into(), header, stream);
        }
    });
    let mut report = oslo.listening();
    let listening = report.wait_for(|report| report.listening == SERVICES.len());
    tokio::time::timeout(DEADLINE, listening).await.unwrap().unwrap();

    // A connection: the context crosses in the header of the stream.
    assert!(request(presence(7001), "").await.starts_with("HTTP/1.1 200"));
    let [oslo_span, berlin_span] = both(&posted, "tcp raw").await;
    assert_eq!(oslo_span[0], berlin_span[0], "one trace");
    assert_eq!(
        (oslo_span[1].as_str(), &berlin_span[1]),
        ("", &oslo_span[2]),
        "Berlin's parent is Oslo's span"
    );

    // A request with a context: the client's trace goes on, through both gateways to the backend.
    let header = format!("traceparent: 00-{CLIENT_TRACE}-00f067aa0ba902b7-01\r\n");
    let answer = request(presence(7002), &header).await;
    let [oslo_span, berlin_span] = both(&posted, "GET web").await;
    assert_eq!([&oslo_span[0], &berlin_span[0]], [CLIENT_TRACE; 2]);
    assert_eq!(oslo_span[1], "00f067aa0ba902b7");
    assert_eq!(berlin_span[1], oslo_span[2]);
    let seen = format!("00-{CLIENT_TRACE}-{}-01", berlin_span[2]);
    assert!(answer.ends_with(&seen), "the backend sees Berlin's span: {answer}");
    stop.cancel();
}
