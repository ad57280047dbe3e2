//! Service-account tokens, verified with the signing keys of the cluster.
//!
//! Input: a JWT (RFC 7519), the keys of the cluster as JWKs (RFC 7517), and the time. Output: the service account, or the
//! reason why the token is not valid here. Works without the cloud.

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::UserInfo;

/// The facts about a cluster that an edge needs to know its callers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterFacts {
    pub issuer: Option<String>,
    pub keys: Option<Vec<Value>>,
    /// PEM of the CA that signs client certificates.
    pub client_ca: Option<String>,
    /// The scopes that the operator pinned for the site; `None` when the cloud could not tell.
    pub pins: Option<Vec<crate::resource::SubscriptionScope>>,
}

impl ClusterFacts {
    /// Takes known facts where the cloud told none: it cannot read them while the API server is away, and callers are
    /// authenticated by what was known.
    pub fn or_known(mut self, known: &ClusterFacts) -> ClusterFacts {
        self.issuer = self.issuer.or_else(|| known.issuer.clone());
        self.keys = self.keys.or_else(|| known.keys.clone());
        self.client_ca = self.client_ca.or_else(|| known.client_ca.clone());
        self.pins = self.pins.or_else(|| known.pins.clone());
        self
    }

    /// The pinned scopes.
    pub fn pins(&self) -> &[crate::resource::SubscriptionScope] {
        self.pins.as_deref().unwrap_or_default()
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountTokenError {
    /// Not a token of the cluster's service accounts; the cloud may know it.
    #[error("the token is no service-account token of the cluster")]
    Foreign,
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token has expired or is not valid yet")]
    Expired,
    #[error("the token is for another audience")]
    Audience,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    #[serde(default)]
    exp: Option<i64>,
    #[serde(default)]
    nbf: Option<i64>,
    #[serde(default)]
    aud: Option<Value>,
    #[serde(default, rename = "kubernetes.io")]
    kubernetes: Value,
}

/// A verified token.
#[derive(PartialEq, Eq, Debug)]
pub struct AccountToken {
    pub user: UserInfo,
    /// The pod that the token is bound to: `NAMESPACE/NAME` and UID. The token ends with it.
    pub pod: Option<(String, String)>,
}

/// Verifies a token at `now` (unix seconds). The caller looks whether its pod is there.
pub fn verify(facts: &ClusterFacts, token: &str, now: i64) -> Result<AccountToken, AccountTokenError> {
    let mut parts = token.split('.');
    let (Some(head), Some(claims), Some(sealed), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(AccountTokenError::Foreign);
    };
    let header: Header = decode(head)?;
    let content: Claims = decode(claims)?;
    let issuer =
        facts.issuer.as_deref().filter(|issuer| *issuer == content.iss).ok_or(AccountTokenError::Foreign)?;
    let sealed = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| AccountTokenError::Foreign)?;
    let keys = facts.keys.iter().flatten();
    let keys: Vec<&Value> =
        keys.filter(|key| header.kid.is_empty() || key["kid"] == header.kid.as_str()).collect();
    if keys.is_empty() {
        return Err(AccountTokenError::Foreign);
    }
    let message = &token.as_bytes()[..head.len() + 1 + claims.len()];
    if !keys.iter().any(|key| is_signed_by(key, &header.alg, message, &sealed)) {
        return Err(AccountTokenError::Signature);
    }
    // A token without an end is no bound token; the API server checks its secret.
    let is_current =
        content.exp.is_some_and(|end| now < end) && content.nbf.is_none_or(|begin| begin <= now + CLOCK_SKEW);
    if !is_current {
        return Err(AccountTokenError::Expired);
    }
    let audiences: Vec<&str> = match &content.aud {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    // The API server accepts its issuer as audience, unless it is configured otherwise; then the cloud decides.
    if !audiences.contains(&issuer) {
        return Err(AccountTokenError::Audience);
    }
    let user = service_account(&content).ok_or(AccountTokenError::Foreign)?;
    Ok(AccountToken { user, pod: bound_pod(&content) })
}

fn bound_pod(claims: &Claims) -> Option<(String, String)> {
    let pod = claims.kubernetes.get("pod")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((format!("{}/{}", text(&claims.kubernetes["namespace"]), text(&pod["name"])), text(&pod["uid"])))
}

/// The time at which a token expires (unix seconds), as the token itself says; the signature is not looked at. `None`: no such token.
pub fn expiry(token: &str) -> Option<i64> {
    decode::<Claims>(token.split('.').nth(1)?).ok()?.exp
}

const CLOCK_SKEW: i64 = 60;

fn service_account(claims: &Claims) -> Option<UserInfo> {
    let (namespace, name) = claims.sub.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let uid = claims.kubernetes["serviceaccount"]["uid"].as_str().unwrap_or_default();
    if claims.kubernetes["serviceaccount"]["name"] != name || claims.kubernetes["namespace"] != namespace {
        return None;
    }
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let (username, uid) = (claims.sub.clone(), uid.to_owned());
    Some(UserInfo { username, uid, groups: groups.to_vec(), ..UserInfo::default() })
}

fn decode<T: for<'a> Deserialize<'a>>(part: &str) -> Result<T, AccountTokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| AccountTokenError::Foreign)?;
    serde_json::from_slice(&bytes).map_err(|_| AccountTokenError::Foreign)
}

