//! A gateway that lies: it has a real token, a real certificate and a real session, and says false things on its streams.
//! The other end refuses each of them, whichever name it claims, and records its true one.

use std::time::Duration;

use causeway_channel::JoinToken;
use causeway_channel::link::{Link, ResetCode, StreamHeader, StreamOrigin};
use causeway_edge::Edge;
use causeway_edge::link::LinkServices;
use causeway_gateway::peers::{CrossingHeader, StreamContent};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::sites::{PATIENCE, Sites, expose, object, policy, service};

/// Its site, its gateway and its host.
const MALLORY: &str = "mallory";

/// The claim that it makes on a stream.
struct Lie {
    /// The sentence that must be true.
    row: &'static str,
    header: StreamHeader,
    code: ResetCode,
    /// The site that must have recorded it, the service, and the text of the reason, one of the words between bars. None: it
    /// never got to a gateway.
    record: Option<(&'static str, &'static str, &'static str)>,
}

fn to_service(home: &str, service: &str, subject: &str, content: StreamContent) -> StreamHeader {
    let client: std::net::SocketAddr = "10.0.0.2:4000".parse().unwrap();
    let who = causeway_gateway::policy::Principal { site: MALLORY.into(), server: Some(subject.into()) };
    CrossingHeader::new(content, client).to_service(&service.into(), &home.into(), &who)
}

fn lies() -> Vec<Lie> {
    let forged = |header: StreamHeader, site: &str| {
        let origin = Some(StreamOrigin { site: site.to_owned(), gateway: site.to_owned() });
        StreamHeader { origin, ..header }
    };
    let bytes = StreamContent::Bytes;
    vec![
        Lie {
            row: "a subject of another site is not its own",
            header: to_service("oslo", "tcp-oslo", "client-berlin", bytes),
            code: ResetCode::NotAllowed,
            // The reason depends on whether its gateway knows the site of that host.
            record: Some((
                "oslo",
                "tcp-oslo",
                "client-berlin is not a host of site mallory|an unknown host at mallory",
            )),
        },
        Lie {
            row: "nobody in particular is nobody whom a policy names",
            header: to_service("oslo", "tcp-oslo", "", bytes),
            code: ResetCode::NotAllowed,
            record: Some(("oslo", "tcp-oslo", "no policy of service tcp-oslo allows")),
        },
        Lie {
            row: "a service that is not exposed to its site is not there for it",
            header: to_service("berlin", "tcp-berlin", "", bytes),
            code: ResetCode::NotAllowed,
            record: Some(("berlin", "tcp-berlin", "service tcp-berlin is not exposed to site mallory")),
        },
        Lie {
            row: "an origin that it writes itself is not believed",
            header: forged(to_service("berlin", "tcp-berlin", "client-oslo", bytes), "oslo"),
            code: ResetCode::NotAllowed,
            record: Some(("berlin", "tcp-berlin", "client-oslo is not a host of site mallory")),
        },
        Lie {
            row: "it is not the cloud",
            header: forged(to_service("berlin", "tcp-berlin", "", bytes), "cloud"),
            code: ResetCode::NotAllowed,
            record: Some(("berlin", "tcp-berlin", "service tcp-berlin is not exposed to site mallory")),
        },
        Lie {
            row: "the cloud's own services ask the same",
            header: to_service("cloud", "tcp-cloud", "client-berlin", bytes),
            code: ResetCode::NotAllowed,
            record: Some(("cloud", "tcp-cloud", "client-berlin is not a host of site mallory")),
        },
        Lie {
            row: "bytes do not slip past the rules of requests",
            header: to_service("oslo", "http-oslo", "", bytes),
            code: ResetCode::Malformed,
            record: Some(("oslo", "http-oslo", "the content does not match the protocol of the service")),
        },
        Lie {
            row: "a service that there is not is nowhere",
            header: to_service("oslo", "tcp-nowhere", "", bytes),
            code: ResetCode::NoRoute,
            record: Some(("oslo", "tcp-nowhere", "there is no service tcp-nowhere here")),
        },
        Lie {
            row: "only replicas forward",
            header: StreamHeader { purpose: 6, ..StreamHeader::default() }.to("berlin", "berlin"),
            code: ResetCode::NotAllowed,
            record: None,
        },
    ]
}

#[test]
fn a_gateway_that_lies_is_refused_by_the_other_end() {
    let Some(sites) = Sites::start("a_gateway_that_lies_is_refused_by_the_other_end") else { return };
    let token: JoinToken = sites.cloud.token(MALLORY).unwrap().parse().unwrap();
    let mut to_mallory = expose("tcp-oslo", MALLORY);
    to_mallory["ePolicys"] = json!([policy("berlin")]);
    let mut honest = expose("honest-oslo", MALLORY);
    honest["ePolicys"] = json!(["everybody-at-mallory"]);
    let mut http = expose("http-oslo", MALLORY);
    http["ePolicys"] = json!(["everybody-at-mallory"]);
    sites.apply(&[
        service("tcp", "oslo", "TCP", 7000),
        service("tcp", "berlin", "TCP", 7000),
        service("tcp", "cloud", "TCP", 7000),
        service("honest", "oslo", "TCP", 7000),
        service("http", "oslo", "HTTP", 8080),
        object("EPolicy", "everybody-at-mallory", json!({"allowedSites": [MALLORY]})),
        to_mallory,
        expose("tcp-berlin", "oslo"),
        expose("tcp-cloud", "berlin"),
        honest,
        http,
    ]);
    let folder = sites.folder.path().join(MALLORY);
    let heard = sites.host(MALLORY).inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let edge = Edge::open(&folder)?;
            edge.enrol_once(&token).await?;
            let (keeper, uplink, wishes) = edge.link(Default::default(), LinkServices::none());
            let stop = CancellationToken::new();
            let talk = async {
                let mut current = uplink.clone();
                while uplink.link().is_none() {
                    current.changed().await;
                }
                let link = uplink.link().unwrap();
                // First the truth, so that it is seen that there is a way; the netmaps may take a moment.
                let truth = || to_service("oslo", "honest-oslo", "", StreamContent::Bytes);
                while say(&link, truth()).await != Ok("server-oslo/hello".to_owned()) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let mut heard = Vec::new();
                for lie in lies() {
                    heard.push(say(&link, lie.header).await);
                }
                stop.cancel();
                heard
            };
            let both = async { tokio::join!(edge.run_linked(keeper, wishes, stop.clone()), talk).1 };
            Ok(tokio::time::timeout(PATIENCE, both).await?)
        })
    });
    for (lie, heard) in lies().into_iter().zip(heard.unwrap()) {
        println!("{}: {heard:?}", lie.row);
        assert_eq!(heard, Err(Some(lie.code)), "{}", lie.row);
        let Some((gateway, service, reason)) = lie.record else { continue };
        let filters = ["--gateway", gateway, "--service", service, "--decision", "deny"];
        let line = sites.await_record(lie.row, &filters, |line| {
            line["reason"].as_str().is_some_and(|told| reason.split('|').any(|word| told.contains(word)))
        });
        assert_eq!(
            (&line["clientSite"], &line["end"]),
            (&json!(MALLORY), &json!("refused")),
            "{}: {line}",
            lie.row
        );
    }
}

/// Opens a stream and speaks to the echo behind it: what came back, or the code it was refused with.
async fn say(link: &Link, header: StreamHeader) -> Result<String, Option<ResetCode>> {
    let mut stream = link.open_stream(header).await.map_err(|_| None)?;
    let mut heard = String::new();
    let spoken = async {
        // The refusal may have come before anything was said.
        let _ = stream.send.write_all(b"hello\n").await;
        let _ = stream.send.shutdown().await;
        stream.recv.read_to_string(&mut heard).await
    };
    match tokio::time::timeout(Duration::from_secs(5), spoken).await {
        Ok(Ok(_)) => Ok(heard.trim_end().to_owned()),
        Ok(Err(error)) => Err(ResetCode::of(&error)),
        Err(_) => Ok("nothing for five seconds".to_owned()),
    }
}
