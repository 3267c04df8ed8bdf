//! How calls end other than well: gRPC statuses as trailers, and what else can happen to a call.

use crate::fastpath::serving::Refused;
use crate::h2::framing::percent_encoded;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;

/// gRPC status codes that the front end itself answers with.
pub(crate) mod code {
    #![allow(missing_docs)]
    pub(crate) const INVALID_ARGUMENT: u32 = 3;
    pub(crate) const DEADLINE_EXCEEDED: u32 = 4;
    pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(crate) const UNIMPLEMENTED: u32 = 12;
    pub(crate) const INTERNAL: u32 = 13;
    /// The last code there is.
    pub(crate) const LAST: u32 = 16;
}

/// The trailer that carries the code.
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Why the front end ends a call by itself.
#[derive(Debug)]
pub(crate) enum Fault {
    /// With this status.
    Status(u32, Cow<'static, str>),
    /// As the fast path refuses a request.
    Refused(Refused),
    /// With UNIMPLEMENTED, naming the encodings that there are.
    Encoding(String),
    /// It is not gRPC.
    NotGrpc,
    /// The client has reset the call.
    Reset,
    /// The connection has ended, there is nothing to answer.
    Gone,
    /// The client does not take the answer.
    Stalled,
}

impl Fault {
    /// A status with a text that never changes.
    pub(crate) fn status(code: u32, text: impl Into<Cow<'static, str>>) -> Self {
        Self::Status(code, text.into())
    }

    /// What an error of the stream means.
    pub(crate) fn of(error: &h2::Error) -> Self {
        if error.is_reset() && error.is_remote() { Self::Reset } else { Self::Gone }
    }
}

/// Trailers with a status.
pub(crate) fn trailers(code: u32, text: &str) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from(code));
    if !text.is_empty() {
        let text =
            HeaderValue::from_str(&percent_encoded(text)).expect("percent-encoded text is printable ASCII");
        trailers.insert(GRPC_MESSAGE, text);
    }
    trailers
}

const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Trailers that tell what the fast path refuses, and when the client may try again; never at once.
pub(crate) fn refused(refused: &Refused) -> HeaderMap {
    match refused {
        Refused::Expired(text) => trailers(code::DEADLINE_EXCEEDED, text),
        Refused::Late(text, after_ns) | Refused::OverQuota(text, after_ns) => {
            let mut trailers = trailers(code::RESOURCE_EXHAUSTED, text);
            let milliseconds = after_ns.div_ceil(1_000_000).max(1);
            trailers.insert(HeaderName::from_static(RETRY_PUSHBACK), HeaderValue::from(milliseconds));
            trailers
        }
    }
}

/// Adds one entry of custom metadata; the error says what is wrong with it.
pub(crate) fn add_metadata(trailers: &mut HeaderMap, key: &str, value: &str) -> Result<(), String> {
    // The one key of the protocol's own that is the server's to set: when a refused client may try again.
    if is_reserved(key) && key != RETRY_PUSHBACK {
        return Err(format!("metadata key '{key}' belongs to the protocol"));
    }
    let name = HeaderName::from_bytes(key.as_bytes())
        .ok()
        .filter(|name| name.as_str() == key)
        .ok_or_else(|| format!("metadata key '{key}' is not a header name in lower case"))?;
    let value = HeaderValue::from_str(value)
        .ok()
        .filter(|value| value.to_str().is_ok())
        .ok_or_else(|| format!("the value of metadata key '{key}' is not printable ASCII"))?;
    trailers.append(name, value);
    Ok(())
}

/// Whether a header is the protocol's own and not metadata of the call.
pub(crate) fn is_reserved(key: &str) -> bool {
    key.starts_with("grpc-") || matches!(key, "content-type" | "te" | "user-agent")
}

/// The custom metadata of a request that is text.
pub(crate) fn text_metadata(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    headers
        .iter()
        .filter(|(key, value)| {
            !is_reserved(key.as_str()) && !key.as_str().ends_with("-bin") && value.to_str().is_ok()
        })
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_trailers() {
        let map = trailers(5, "no model 'é'");
        assert_eq!(map["grpc-status"], "5");
        assert_eq!(map["grpc-message"], "no model '%C3%A9'");
        assert_eq!(trailers(0, "").len(), 1);
    }

    #[test]
    fn metadata_that_would_break_the_protocol_is_refused() {
        let mut map = HeaderMap::new();
        for (key, value) in
            [("grpc-status", "0"), ("te", "x"), ("Upper", "x"), ("a b", "x"), ("a", "line\nfeed")]
        {
            assert!(add_metadata(&mut map, key, value).is_err(), "{key}");
        }
        add_metadata(&mut map, RETRY_PUSHBACK, "5").unwrap();
        add_metadata(&mut map, "retry-after-ms", "5").unwrap();
        add_metadata(&mut map, "retry-after-ms", "6").unwrap();
        assert_eq!(map.get_all("retry-after-ms").iter().count(), 2);
    }

    #[test]
    fn custom_metadata_is_told_apart() {
        let mut map = HeaderMap::new();
        for key in ["te", "content-type", "user-agent", "grpc-timeout", "triton_x", "x-id", "x-bin"] {
            map.append(key, HeaderValue::from_static("v"));
        }
        map.append("x-id", HeaderValue::from_static("w"));
        map.append("x-odd", HeaderValue::from_bytes(b"\xff").unwrap());
        let mut found: Vec<_> =
            text_metadata(&map).iter().map(|(k, v)| format!("{k}={}", v.to_str().unwrap())).collect();
        found.sort();
        assert_eq!(found, ["triton_x=v", "x-id=v", "x-id=w"]);
    }
}
