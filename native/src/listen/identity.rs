//! Who a TLS client is, by its certificate, and who may come.
//!
//! The certificate was verified before: what is read here was signed by an authority that the operator trusts. The
//! names are read by the code that verified it; only the common name, which that has no use for, and whether there are
//! alternative names at all, which it does not tell, are read here.

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Longer names are taken for none.
const LENGTH: usize = 255;
/// The wildcard of a pattern, and what separates it from the rest.
const WILDCARD: &str = "*.";
/// DER of what comes before a common name: the object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// DER of what comes before the alternative names of a subject: the object identifier 2.5.29.17.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// What only URIs have: names that have it are meant for nothing else.
const AFTER_SCHEME: &str = "://";

const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    text: String,
    /// It is a URI among the alternative names, and not something that only looks like one.
    is_uri: bool,
}

impl Identity {
    /// By a name, which is a URI if it can be nothing else.
    pub(crate) fn new(name: &str) -> Self {
        Self { text: name.to_string(), is_uri: name.contains(AFTER_SCHEME) }
    }

    /// What it is called.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What the log calls it.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// The first URI among the alternative names of the subject, else the first DNS name; the common name only of a
/// certificate without alternative names of whatever kind.
pub(crate) fn identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let uri = parsed.valid_uri_names().next();
    let found = match uri.or_else(|| parsed.valid_dns_names().next()) {
        Some(found) => found,
        None if has_alternative_names(certificate) == Some(false) => common_name(parsed.subject())?,
        None => return None,
    };
    let usable = (1..=LENGTH).contains(&found.len()) && !found.chars().any(char::is_control);
    usable.then(|| Identity { text: found.to_string(), is_uri: uri.is_some() })
}

/// Whether a certificate says that it has alternative names of its subject. None: it cannot be read.
fn has_alternative_names(certificate: &[u8]) -> Option<bool> {
    const EXTENSIONS: u8 = 0xa3;
    let (certificate, _) = expected(certificate, SEQUENCE)?;
    let (mut fields, _) = expected(certificate, SEQUENCE)?;
    while !fields.is_empty() {
        let (tag, contents, rest) = element(fields)?;
        fields = rest;
        if tag != EXTENSIONS {
            continue;
        }
        let (mut extensions, _) = expected(contents, SEQUENCE)?;
        while !extensions.is_empty() {
            let (extension, rest) = expected(extensions, SEQUENCE)?;
            extensions = rest;
            if expected(extension, OBJECT_IDENTIFIER)?.0 == ALTERNATIVE_NAMES {
                return Some(true);
            }
        }
    }
    Some(false)
}

/// One element of DER: its tag, its contents, and what follows it. Lengths up to 65,535.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])), &rest[2..]),
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// The contents of an element of this kind at the front, and what follows it.
fn expected(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(der).filter(|(found, ..)| *found == tag).map(|(_, contents, rest)| (contents, rest))
}

/// The last common name of a subject, given as the contents of its sequence: the most specific one.
fn common_name(mut subject: &[u8]) -> Option<&str> {
    const UTF8_STRING: u8 = 0x0c;
    const PRINTABLE_STRING: u8 = 0x13;
    const IA5_STRING: u8 = 0x16;
    const SET: u8 = 0x31;
    let mut last = None;
    while !subject.is_empty() {
        let (mut names, rest) = expected(subject, SET)?;
        subject = rest;
        while !names.is_empty() {
            let (name, others) = expected(names, SEQUENCE)?;
            names = others;
            let (kind, value) = expected(name, OBJECT_IDENTIFIER)?;
            if kind == COMMON_NAME {
                let (tag, text, _) = element(value)?;
                // Other kinds of strings, long deprecated, are no names.
                last = matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING)
                    .then(|| std::str::from_utf8(text).ok())
                    .flatten();
            }
        }
    }
    last
}

/// Who may come: identities, or patterns with `*` as their leftmost label.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names(Vec<String>);

impl Names {
    /// These; none: every client with a certificate.
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Whether every client with a certificate may come.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this one may.
    pub(crate) fn admit(&self, identity: &Identity) -> bool {
        self.0.iter().any(|name| matches(name, identity))
    }
}

/// Whether a name or a pattern stands for this client.
pub(crate) fn matches(name: &str, identity: &Identity) -> bool {
    let Identity { text, is_uri } = identity;
    match name.strip_prefix(WILDCARD) {
        Some(_) if *is_uri => false,
        Some(domain) => text
            .split_once('.')
            .is_some_and(|(label, rest)| is_label(label) && rest.eq_ignore_ascii_case(domain)),
        None if name.contains(AFTER_SCHEME) && !is_uri => false,
        // Letters count in a URI, and in what looks like one.
        None if *is_uri || text.contains(':') => name == text,
        None => name.eq_ignore_ascii_case(text),
    }
}

