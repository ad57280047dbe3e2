//! Rows on precedence, on mistakes and where they are shown, and on what the effective form says.

use super::*;

fn layer(text: &str) -> Layer {
    parse("test.toml", text).unwrap()
}

fn variables(pairs: &[(&str, &str)]) -> Result<Layer, String> {
    let lookup =
        |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    layer::environment(&lookup).map_err(|error| error.to_string())
}

#[test]
fn a_stronger_layer_wins_and_the_origin_is_remembered() {
    let check = |file: &str,
                 environment: &[(&str, &str)],
                 flag: Option<&str>,
                 expected: &str,
                 origin: SettingOrigin| {
        let mut flags = Layer::default();
        flags.cloud.api = flag.map(|text| text.parse().unwrap());
        let config = Config::resolve(layer(file), variables(environment).unwrap(), flags);
        assert_eq!(config.cloud.api.value.to_string(), expected);
        assert_eq!(config.cloud.api.origin, origin);
    };
    let file = "[cloud]\napi = \"127.0.0.1:1\"";
    let environment = [("CAUSEWAY_API", "127.0.0.1:2")];
    check("", &[], None, "0.0.0.0:7443", SettingOrigin::Default);
    check(file, &[], None, "127.0.0.1:1", SettingOrigin::File);
    check(file, &environment, None, "127.0.0.1:2", SettingOrigin::Environment);
    check(file, &environment, Some("127.0.0.1:3"), "127.0.0.1:3", SettingOrigin::Flag);
    check("", &environment, None, "127.0.0.1:2", SettingOrigin::Environment);
    check(file, &[("CAUSEWAY_API", "")], None, "127.0.0.1:1", SettingOrigin::File);
}