fn is_signed_by(key: &Value, algorithm: &str, message: &[u8], sealed: &[u8]) -> bool {
    let field = |name: &str| key[name].as_str().and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let ec = |algorithm: &'static dyn VerificationAlgorithm| {
        let (Some(x), Some(y)) = (field("x"), field("y")) else { return false };
        let point = [&[4u8][..], &x, &y].concat();
        UnparsedPublicKey::new(algorithm, point).verify(message, sealed).is_ok()
    };
    match (key["kty"].as_str(), algorithm) {
        (Some("RSA"), "RS256") => {
            let (Some(n), Some(e)) = (field("n"), field("e")) else { return false };
            let public = signature::RsaPublicKeyComponents { n, e };
            public.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, sealed).is_ok()
        }
        (Some("EC"), "ES256") => ec(&signature::ECDSA_P256_SHA256_FIXED),
        (Some("EC"), "ES384") => ec(&signature::ECDSA_P384_SHA384_FIXED),
        (Some("EC"), "ES512") => ec(&signature::ECDSA_P521_SHA512_FIXED),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    #[test]
    fn facts_that_the_cloud_cannot_read_stay_as_they_were() {
        let known = ClusterFacts {
            issuer: Some("cluster".into()),
            client_ca: Some("pem".into()),
            ..Default::default()
        };
        let told = ClusterFacts { client_ca: Some("new".into()), ..Default::default() };
        let facts = told.or_known(&known);
        assert_eq!((facts.issuer.as_deref(), facts.client_ca.as_deref()), (Some("cluster"), Some("new")));
    }

    #[test]
    fn a_token_is_valid_for_its_account_audience_and_time_only() {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref()).unwrap();
        let point = pair.public_key().as_ref();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let facts = ClusterFacts {
            issuer: Some("https://issuer".into()),
            keys: Some(vec![
                json!({"kty": "EC", "crv": "P-256", "kid": "k", "x": text(&point[1..33]), "y": text(&point[33..])}),
            ]),
            ..ClusterFacts::default()
        };
        let claims = json!({"iss": "https://issuer", "sub": "system:serviceaccount:shop:till", "exp": 1_000, "nbf": 10,
            "aud": ["https://issuer"],
            "kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "till", "uid": "u"}}});
        let token = |kid: &str, claims: &Value| {
            let head = text(json!({"alg": "ES256", "kid": kid}).to_string().as_bytes());
            let message = format!("{head}.{}", text(claims.to_string().as_bytes()));
            let sealed = pair.sign(&random, message.as_bytes()).unwrap();
            format!("{message}.{}", text(sealed.as_ref()))
        };
        let good = token("k", &claims);
        let AccountToken { user, pod } = verify(&facts, &good, 500).unwrap();
        assert_eq!(pod, None);
        assert_eq!((user.username.as_str(), user.uid.as_str()), ("system:serviceaccount:shop:till", "u"));
        let check = |token: &str, now: i64, expected: AccountTokenError| {
            assert_eq!(verify(&facts, token, now), Err(expected), "{token}")
        };
        assert_eq!((expiry(&good), expiry("opaque"), expiry("a.b.c")), (Some(1_000), None, None));
        check(&good, 1_000, AccountTokenError::Expired);
        check(&good, -60, AccountTokenError::Expired);
        check("opaque", 500, AccountTokenError::Foreign);
        check("a.b.c", 500, AccountTokenError::Foreign);
        check(&token("other", &claims), 500, AccountTokenError::Foreign);
        let with = |name: &str, value: Value| {
            let mut changed = claims.clone();
            changed[name] = value;
            token("k", &changed)
        };
        let mut bound = claims["kubernetes.io"].clone();
        bound["pod"] = json!({"name": "box", "uid": "p"});
        let bound = verify(&facts, &with("kubernetes.io", bound), 500).unwrap();
        assert_eq!(bound.pod, Some(("shop/box".into(), "p".into())));
        check(&with("iss", json!("https://other")), 500, AccountTokenError::Foreign);
        check(&with("aud", json!(["vault"])), 500, AccountTokenError::Audience);
        check(&with("exp", json!(null)), 500, AccountTokenError::Expired);
        check(&with("sub", json!("system:serviceaccount:shop:admin")), 500, AccountTokenError::Foreign);
        let (message, _) = good.rsplit_once('.').unwrap();
        let (_, sealed) =
            with("nbf", json!(11)).rsplit_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        check(&format!("{message}.{sealed}"), 500, AccountTokenError::Signature);
    }
}
