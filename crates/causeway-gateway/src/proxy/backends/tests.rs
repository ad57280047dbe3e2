//! Endpoints over loopback: selection, failure and recovery.

use causeway_channel::link::ResetCode;
use causeway_netmap::BackendHealthCheckType;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::dial::{DialRules, OwnListeners};

fn service(backends: &[SocketAddr]) -> ServiceEntry {
    ServiceEntry {
        name: "web".into(),
        port: 80,
        protocol: ServiceProtocol::Tcp,
        backends: backends
            .iter()
            .map(|address| BackendEndpoint::Address(address.ip(), address.port()))
            .collect(),
        domain_name: None,
        health_check: None,
        backend_tls: None,
        proxy_protocol: false,
        exposures: Vec::new(),
    }
}

fn backends() -> Arc<BackendSelector> {
    Arc::new(BackendSelector::new(&GatewayOptions::default(), BackendDialer::default()))
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A denied address is reported at once and refused with its reason; a name is checked by the addresses it
/// resolves to.
#[tokio::test]
async fn a_backend_that_may_not_be_dialled_is_told_and_refused() {
    let ((_own, ours), (_other, fine)) = (listener().await, listener().await);
    let own = OwnListeners::default();
    own.keep("admin", SocketProtocol::Tcp, ours);
    let backends =
        BackendSelector::new(&GatewayOptions::default(), BackendDialer::new(DialRules::default(), own));
    let check =
        async |service: &ServiceEntry, told: Option<(usize, &str)>, dialled: Result<SocketAddr, &str>| {
            backends.follow(&view(service));
            let found = backends.dial_for(service, None).await;
            match (found, dialled) {
                (Ok(found), Ok(address)) => assert_eq!(found.stream.peer_addr().unwrap(), address),
                (Err(refusal), Err(why)) => {
                    assert!(refusal.to_string().contains(why), "{refusal}");
                    assert_eq!((refusal.word(), refusal.code()), ("backend-denied", ResetCode::BackendDown));
                }
                (found, dialled) => panic!("{:?} instead of {dialled:?}", found.err()),
            }
            let outage = backends.outages().remove("web");
            let outage = outage.as_ref().map(|outage| (outage.up, outage.why.as_str()));
            assert_eq!(outage.map(|(up, _)| up), told.map(|(up, _)| up), "{outage:?}");
            let why = told.map_or("", |(_, why)| why);
            assert!(outage.is_none_or(|(_, said)| said.contains(why)), "{outage:?}");
        };
    let own_why = "a listener of the gateway itself (admin)";
    check(&service(&[ours]), Some((0, own_why)), Err(own_why)).await;
    check(&service(&[ours, fine]), Some((1, own_why)), Ok(fine)).await;
    check(&service(&[fine]), None, Ok(fine)).await;
    let link_local = "it is a link-local address";
    let metadata = "169.254.169.254:80".parse().unwrap();
    check(&service(&[metadata]), Some((0, link_local)), Err(link_local)).await;
    let mut named = service(&[]);
    named.backends = vec![BackendEndpoint::Host(DnsName::new("localhost"), ours.port())];
    named.backends.push(BackendEndpoint::Address(ours.ip(), ours.port()));
    // `localhost` may have an IPv6 address too, without a listener: then a connection fails, which is not a
    // denial.
    let found = backends.dial_for(&named, None).await;
    assert!(found.is_err(), "the address behind the name is judged");
}

#[tokio::test]
async fn a_backend_of_datagrams_that_may_not_be_dialled_is_told() {
    let own = OwnListeners::default();
    own.keep("dns", SocketProtocol::Udp, "127.0.0.1:5353".parse().unwrap());
    let backends =
        BackendSelector::new(&GatewayOptions::default(), BackendDialer::new(DialRules::default(), own));
    let mut names = service(&["127.0.0.1:5353".parse().unwrap()]);
    backends.follow(&view(&names));
    assert!(backends.outages().is_empty(), "over TCP nothing of ours listens there");
    names.protocol = ServiceProtocol::Udp;
    backends.follow(&view(&names));
    assert!(backends.outages()["web"].denied);
}

fn view(service: &ServiceEntry) -> NetmapView {
    let mut view = NetmapView::default();
    view.services.insert(service.name.clone(), service.clone());
    view
}

#[tokio::test]
async fn connections_go_where_there_are_fewest() {
    let ((_one, first), (_two, second)) = (listener().await, listener().await);
    let (backends, service) = (backends(), service(&[first, second]));
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(backends.dial_for(&service, None).await.unwrap());
    }
    let at = |address| held.iter().filter(|dialled| dialled.stream.peer_addr().unwrap() == address).count();
    assert_eq!((at(first), at(second)), (5, 5));
    // The connections of the first endpoint end; the next four go there.
    held.retain(|dialled| dialled.stream.peer_addr().unwrap() == second);
    for _ in 0..4 {
        held.push(backends.dial_for(&service, None).await.unwrap());
    }
    let at = |address| held.iter().filter(|dialled| dialled.stream.peer_addr().unwrap() == address).count();
    assert_eq!((at(first), at(second)), (4, 5));
}