#[test]
fn every_setting_can_be_given_in_every_layer() {
    let file = layer(
        r#"
        data-dir = "/a"
        [log]
        format = "json"
        filter = "debug"
        [cloud]
        api = "127.0.0.1:1"
        channel = "[::1]:2"
        admin = "127.0.0.1:3"
        connect = "127.0.0.1:5"
        kubernetes = "/cluster"
        join-service-accounts = ["causeway-system/causeway-edge"]
        join-audience = "example.org/join"
        join-default-site = "oslo"
        aggregated = "127.0.0.1:8"
        requestheader-ca = "/ca"
        requestheader-names = ["front-proxy-client", "system:auth-proxy"]
        metrics-site-labels = ["region", "example.org/tier"]
        connect-allow = ["hooks.example.org:443", "10.96.0.0/12:443"]
        advertise = ["cloud.example.org:7444", "[2001:db8::1]:7444"]
        peer-address = "10.0.0.1:7444"
        store = "etcd=https://a:2379,https://b:2379"
        etcd-ca = "/ca"
        etcd-certificate = "/cert"
        etcd-key = "/key"
        seal-key = "/seal"
        api-names = ["api.example.org", "203.0.113.9"]
        api-connections-per-address = 7
        community-peers-max = 9
        expired-grace = "0"
        audit-file-bytes-max = 1000
        audit-files-max = 2
        handshakes-per-second = 1
        handshakes-per-address = 2
        half-open-max = 3
        links-max = 4
        streams-max = 5
        stream-window-bytes = 6
        drain = "5s"
        [edge]
        admin = "127.0.0.1:4"
        drain = "6s"
        transport = "tcp"
        proxy = "http://proxy.example.org:3128"
        join-file = "/token"
        join-service-account = "/service-account"
        join-endpoints = ["cloud.example.org:7444"]
        join-ca = ["0000000000000000000000000000000000000000000000000000000000000001"]
        [gateway]
        dns = ["127.0.0.1:5353", "10.0.0.2"]
        dns-upstream = ["10.0.0.1", "[fd00::1]:53"]
        presence = "host"
        ports = ["camera=127.0.0.1:8080"]
        entry-http = "127.0.0.1:8081"
        entry-tls = "127.0.0.1:8443"
        backends-allow = ["169.254.169.254:80"]
        backends-deny = ["10.0.0.0/8", "[fd00::/8]:1-1023"]
        services-off = true
        [tunnel]
        off = true
        listen = "127.0.0.1:6"
        mtu = 1400
        relay-mbit-per-second = 90
        device = "causeway-l3-x"
        datapath = "ovs"
        bridge = "br0"
        [kubernetes]
        listen = "127.0.0.1:7"
        pod-listen = "169.254.20.11:7"
        client-certificate = "/c"
        client-key = "/k"
        unused = "1h"
        pin = ["v1/configmaps?namespace=shop&labelSelector=tier=edge"]
        pin-node = "n1"
        bytes-per-day = 1000000
        bytes-max = 2000000
        offline-writes = ["v1/configmaps", "apps/v1/deployments"]
        [traces]
        url = "http://127.0.0.1:4318/v1/traces"
        token-file = "/t"
        ca = "/ca"
        ratio = 0.25
        [audit.export]
        bytes-max = 1000000
        [audit.export.files]
        folder = "/f"
        [audit.export.webhook]
        url = "https://hooks.example.org/audit"
        token-file = "/t"
        ca = "/ca"
        [audit.export.syslog]
        endpoint = "logs.example.org:6514"
        ca = "/ca"
        certificate = "/c"
        key = "/k"
        [audit.export.otlp]
        url = "http://127.0.0.1:4318/v1/logs"
        token-file = "/t"
        ca = "/ca"
        "#,
    );
    let none = Layer::default;
    let config = Config::resolve(file, none(), none());
    assert!(
        config.settings().iter().all(|(.., origin)| *origin == SettingOrigin::File),
        "{}",
        config.to_toml()
    );

    let names = [
        ("DATA_DIR", "/a"),
        ("LOG_FORMAT", "json"),
        ("LOG", "debug"),
        ("API", "127.0.0.1:1"),
        ("CHANNEL", "127.0.0.1:2"),
        ("ADMIN", "127.0.0.1:3"),
        ("CONNECT", "127.0.0.1:5"),
        ("KUBERNETES", "/cluster"),
        ("AGGREGATED", "127.0.0.1:8"),
        ("REQUESTHEADER_CA", "/ca"),
        ("REQUESTHEADER_NAMES", "front-proxy-client,system:auth-proxy"),
        ("METRICS_SITE_LABELS", "region,example.org/tier"),
        ("CONNECT_ALLOW", "*.svc:443,10.96.0.0/12:443"),
        ("ADVERTISE", "a:1,b:2"),
        ("PEER_ADDRESS", "c:3"),
        ("STORE", "sqlite"),
        ("ETCD_CA", "/ca"),
        ("ETCD_CERTIFICATE", "/c"),
        ("ETCD_KEY", "/k"),
        ("SEAL_KEY", "/s"),
        ("JOIN_FILE", "/token"),
        ("JOIN_SERVICE_ACCOUNT", "/service-account"),
        ("JOIN_ENDPOINTS", "cloud.example.org:7444"),
        ("JOIN_CA", "0000000000000000000000000000000000000000000000000000000000000001"),
        ("JOIN_SERVICE_ACCOUNTS", "causeway-system/causeway-edge"),
        ("JOIN_AUDIENCE", "example.org/join"),
        ("JOIN_DEFAULT_SITE", "oslo"),
        ("AUDIT_EXPORT_BYTES_MAX", "1000"),
        ("AUDIT_EXPORT_FILES_FOLDER", "/f"),
        ("AUDIT_EXPORT_WEBHOOK_URL", "https://hooks.example.org/audit"),
        ("AUDIT_EXPORT_WEBHOOK_TOKEN_FILE", "/t"),
        ("AUDIT_EXPORT_WEBHOOK_CA", "/ca"),
        ("AUDIT_EXPORT_SYSLOG_ENDPOINT", "logs.example.org:6514"),
        ("AUDIT_EXPORT_SYSLOG_CA", "/ca"),
        ("AUDIT_EXPORT_SYSLOG_CERTIFICATE", "/c"),
        ("AUDIT_EXPORT_SYSLOG_KEY", "/k"),
        ("AUDIT_EXPORT_OTLP_URL", "http://127.0.0.1:4318/v1/logs"),
        ("AUDIT_EXPORT_OTLP_TOKEN_FILE", "/t"),
        ("AUDIT_EXPORT_OTLP_CA", "/ca"),
        ("API_NAMES", "api.example.org,2001:db8::1"),
        ("API_CONNECTIONS_PER_ADDRESS", "7"),
        ("COMMUNITY_PEERS_MAX", "9"),
        ("EXPIRED_GRACE", "0"),
        ("AUDIT_FILE_BYTES_MAX", "1"),
        ("AUDIT_FILES_MAX", "2"),
        ("HANDSHAKES_PER_SECOND", "1"),
        ("HANDSHAKES_PER_ADDRESS", "2"),
        ("HALF_OPEN_MAX", "3"),
        ("LINKS_MAX", "4"),
        ("STREAMS_MAX", "5"),
        ("STREAM_WINDOW_BYTES", "6"),
        ("DRAIN", "5s"),
        ("TRANSPORT", "quic"),
        ("PROXY", "http://proxy.example.org:3128"),
        ("DNS", "off"),
        ("DNS_UPSTREAM", "10.0.0.1,fd00::1"),
        ("PRESENCE", "room"),
        ("PORTS", "camera=127.0.0.1:8080,shop=[::1]:81"),
        ("ENTRY_HTTP", "127.0.0.1:8081"),
        ("ENTRY_TLS", "127.0.0.1:8443"),
        ("BACKENDS_ALLOW", "169.254.169.254:80"),
        ("BACKENDS_DENY", "10.0.0.0/8,[fd00::/8]:1-1023"),
        ("SERVICES_OFF", "true"),
        ("TRACES_URL", "http://127.0.0.1:4318/v1/traces"),
        ("TRACES_TOKEN_FILE", "/t"),
        ("TRACES_CA", "/ca"),
        ("TRACES_RATIO", "0.25"),
        ("TUNNEL", "127.0.0.1:6"),
        ("TUNNEL_OFF", "true"),
        ("TUNNEL_MTU", "1400"),
        ("TUNNEL_RELAY_MBIT_PER_SECOND", "90"),
        ("TUNNEL_DEVICE", "causeway-l3-x"),
        ("DATAPATH", "ovs"),
        ("BRIDGE", "br0"),
        ("KUBERNETES_LISTEN", "127.0.0.1:7"),
        ("KUBERNETES_POD_LISTEN", "169.254.20.11:7"),
        ("KUBERNETES_CLIENT_CERTIFICATE", "/c"),
        ("KUBERNETES_CLIENT_KEY", "/k"),
        ("KUBERNETES_UNUSED", "1h"),
        ("KUBERNETES_PIN", "v1/configmaps?namespace=shop&labelSelector=tier=edge"),
        ("KUBERNETES_PIN_NODE", "n1"),
        ("KUBERNETES_BYTES_PER_DAY", "1000000"),
        ("KUBERNETES_BYTES_MAX", "2"),
        ("KUBERNETES_OFFLINE_WRITES", "v1/configmaps,apps/v1/deployments"),
    ];
    let names: Vec<(String, &str)> = names.map(|(name, value)| (format!("CAUSEWAY_{name}"), value)).to_vec();
    let names: Vec<(&str, &str)> = names.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let config = Config::resolve(none(), variables(&names).unwrap(), none());
    assert!(
        config.settings().iter().all(|(.., origin)| *origin == SettingOrigin::Environment),
        "{}",
        config.to_toml()
    );
}

