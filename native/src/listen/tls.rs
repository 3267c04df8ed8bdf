//! TLS: certificates that can be replaced while the front end serves, and which clients may come with theirs.

use crate::listen::identity::{Identity, Names, identity};
use crate::listen::stream::Stream;
use crate::measure::lock::Lock;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoClientAuth, ServerConfig, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
};

/// What new connections are served with.
pub(crate) struct Tls {
    config: RwLock<Arc<ServerConfig>>,
    names: Names,
    protocol: String,
    turned_away: Arc<Lock<Option<String>>>,
}

/// Why a handshake came to nothing.
pub(crate) enum Failure {
    /// It took too long.
    Late,
    /// The client does not speak TLS.
    Plain(TcpStream),
    /// The client was turned away for this name.
    Name(String),
    /// Anything else.
    Other(std::io::Error),
}

/// The first byte of a client that speaks TLS.
const HANDSHAKE: u8 = 0x16;

/// Makes of a new connection what a protocol goes over, and says who the client is, if that is known. It takes time
/// only where TLS is spoken, and not beyond `until`.
pub(crate) async fn meet(
    stream: Stream,
    tls: Option<&Tls>,
    until: Instant,
) -> Result<(Stream, Option<Identity>), Failure> {
    match (stream, tls) {
        (Stream::Tcp(stream), Some(tls)) => {
            timeout_at(until, tls.accept(stream)).await.unwrap_or(Err(Failure::Late))
        }
        (stream, _) => Ok((stream, None)),
    }
}

impl Tls {
    /// Checks that the three fit; the error says which does not and why. Of the clients whose certificates `client_ca`
    /// signed only those with these names may come. `protocol` is what is spoken, for clients that ask (ALPN).
    pub(crate) fn new(
        certificate: &[u8],
        key: &[u8],
        client_ca: &[u8],
        names: Names,
        protocol: String,
    ) -> Result<Self, String> {
        if client_ca.is_empty() && !names.is_empty() {
            return Err("client_names: without client_ca no client is asked who it is".to_string());
        }
        let turned_away = Arc::default();
        let config = RwLock::new(config(certificate, key, client_ca, (&names, &protocol), &turned_away)?);
        Ok(Self { config, names, protocol, turned_away })
    }

    /// Replaces them from the next connection on, or leaves everything as it is.
    pub(crate) fn reload(&self, certificate: &[u8], key: &[u8], client_ca: &[u8]) -> Result<(), String> {
        let terms = (&self.names, self.protocol.as_str());
        let config = config(certificate, key, client_ca, terms, &self.turned_away)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone().into()
    }

    /// Tells a client that does not speak TLS so, in TLS's words.
    pub(crate) async fn alert(&self, stream: TcpStream) {
        drop(self.acceptor().accept(stream).await);
    }

    /// The handshake with a new client, and who that is by its certificate.
    async fn accept(&self, stream: TcpStream) -> Result<(Stream, Option<Identity>), Failure> {
        // By its first byte, which stays where it is. A client that went away is taken to speak TLS.
        let mut first = [HANDSHAKE];
        let _ = stream.peek(&mut first).await; // what is wrong with it the handshake finds out
        if first != [HANDSHAKE] {
            return Err(Failure::Plain(stream));
        }
        // It fails within the one step in which the certificate is looked at, and all handshakes run on one thread.
        let turned_away = || self.turned_away.lock().take();
        let why = |error| turned_away().map_or(Failure::Other(error), Failure::Name);
        let stream = self.acceptor().accept(stream).await.map_err(why)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let client = certificate.and_then(identity);
        Ok((Stream::Tls(Box::new(stream)), client))
    }
}

/// Asks who a client is once it is known that its certificate can be trusted. A session that is resumed was let in so
/// under the same names, and is not asked again.
#[derive(Debug)]
struct NamedClients {
    trusted: Arc<dyn ClientCertVerifier>,
    names: Names,
    turned_away: Arc<Lock<Option<String>>>,
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trusted.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.trusted.verify_client_cert(certificate, chain, now)?;
        let identity = identity(certificate);
        if identity.as_ref().is_some_and(|identity| self.names.admit(identity)) {
            return Ok(verified);
        }
        let text = identity.map(Identity::into_text).unwrap_or_default();
        *self.turned_away.lock() = Some(text);
        Err(CertificateError::ApplicationVerificationFailure.into()) // "access denied", in TLS's words
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trusted.supported_verify_schemes()
    }
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{what}: there is no PEM certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

fn verifier(client_ca: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    if client_ca.is_empty() {
        return Ok(Arc::new(NoClientAuth));
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates(client_ca, "client_ca")? {
        roots.add(certificate).map_err(|error| format!("client_ca: {error}"))?;
    }
    WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .map(|verifier| verifier as Arc<dyn ClientCertVerifier>)
        .map_err(|error| format!("client_ca: {error}"))
}

fn config(
    certificate: &[u8],
    key: &[u8],
    client_ca: &[u8],
    (names, protocol): (&Names, &str),
    turned_away: &Arc<Lock<Option<String>>>,
) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(certificate, "certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("key: {error}"))?;
    let mut verifier = verifier(client_ca, &provider)?;
    if !names.is_empty() {
        let turned_away = turned_away.clone();
        verifier = Arc::new(NamedClients { trusted: verifier, names: names.clone(), turned_away });
    }
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            Error::InconsistentKeys(_) => "key: it does not belong to the certificate".to_string(),
            Error::InvalidCertificate(_) => format!("certificate: {error}"),
            error => format!("key: {error}"),
        })?;
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_named() {
        let made = |certificate: &[u8]| Tls::new(certificate, b"", b"", Names::default(), "h2".into());
        assert!(made(b"").err().unwrap().starts_with("certificate: "));
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(made(broken).err().unwrap().starts_with("certificate: "));
        let names = Names::new(vec!["camera".to_string()]);
        assert!(Tls::new(b"", b"", b"", names, "h2".into()).err().unwrap().starts_with("client_names: "));
    }
}
