//! TLS: which nodes a client trusts, which certificate it shows, and hints for a handshake that fails.
//!
//! There is no default authority. The root certificates of the system are for the whole web. A lock service has an authority of its
//! own, and its clients know which.

use std::sync::Arc;
use std::{fmt, io};

use fencepost_wire::FRAME_PROTOCOL;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use zeroize::Zeroizing;

use crate::error::{Error, Failed};
use crate::stream;

/// How a client speaks TLS: see [`ClientBuilder::tls`](crate::ClientBuilder::tls).
///
/// ```no_run
/// use fencepost::{Client, Tls};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new(std::fs::read("ca.pem")?)
///     .identity(std::fs::read("billing.pem")?, std::fs::read("billing.key")?);
/// let client = Client::builder().endpoint("https://n1.example:7420").tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls {
    authority: Vec<u8>,
    /// A certificate and its key.
    identity: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
    server_name: Option<String>,
}

/// Shows neither the key nor the certificates.
impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Tls");
        shown.field("has_identity", &self.identity.is_some()).field("server_name", &self.server_name);
        shown.finish_non_exhaustive()
    }
}

impl Tls {
    /// Trusts nodes whose certificates are signed by this authority, in PEM. The PEM may contain several authorities.
    pub fn new(authority_pem: impl Into<Vec<u8>>) -> Tls {
        Tls { authority: authority_pem.into(), identity: None, server_name: None }
    }

    /// Shows this certificate to nodes that demand one. Certificate and private key are in PEM.
    pub fn identity(mut self, certificate_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Tls {
        self.identity = Some((certificate_pem.into(), Zeroizing::new(key_pem.into())));
        self
    }

    /// The name that the certificate of every node must contain. Without this, it is the host in the node's address.
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }

    /// Refuses settings that can never work, before anything is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |why: String| Error::from(Failed::BadTls(why));
        self.roots()
            .map_err(|why| refused(format!("{why}: give the authority as -----BEGIN CERTIFICATE----- in PEM")))?;
        let endpoint = Endpoint::from_static("https://node");
        let identity = self.apply(endpoint).map_err(|error| {
            let why = crate::driver::chain(&error);
            refused(format!(
                "{why}: give a certificate and the key that it was made for, both in PEM, and a valid server name"
            ))
        });
        identity.map(drop)
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.authority) {
            let added = certificate.map_err(|error| error.to_string());
            added
                .and_then(|it| roots.add(it).map_err(|error| error.to_string()))
                .map_err(|why| format!("the authority cannot be read ({why})"))?;
        }
        if roots.is_empty() {
            return Err("the PEM of the authority contains no certificate".to_owned());
        }
        Ok(roots)
    }

    /// Does the TLS handshake on a connection that carries frames.
    pub(crate) async fn greet(&self, socket: TcpStream, address: &str) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        // Without the port, and without the brackets of an IPv6 address.
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = self.server_name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a valid server name")))?;
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider knows them")
            .with_root_certificates(self.roots()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
                let chain = chain.map_err(|error| error.to_string())?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
        };
        config.alpn_protocols = vec![FRAME_PROTOCOL.to_vec()];
        Ok(config)
    }

    /// The same settings for gRPC calls.
    pub(crate) fn apply(&self, endpoint: Endpoint) -> Result<Endpoint, tonic::transport::Error> {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority));
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        endpoint.tls_config(config)
    }
}

/// Whether a connection failed because the other side speaks another protocol, so that trying again does not help.
pub(crate) fn is_wrong_door(said: &str) -> bool {
    ["ProtocolVersion", "InvalidContentType", "NoApplicationProtocol", stream::SPOKEN_THERE]
        .iter()
        .any(|part| said.contains(part))
}

/// A hint for a connection that failed because the two sides do not agree about TLS. Empty if that is not the reason.
pub(crate) fn hint(said: &str, has_tls: bool) -> &'static str {
    let plain =
        "; the node speaks plain text: connect without TLS (without --ca and https://), or give the node a certificate";
    let foreign = "; the node's certificate is not signed by the authority that was given: give the right one";
    let wants = "; the node hung up: if the node wants to see a certificate, give one, with its key";
    let of_tls = [
        // A node sends this alert from a port without TLS. Other programs answer with bytes that are not TLS.
        ("ProtocolVersion", plain),
        ("InvalidContentType", plain),
        ("NoApplicationProtocol", "; this is not the port for clients, which is 7420 by default: check the port"),
        ("UnknownIssuer", foreign),
        ("BadSignature", foreign),
        ("not valid for name", "; connect by a name in the node's certificate, or say which name it bears"),
        ("CertificateRequired", "; the node wants to see a certificate: give one, with its key"),
        ("UnknownCA", "; the node does not know who signed the certificate that it was shown: give another"),
        // The node sends its reason and closes the connection. The client may notice either of them first.
        ("connection closed", wants),
        ("broken pipe", wants),
        ("onnection reset", wants),
    ];
    // A node says what it expects. Other programs that expect TLS close the connection, for which there can be other reasons.
    let perhaps = "; if TLS is spoken there, connect with https:// and the authority of the nodes (--ca)";
    let of_plain =
        [("broken pipe", perhaps), ("onnection reset", perhaps), ("http2 error", perhaps), ("closed at once", perhaps)];
    let table = if has_tls { &of_tls[..] } else { &of_plain };
    table.iter().find(|(part, _)| said.contains(part)).map_or("", |(_, hint)| hint)
}