#[test]
fn the_earlier_name_of_a_presence_mode_means_the_same() {
    for text in ["namespace", "room"] {
        let mode: PresenceModeSetting = text.parse().unwrap();
        assert_eq!(mode.to_string(), "namespace", "{text}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_place() {
    let check = |text: &str, place: &str, why: &str| {
        let problem = parse("test.toml", text).unwrap_err().to_string();
        assert!(problem.starts_with(&format!("test.toml:{place}: ")), "{text}: {problem}");
        assert!(problem.contains(why), "{text}: {problem}");
    };
    check("[cloud]\napy = \"x\"", "2:1", "unknown field `apy`");
    check("[clout]", "1:2", "unknown field `clout`");
    check("[cloud]\napi = \"7443\"", "2:7", "write IP:PORT in quotes");
    check("[cloud]\n\napi = 7443", "3:7", "write IP:PORT in quotes");
    check("[cloud]\ndrain = \"soon\"", "2:9", "is no duration");
    check("[cloud]\nstore = \"redis\"", "2:9", "use `sqlite` or `etcd=");
    check("[edge]\ntransport = \"udp\"", "2:13", "use `auto`, `quic` or `tcp`");
    check("[edge]\nproxy = \"socks5://a:1\"", "2:9", "proxy");
    check("[audit.export.otlp]\nurl = \"a:4318\"", "2:7", "http:// or https://");
    check("[audit.export.webhook]\nurl = \"https://user:pass@a/\"", "2:7", "token-file");
    check("[cloud]\nadvertise = [\"a:1\", \"b\"]", "2:13", "write HOST:PORT");
    check("[gateway]\ndns = [\"localhost\"]", "2:7", "write IP or IP:PORT, or `off`");
    check("[gateway]\npresence = \"no\"", "2:12", "use `auto`, `namespace`, `host` or `off`");
    check("[gateway]\nports = [\"camera\"]", "2:9", "write SERVICE=IP:PORT");
    check("[gateway]\ndns-upstream = [\"off\"]", "2:16", "write IP or IP:PORT");
    check("[gateway]\nbackends-deny = [\"metadata\"]", "2:17", "write an address or a network");
    check("[gateway]\nbackends-allow = [\"fd00::/8:80\"]", "2:18", "needs brackets around its address");
    check("[cloud]\napi = \"127.0.0.1:1\"\napi = \"127.0.0.1:2\"", "3:1", "duplicate key");
    check("[cloud\n", "1:7", "");
}

#[test]
fn a_wrong_variable_is_named() {
    let error = variables(&[("CAUSEWAY_CHANNEL", "nonsense")]).unwrap_err();
    assert!(error.contains("CAUSEWAY_CHANNEL=nonsense: write IP:PORT"), "{error}");
    let error = variables(&[("CAUSEWAY_LINKS_MAX", "0")]).unwrap_err();
    assert!(error.contains("write a whole number from 1"), "{error}");
    let error = variables(&[("CAUSEWAY_TUNNEL_OFF", "yes")]).unwrap_err();
    assert!(error.contains("write true or false"), "{error}");
    let error = variables(&[("CAUSEWAY_ADVERTISE", "a:1,b:x")]).unwrap_err();
    assert!(error.contains("is no endpoint"), "{error}");
}

#[test]
fn a_pin_is_written_as_a_request_of_the_api() {
    let check = |text: &str, expected: Result<&str, &str>| {
        match (text.parse::<PinSetting>(), expected) {
            (Ok(pin), Ok(shown)) => assert_eq!(pin.0.to_string(), shown, "{text}"),
            (Err(error), Err(why)) => assert!(error.contains(why), "{text}: {error}"),
            (found, expected) => assert_eq!(found.is_ok(), expected.is_ok(), "{text}: {found:?}"),
        }
        if let Ok(pin) = text.parse::<PinSetting>() {
            assert_eq!(pin.to_string().parse::<PinSetting>(), Ok(pin), "{text}");
        }
    };
    check("v1/nodes", Ok("v1/nodes"));
    check("apps/v1/deployments?namespace=shop", Ok("apps/v1/deployments namespace shop"));
    check("v1/pods?labelSelector=a%3Db%2Cc%20in%20(d)", Ok("v1/pods labels a=b,c in (d)"));
    check("v1/pods?fieldSelector=spec.nodeName=n1", Ok("v1/pods fields spec.nodeName=n1"));
    check("pods", Err("names no resource"));
    check("v1/pods?name=a", Err("`name` in `v1/pods?name=a` is unknown"));
    check("v1/pods?namespace=a/b", Err("cannot exist"));
}

#[test]
fn values_that_do_not_go_together_are_refused() {
    let check = |text: &str, why: &str| {
        let config = Config::resolve(layer(text), Layer::default(), Layer::default());
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    };
    check("[cloud]\napi = \"1.2.3.4:5\"\nchannel = \"1.2.3.4:5\"", "`api` and `channel` are both 1.2.3.4:5");
    check("[cloud]\netcd-key = \"/k\"", "belong together");
    check("[cloud]\naggregated = \"127.0.0.1:1\"", "`aggregated` needs `requestheader-ca`");
    check("[cloud]\naggregated = \"127.0.0.1:1\"\nkubernetes = \"/k\"", "`aggregated` needs");
    check("[cloud]\njoin-service-accounts = [\"a/b\"]", "needs `kubernetes`");
    check("[cloud]\njoin-audience = \"\"", "`join-audience` is empty");
    for site in ["cloud", "", "a/b"] {
        check(&format!("[cloud]\njoin-default-site = \"{site}\""), "`join-default-site` is");
    }
    check("[kubernetes]\npin = [\"v1/nodes\"]", "`pin` needs `pin-node`");
    check("[kubernetes]\npod-listen = \"0.0.0.0:6444\"", "`pod-listen` is 0.0.0.0:6444");
    check("[kubernetes]\npod-listen = \"127.0.0.1:6444\"", "`listen` and `pod-listen` are both");
    check("[edge]\njoin-service-account = \"/t\"", "needs `join-endpoints` and `join-ca`");
    check(
        "[edge]\njoin-service-account = \"/t\"\njoin-endpoints = [\"a:1\"]",
        "needs `join-endpoints` and `join-ca`",
    );
    check("[traces]\nratio = 1.5", "from 0 to 1");
    check("[audit.export.syslog]\nkey = \"/k\"", "`audit.export.syslog` belong together");
    check("[gateway]\ndns = [\"off\", \"127.0.0.1\"]", "off and has addresses");
    check("[log]\nformat = \"xml\"", "log format `xml`");
    check("[log]\nfilter = \"causeway=loud\"", "causeway=loud");
    let free = layer("[cloud]\napi = \"127.0.0.1:0\"\nchannel = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"");
    Config::resolve(free, Layer::default(), Layer::default()).check().unwrap();
}

#[test]
fn the_effective_configuration_is_a_file_again_and_keeps_passwords_to_itself() {
    let file = layer("[cloud]\nstore = \"etcd=https://root:secret@a:2379\"");
    let config = Config::resolve(file, Layer::default(), Layer::default());
    let text = config.to_toml();
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("store = \"etcd=https://***@a:2379\""), "{text}");
    assert!(text.contains("# file") && text.contains("# default"));
    parse("again.toml", &text).unwrap();
    assert_eq!(config.to_json()["cloud"]["api"], "0.0.0.0:7443");
}

#[test]
fn what_is_printed_can_be_read_whatever_characters_it_holds() {
    let odd = "a\u{7f}\u{0}\u{1b}\n\"'\\ä";
    let environment = variables(&[("CAUSEWAY_DATA_DIR", odd), ("CAUSEWAY_AUDIT_FILES_MAX", "7")]).unwrap();
    let config = Config::resolve(Layer::default(), environment, Layer::default());
    let again = Config::resolve(layer(&config.to_toml()), Layer::default(), Layer::default());
    assert_eq!(again.to_json(), config.to_json());
}
