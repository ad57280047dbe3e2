//! The console over HTTP: its files, the sign-in, and the limits of its cookie.

use causeway_apiserver::ApiLimits;
use serde_json::json;

use crate::lab::{Answer, Lab};

const CALL: (&str, &str) = ("causeway-console", "1");

async fn sign_in(lab: &Lab, token: &str) -> Answer {
    lab.ask_as("", "POST", "/console/session", json!({"token": token}), &[CALL]).await
}

/// The cookie that a sign-in set, as a browser sends it back.
fn cookie(answer: &Answer) -> String {
    let set = answer.headers["set-cookie"].to_str().unwrap();
    set.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_token_becomes_a_session_with_its_rights() {
    let lab = Lab::new().await;
    let page = lab.ask_as("", "GET", "/console", "", &[]).await;
    assert_eq!(page.code, 200, "files need no sign-in");
    assert!(page.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    assert_eq!(lab.ask_as("", "GET", "/console/none.js", "", &[]).await.code, 404);
    assert_eq!(lab.ask_as("", "POST", "/console/main.js", "", &[]).await.code, 401);
    assert_eq!(lab.ask("PUT", "/console/session", "").await.code, 405);

    let signed_in = sign_in(&lab, "viewer:vic").await;
    assert_eq!((signed_in.code, &signed_in.json), (200, &json!({"user": "viewer:vic", "role": "viewer"})));
    assert_eq!(signed_in.headers["cache-control"], "no-store");
    let cookie = cookie(&signed_in);
    let with = [("cookie", cookie.as_str()), CALL];
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        lab.ask_as("", method, path, "", headers).await.code
    };
    assert_eq!(ask("GET", "/causeway/v1/status", &with).await, 200);
    assert_eq!(ask("GET", "/apis/causeway.io/v1/esites", &with).await, 200);
    assert_eq!(ask("POST", "/causeway/v1/revoke", &with).await, 403, "a viewer only reads");
    // Without the header, or from the page of another origin, the cookie does not count.
    assert_eq!(ask("GET", "/causeway/v1/status", &with[..1]).await, 401);
    for site in ["cross-site", "same-site"] {
        let foreign = [with[0], CALL, ("sec-fetch-site", site)];
        assert_eq!(ask("GET", "/causeway/v1/status", &foreign).await, 401, "{site}");
        assert_eq!(ask("DELETE", "/console/session", &foreign).await, 400, "{site}");
    }
    assert_eq!(lab.ask_as("", "GET", "/console/session", "", &with).await.json["role"], "viewer");

    let ended = lab.ask_as("", "DELETE", "/console/session", "", &with).await;
    assert!(ended.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(ask("GET", "/causeway/v1/status", &with).await, 401, "signed out");
    let nobody = lab.ask_as("", "GET", "/console/session", "", &with).await;
    assert_eq!((nobody.code, &nobody.json["user"]), (200, &json!(null)));
    lab.shut_down().await;
}

#[tokio::test]
async fn a_session_and_its_watches_end_with_the_token() {
    let lab = Lab::new().await;
    let cookie = cookie(&sign_in(&lab, "viewer:vic").await);
    let with = [("cookie", cookie.as_str()), CALL];
    let mut watch = lab.watch_as("", "/apis/causeway.io/v1/esites?watch=true", &with).await;
    lab.people.revoke("viewer:vic");
    assert!(watch.next().await.is_none(), "the watch ends");
    assert_eq!(lab.ask_as("", "GET", "/causeway/v1/status", "", &with).await.code, 401);
    lab.shut_down().await;
}

#[tokio::test]
async fn a_sign_out_ends_the_watches_of_its_session() {
    let lab = Lab::new().await;
    let cookie = cookie(&sign_in(&lab, "viewer:vic").await);
    let with = [("cookie", cookie.as_str()), CALL];
    let mut watch = lab.watch_as("", "/apis/causeway.io/v1/esites?watch=true", &with).await;
    assert_eq!(lab.ask_as("", "DELETE", "/console/session", "", &with).await.code, 200);
    assert!(watch.next().await.is_none(), "the watch ends");
    lab.shut_down().await;
}

#[tokio::test]
async fn wrong_sign_ins_count_like_wrong_tokens() {
    let lab = Lab::with(ApiLimits { failures_per_minute_max: 3, ..ApiLimits::default() }).await;
    for _ in 0..3 {
        assert_eq!(sign_in(&lab, "stranger").await.code, 401);
    }
    assert_eq!(sign_in(&lab, "stranger").await.code, 429);
    assert_eq!(lab.ask_as("stranger", "GET", "/causeway/v1/status", "", &[]).await.code, 429);
    assert_eq!(sign_in(&lab, "admin:ann").await.code, 200, "a valid token is accepted all the same");
    for body in [json!({}), json!({"token": 7}), json!({"token": ""})] {
        assert!(lab.ask_as("", "POST", "/console/session", body, &[CALL]).await.code >= 400);
    }
    let large = json!({"token": "x".repeat(100_000)});
    assert_eq!(lab.ask_as("", "POST", "/console/session", large, &[CALL]).await.code, 413);
    let without_header = lab.ask_as("", "POST", "/console/session", json!({"token": "admin:ann"}), &[]).await;
    assert_eq!(without_header.code, 400);
    lab.shut_down().await;
}