/// What a wildcard stands for: one label of a host's name, and no wildcard again.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(names: &[&str], text: &str, is_uri: bool) -> bool {
        let identity = Identity { text: text.into(), is_uri };
        Names::new(names.iter().map(ToString::to_string).collect()).admit(&identity)
    }

    fn admits(names: &[&str], name: &str) -> bool {
        admitted(names, name, false)
    }

    fn admits_uri(names: &[&str], uri: &str) -> bool {
        admitted(names, uri, true)
    }

    #[test]
    fn names_are_compared_as_hosts_are() {
        assert!(admits(&["camera.site.example"], "Camera.site.example"));
        assert!(!admits(&["camera.site.example"], "camera.site.example.org"));
        assert!(admits(&["gateway 7"], "gateway 7"));
        assert!(!admits(&[""], "camera"));
    }

    #[test]
    fn a_wildcard_stands_for_one_label() {
        let names = ["*.site.example"];
        for identity in ["a.site.example", "A-1.SITE.example", "a_b.site.example"] {
            assert!(admits(&names, identity), "{identity}");
        }
        for identity in
            ["site.example", ".site.example", "a.b.site.example", "*.site.example", "a.site.example.org", ""]
        {
            assert!(!admits(&names, identity), "{identity}");
        }
    }

    #[test]
    fn uris_are_compared_letter_by_letter_and_have_no_wildcards() {
        assert!(admits_uri(&["spiffe://site/camera"], "spiffe://site/camera"));
        assert!(!admits_uri(&["spiffe://site/camera"], "spiffe://site/Camera"));
        assert!(admits_uri(&["urn:camera:7"], "urn:camera:7"));
        for uri in ["spiffe://a.site.example", "a.site.example", "*.site.example"] {
            assert!(!admits_uri(&["*.site.example"], uri), "{uri}");
        }
        assert!(!admits_uri(&["*.site.example/x"], "spiffe:.site.example/x"));
    }

    #[test]
    fn what_only_looks_like_a_uri_is_not_admitted_as_one() {
        for name in ["spiffe://site/camera", "://", "a://b"] {
            assert!(!admits(&[name], name), "{name}");
            assert!(admits_uri(&[name], name), "{name}");
        }
        assert!(admits(&["spiffe://site/camera", "camera"], "camera"));
    }

    /// A certificate as far as names go, with these general names, if with any extension of them.
    fn certificate(common: &[u8], alternative: Option<&[Vec<u8>]>) -> CertificateDer<'static> {
        let algorithm = der(0x30, &der(0x06, &[0x2a, 0x03]));
        let constraints = der(0x30, &[der(0x06, &[0x55, 0x1d, 0x13]), der(0x04, &der(0x30, &[]))].concat());
        let names = alternative.map(|names| {
            let names = der(0x04, &der(0x30, &names.concat()));
            der(0x30, &[der(0x06, ALTERNATIVE_NAMES), names].concat())
        });
        let extensions = [constraints, names.unwrap_or_default()].concat();
        let fields = [
            der(0xa0, &der(0x02, &[2])),
            der(0x02, &[1]),
            algorithm.clone(),
            der(0x30, &[]),
            der(0x30, &[]),
            der(0x30, &named(COMMON_NAME, 0x0c, common)),
            der(0x30, &[]),
            der(0xa3, &der(0x30, &extensions)),
        ];
        let whole = [der(0x30, &fields.concat()), algorithm, der(0x03, &[0, 1])].concat();
        CertificateDer::from(der(0x30, &whole))
    }

    #[test]
    fn the_common_name_is_only_for_certificates_without_alternative_names() {
        const EMAIL: u8 = 0x81;
        const DNS: u8 = 0x82;
        const URI: u8 = 0x86;
        const IP: u8 = 0x87;
        let uri = der(URI, b"spiffe://site/camera");
        let host = der(DNS, b"a.site.example");
        let address = der(IP, &[127, 0, 0, 1]);
        let known = |text: &str, is_uri| Some(Identity { text: text.into(), is_uri });
        for (names, found) in [
            (None, known("spiffe://cn", false)),
            (Some(&[host.clone(), uri.clone()][..]), known("spiffe://site/camera", true)),
            (Some(&[address.clone(), host]), known("a.site.example", false)),
            (Some(&[address]), None),
            (Some(&[der(EMAIL, b"a@b")]), None),
            (Some(&[der(DNS, b"no host")]), None),
            (Some(&[der(URI, b"\xff")]), None),
            (Some(&[der(URI, b"")]), None),
            (Some(&[]), None),
        ] {
            assert_eq!(identity(&certificate(b"spiffe://cn", names)), found, "{names:?}");
        }
    }

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u8::try_from(contents.len()).unwrap();
        let head = if length < 0x80 { vec![tag, length] } else { vec![tag, 0x81, length] };
        [&head[..], contents].concat()
    }

    fn named(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        der(0x31, &der(0x30, &[der(0x06, kind), der(tag, text)].concat()))
    }

    #[test]
    fn the_last_common_name_counts() {
        let organisation = named(&[0x55, 0x04, 0x0a], 0x0c, b"site");
        let subject = [organisation, named(COMMON_NAME, 0x13, b"first"), named(COMMON_NAME, 0x0c, b"last")];
        assert_eq!(common_name(&subject.concat()), Some("last"));
        assert_eq!(common_name(&[]), None);
        assert_eq!(common_name(&named(COMMON_NAME, 0x0c, b"\xff")), None);
        assert_eq!(common_name(&named(COMMON_NAME, 0x1e, b"\0a")), None);
        let long = [b'x'; 200];
        assert_eq!(common_name(&named(COMMON_NAME, 0x0c, &long[..100])).map(str::len), Some(100));
    }

    #[test]
    fn what_is_cut_or_strange_has_no_name_and_breaks_nothing() {
        let subject = named(COMMON_NAME, 0x0c, b"camera");
        for end in 0..subject.len() {
            assert_eq!(common_name(&subject[..end]), None);
        }
        for place in 0..subject.len() {
            for value in 0..=255 {
                let mut changed = subject.clone();
                changed[place] = value;
                let _ = common_name(&changed);
            }
        }
        assert_eq!(identity(&CertificateDer::from(subject)), None);
    }
}
