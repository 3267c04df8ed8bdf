//! TLS: certificates that can be replaced while the door serves.

use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{
    NoClientAuth, ServerConfig, WebPkiClientVerifier, danger::ClientCertVerifier,
};
use tokio_rustls::rustls::{Error, RootCertStore};

/// What new connections are served with.
pub struct Tls(RwLock<Arc<ServerConfig>>);

impl Tls {
    /// Checks that the three fit; the error says which does not and why.
    pub fn new(certificate: &[u8], key: &[u8], client_ca: &[u8]) -> Result<Self, String> {
        Ok(Self(RwLock::new(config(certificate, key, client_ca)?)))
    }

    /// Replaces them from the next connection on, or leaves everything as it is.
    pub fn reload(&self, certificate: &[u8], key: &[u8], client_ca: &[u8]) -> Result<(), String> {
        let config = config(certificate, key, client_ca)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// For the connection that is being accepted.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone().into()
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

fn config(certificate: &[u8], key: &[u8], client_ca: &[u8]) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(certificate, "certificate")?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("key: {error}"))?;
    let verifier = verifier(client_ca, &provider)?;
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
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_named() {
        assert!(Tls::new(b"", b"", b"").err().unwrap().starts_with("certificate: "));
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(Tls::new(broken, b"", b"").err().unwrap().starts_with("certificate: "));
    }
}
