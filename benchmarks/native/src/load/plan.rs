//! What to offer, to whom, for how long: the command line.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

/// How the command line is to be written.
pub const USAGE: &str = "usage: load --target HOST:PORT --payload FILE (--rate R | --concurrency C) [--seconds 3] \
[--warm-up-s 1] [--channels 0: chosen] [--arrivals poisson|constant] [--deadline-ms 0: none] [--bound-ms 50] \
[--seed 1] [--expect-bytes 0: any] [--ca FILE: TLS] [--writes each|joined] [--method /inference.GRPCInferenceService/ModelInfer]";
const METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";
const ALPN: &[u8] = b"h2";
const CALLS_PER_CHANNEL: usize = 8;
const CHANNELS_MAX: usize = 4;

/// When calls are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Closed loop: so many callers, each sending when its last call has ended.
    Closed(usize),
    /// Open loop: so many calls a second, at random moments.
    Poisson(f64),
    /// Open loop: so many calls a second, evenly.
    Constant(f64),
}

/// TLS towards the target.
#[derive(Clone)]
pub struct Secure {
    /// Whom to trust.
    pub config: Arc<ClientConfig>,
    /// Whom to expect.
    pub name: ServerName<'static>,
}

/// A whole run.
pub struct Plan {
    /// Where the server is.
    pub target: SocketAddr,
    /// The path of the method.
    pub method: String,
    /// One serialised request.
    pub payload: Vec<u8>,
    /// When calls are due.
    pub shape: Shape,
    /// Length of the part that counts.
    pub seconds: f64,
    /// Length of the part before it.
    pub warm_up_s: f64,
    /// Deadline of each call in ns; 0: none.
    pub deadline_ns: u64,
    /// An answer later than this, in ns, is no goodput.
    pub bound_ns: u64,
    /// Connections.
    pub channels: usize,
    /// Where the random moments begin.
    pub seed: u64,
    /// Length of every good answer; 0: any.
    pub expect_bytes: usize,
    /// TLS, if any.
    pub secure: Option<Secure>,
    /// Whether calls that fall together share a write; else each has one of its own.
    pub joined: bool,
}

struct Options(HashMap<String, String>);

impl Options {
    fn read(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut options, mut words) = (HashMap::new(), words);
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("'{word}' is no option"))?;
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            options.insert(name.to_string(), value);
        }
        Ok(Self(options))
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn number<T: FromStr + Default>(&mut self, name: &str, default: T) -> Result<T, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| format!("--{name} is a number, not '{text}'"))
    }

    fn file(&mut self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(file) = self.text(name) else { return Ok(None) };
        std::fs::read(&file).map(Some).map_err(|error| format!("--{name} {file}: {error}"))
    }

    fn joined(&mut self) -> Result<bool, String> {
        match self.text("writes").as_deref() {
            None | Some("each") => Ok(false),
            Some("joined") => Ok(true),
            Some(other) => Err(format!("--writes is each or joined, not '{other}'")),
        }
    }

    fn shape(&mut self) -> Result<Shape, String> {
        let (rate, concurrency) = (self.number("rate", 0.0)?, self.number("concurrency", 0)?);
        match (rate > 0.0, concurrency > 0, self.text("arrivals").as_deref().unwrap_or("poisson")) {
            (true, false, "poisson") => Ok(Shape::Poisson(rate)),
            (true, false, "constant") => Ok(Shape::Constant(rate)),
            (false, true, _) => Ok(Shape::Closed(concurrency)),
            (true, false, other) => Err(format!("--arrivals is poisson or constant, not '{other}'")),
            _ => Err("give either --rate or --concurrency".into()),
        }
    }
}

fn channels(wanted: usize, shape: Shape) -> usize {
    match (wanted, shape) {
        (0, Shape::Closed(concurrency)) => concurrency.div_ceil(CALLS_PER_CHANNEL).min(CHANNELS_MAX),
        (0, _) => CHANNELS_MAX,
        (wanted, _) => wanted,
    }
}

fn secure(authorities: &[u8], target: SocketAddr) -> Result<Secure, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let certificate = certificate.map_err(|error| format!("--ca: {error}"))?;
        roots.add(certificate).map_err(|error| format!("--ca: {error}"))?;
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Secure { config: Arc::new(config), name: ServerName::from(target.ip()) })
}

impl Plan {
    /// The plan that the command line asks for.
    pub fn read(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options::read(words)?;
        let target = options.text("target").ok_or("--target is missing")?;
        let target = target.parse().map_err(|_| format!("--target is ADDRESS:PORT, not '{target}'"))?;
        let shape = options.shape()?;
        let in_ns = |milliseconds: f64| (milliseconds * 1e6) as u64;
        let plan = Self {
            target,
            method: options.text("method").unwrap_or_else(|| METHOD.into()),
            payload: options.file("payload")?.ok_or("--payload is missing")?,
            shape,
            seconds: options.number("seconds", 3.0)?,
            warm_up_s: options.number("warm-up-s", 1.0)?,
            deadline_ns: in_ns(options.number("deadline-ms", 0.0)?),
            bound_ns: in_ns(options.number("bound-ms", 50.0)?),
            channels: channels(options.number("channels", 0)?, shape),
            seed: options.number("seed", 1)?,
            expect_bytes: options.number("expect-bytes", 0)?,
            joined: options.joined()?,
            secure: options.file("ca")?.map(|authorities| secure(&authorities, target)).transpose()?,
        };
        match options.0.keys().next() {
            Some(unknown) => Err(format!("--{unknown} is not known")),
            None => Ok(plan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> Options {
        Options::read(words.split_whitespace().map(str::to_string)).ok().unwrap()
    }

    #[test]
    fn a_load_is_open_or_closed() {
        assert_eq!(options("--concurrency 8").shape(), Ok(Shape::Closed(8)));
        assert_eq!(options("--rate 100").shape(), Ok(Shape::Poisson(100.0)));
        assert_eq!(options("--rate 100 --arrivals constant").shape(), Ok(Shape::Constant(100.0)));
        assert!(options("--rate 100 --concurrency 1").shape().is_err());
        assert!(options("").shape().is_err());
    }

    #[test]
    fn as_many_connections_as_the_callers_need() {
        assert_eq!(channels(0, Shape::Closed(1)), 1);
        assert_eq!(channels(0, Shape::Closed(9)), 2);
        assert_eq!(channels(0, Shape::Closed(1000)), CHANNELS_MAX);
        assert_eq!(channels(3, Shape::Closed(1000)), 3);
    }
}
