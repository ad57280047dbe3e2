//! Join tokens as people paste them: whole, cut, wrapped, mistyped.

use proptest::prelude::*;

use super::*;

fn token() -> JoinToken {
    JoinToken {
        secret: TokenSecret([7; 32]),
        endpoints: vec!["cloud.example:7444".parse().unwrap(), "[2001:db8::1]:7444".parse().unwrap()],
        authorities: vec![KeyHash::of_spki(b"ca")],
        peer: PeerId::new("Tokyo", "Gateway1").unwrap(),
    }
}

fn parse(text: &str) -> Result<JoinToken, TokenError> {
    text.parse()
}

#[test]
fn a_token_survives_its_text() {
    let text = token().to_text();
    assert!(text.starts_with("cwj1.") && !text.contains(char::is_whitespace));
    assert!(text.len() < 300, "one line to paste: {}", text.len());
    assert_eq!(parse(&text), Ok(token()));
    assert_eq!(parse(&format!("  \n{text}\r\n ")), Ok(token()), "white space at the ends");
}

#[test]
fn the_secret_is_never_shown() {
    let shown = format!("{:?}", token());
    assert!(shown.contains("Secret(…)") && !shown.contains('7'.to_string().repeat(2).as_str()), "{shown}");
    // An error must not repeat what was pasted: it may be a secret of another kind.
    let error = parse("hunter2-is-my-password").unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2-"), "{error}");
}

#[test]
fn each_mistake_is_named() {
    let text = token().to_text();
    let row = |text: &str, expected: TokenError| assert_eq!(parse(text), Err(expected), "{text}");
    row("", TokenError::Empty);
    row(" \n", TokenError::Empty);
    row("cwa1.AAAA", TokenError::ApiToken);
    row("cwj2.AAAA", TokenError::Version { found: "cwj2.".into() });
    row("hello", TokenError::NotAToken { found: "hello".into() });
    row("cwj1", TokenError::Truncated { missing: 4 });
    row("cwj1.", TokenError::Truncated { missing: 6 });
    row(&format!("{} {}", &text[..40], &text[40..]), TokenError::Broken { after: 40 });
    row(&format!("{}\n{}", &text[..76], &text[76..]), TokenError::Broken { after: 76 });
    row(&format!("{}\"", text), TokenError::Character { found: '"', after: text.len() });
    row(&format!("{text}AAAA"), TokenError::TooLong { extra: 3 });
    row(&format!("cwj1.{}", "A".repeat(9000)), TokenError::TooLong { extra: 9000 - 8192 });

    let mut swapped = text.clone();
    swapped.replace_range(60..61, if &text[60..61] == "A" { "B" } else { "A" });
    assert_eq!(parse(&swapped), Err(TokenError::Checksum));
    for cut in 6..text.len() {
        assert!(matches!(parse(&text[..cut]), Err(TokenError::Truncated { .. })), "cut after {cut}");
    }
}

#[test]
fn well_formed_nonsense_is_refused() {
    let seal = |body: Body| {
        let body = body.encode_to_vec();
        let mut bytes = (body.len() as u16).to_be_bytes().to_vec();
        bytes.extend(body);
        let checksum = sha256(&bytes);
        bytes.extend(&checksum[..4]);
        format!("cwj1.{}", URL_SAFE_NO_PAD.encode(bytes))
    };
    let good = Body {
        secret: vec![1; 32],
        endpoints: vec!["a:1".into()],
        authorities: vec![vec![2; 32]],
        site: "s".into(),
        gateway: "g".into(),
    };
    assert!(parse(&seal(good.clone())).is_ok());
    let row = |change: &dyn Fn(&mut Body)| {
        let mut body = good.clone();
        change(&mut body);
        assert!(matches!(parse(&seal(body.clone())), Err(TokenError::Content(_))), "{body:?}");
    };
    row(&|body| body.secret.truncate(31));
    row(&|body| body.endpoints.clear());
    row(&|body| body.endpoints = vec!["a:1".into(); 17]);
    row(&|body| body.endpoints = vec!["a".into()]);
    row(&|body| body.authorities.clear());
    row(&|body| body.authorities = vec![vec![2; 20]]);
    row(&|body| body.site = "a/b".into());
    row(&|body| body.gateway = String::new());
}

#[test]
fn endpoints_are_host_and_port() {
    let reads = |text: &str, host: &str, port: u16| {
        let endpoint: ChannelEndpoint = text.parse().unwrap();
        assert_eq!((endpoint.host(), endpoint.port()), (host, port));
    };
    reads("cloud.example:7444", "cloud.example", 7444);
    reads("10.0.0.1:1", "10.0.0.1", 1);
    reads("[::1]:65535", "::1", 65535);
    for refused in [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:b",
        "::1:7444",
        "[::1]",
        "[a]:1",
        "a b:1",
        "a/b:1",
        "https://a:1",
    ] {
        assert!(refused.parse::<ChannelEndpoint>().is_err(), "{refused}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_text_behind_the_prefix_makes_the_parser_panic(text in "[-_A-Za-z0-9]{0,300}") {
        let text = format!("cwj1.{text}");
        prop_assert!(parse(&text).is_err());
    }

    #[test]
    fn one_wrong_character_is_always_noticed(place in 5usize..250, with in "[-_A-Za-z0-9]") {
        let text = token().to_text();
        let place = 5 + place % (text.len() - 5);
        let mut wrong = text.clone();
        wrong.replace_range(place..place + 1, &with);
        // The last character carries bits that no byte has; base64 refuses them, so it is noticed too.
        prop_assert!(wrong == text || parse(&wrong).is_err());
    }
}