#[tokio::test]
async fn one_that_dies_is_left_out_and_comes_back_and_no_client_notices() {
    let ((one, first), (_two, second)) = (listener().await, listener().await);
    let (backends, service) = (backends(), service(&[first, second]));
    backends.follow(&view(&service));
    let stop = CancellationToken::new();
    let (running, until) = (backends.clone(), stop.clone());
    let running = tokio::spawn(async move { running.run(until).await });
    drop(one);
    for _ in 0..10 {
        assert_eq!(backends.dial_for(&service, None).await.unwrap().stream.peer_addr().unwrap(), second);
    }
    let is_used = |address: SocketAddr| {
        let shown = backends.shown();
        let backend = BackendEndpoint::Address(address.ip(), address.port());
        shown.iter().any(|(_, known, _, is_used)| *known == backend && *is_used)
    };
    assert!(!is_used(first) && is_used(second));
    let _one = TcpListener::bind(first).await.unwrap();
    eventually("it is asked in the background and back", || is_used(first)).await;
    let seen: Vec<SocketAddr> = [
        backends.dial_for(&service, None).await.unwrap().stream.peer_addr().unwrap(),
        backends.dial_for(&service, None).await.unwrap().stream.peer_addr().unwrap(),
    ]
    .into();
    assert!(seen.contains(&first), "{seen:?}");
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn when_all_are_down_that_is_said_and_the_first_to_return_is_found_at_once() {
    let ((one, first), (two, second)) = (listener().await, listener().await);
    let (backends, service) = (backends(), service(&[first, second]));
    drop((one, two));
    for _ in 0..3 {
        let refused = backends.dial_for(&service, None).await;
        assert_eq!(refused.err(), Some(PolicyRefusal::BackendDown { service: "web".into() }));
    }
    // No probe runs: the client itself finds out.
    let _two = TcpListener::bind(second).await.unwrap();
    assert_eq!(backends.dial_for(&service, None).await.unwrap().stream.peer_addr().unwrap(), second);
}

#[tokio::test]
async fn a_health_check_over_http_decides_who_is_used() {
    let ((one, first), (two, second)) = (listener().await, listener().await);
    let answering = |listener: TcpListener, answer: &'static str| async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 512];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /healthz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    let well = tokio::spawn(answering(one, "HTTP/1.1 302 elsewhere\r\n\r\n"));
    let ill = tokio::spawn(answering(two, "HTTP/1.1 500 no\r\n\r\n"));
    let check = BackendHealthCheck {
        kind: BackendHealthCheckType::Http,
        path: "/healthz".into(),
        interval_seconds: 1,
    };
    let service = ServiceEntry { health_check: Some(check), ..service(&[first, second]) };
    let backends = backends();
    backends.follow(&view(&service));
    let stop = CancellationToken::new();
    let (running, until) = (backends.clone(), stop.clone());
    let running = tokio::spawn(async move { running.run(until).await });
    let used = || backends.shown().iter().map(|(_, _, _, is_used)| *is_used).collect::<Vec<_>>();
    eventually("the second is left out", || used() == [true, false]).await;
    stop.cancel();
    running.await.unwrap();
    well.abort();
    ill.abort();
}

#[tokio::test]
async fn a_name_is_resolved_and_a_backend_is_told_the_client_if_it_wants_to_know() {
    let (listener, address) = listener().await;
    let host = BackendEndpoint::Host(DnsName::new("localhost"), address.port());
    let service = ServiceEntry { backends: vec![host], proxy_protocol: true, ..service(&[]) };
    let client: SocketAddr = "10.9.8.7:6543".parse().unwrap();
    let dialled = backends().dial_for(&service, Some(client)).await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    drop(dialled);
    let mut heard = Vec::new();
    accepted.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, header::encode(Some(client), address));
}
