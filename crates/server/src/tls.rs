//! TLS: reads the certificate files, and decides which certificates are accepted.
//!
//! The certificate of a port is read again when its files change, so that a new one needs no restart. A file that cannot be used is
//! logged once, and the old certificate stays. Among peers a certificate of the right authority is not enough: it must have the exact
//! name of the member that is meant. `door.rs` does the handshakes, and `peers.rs` knows the members.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fencepost_wire::{FRAME_PROTOCOL, PEER_PROTOCOL};
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsConnector, TlsStream};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use zeroize::Zeroizing;

use crate::config::TlsFiles;

/// The protocol name (ALPN) of HTTP/1.1.
pub(crate) const HTTP1_PROTOCOL: &[u8] = b"http/1.1";

/// What a port is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Clients,
    Http,
    /// With this node's own name.
    Peers(String),
}

impl Port {
    /// The protocols that the port offers (ALPN). A client's frames at another port fail in the handshake, because no port offers the
    /// frames of both. HTTP/1.1 is offered everywhere, so that a browser can be told that it is wrong.
    fn protocols(&self) -> Vec<Vec<u8>> {
        let offered = match self {
            Port::Http => &[HTTP1_PROTOCOL][..],
            Port::Clients => &[FRAME_PROTOCOL, b"h2", HTTP1_PROTOCOL],
            Port::Peers(_) => &[PEER_PROTOCOL, b"h2", HTTP1_PROTOCOL],
        };
        offered.iter().map(|protocol| protocol.to_vec()).collect()
    }

    /// The flags for certificate, key and authority.
    fn flags(&self) -> [&'static str; 3] {
        match self {
            Port::Clients | Port::Http => ["--tls-cert", "--tls-key", "--tls-client-ca"],
            Port::Peers(_) => ["--peer-cert", "--peer-key", "--peer-ca"],
        }
    }
}

/// The TLS of a port for incoming connections.
pub(crate) struct Greeting {
    port: Port,
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    stamp: Stamp,
    config: Arc<ServerConfig>,
}

/// What changes with a file: modification time, length and inode.
type Stamp = Vec<Option<(i64, i64, u64, u64)>>;

impl Greeting {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with the files, and what to do.
    pub(crate) fn new(port: Port, files: TlsFiles) -> Result<Greeting, String> {
        // Taken before the files are read: if they change meanwhile, they are read again.
        let stamp = stamp_of(&files);
        let config = Arc::new(read_config(&port, &files)?);
        Ok(Greeting { port, files, current: Mutex::new(Current { stamp, config }) })
    }

    /// The configuration from the files as they are now, or the last one that could be used.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let stamp = stamp_of(&self.files);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.stamp != stamp {
            current.stamp = stamp;
            match read_config(&self.port, &self.files) {
                Ok(config) => {
                    tracing::info!(port = ?self.port, "the certificate has changed, and is used from now on");
                    current.config = Arc::new(config);
                }
                Err(reason) => {
                    tracing::warn!(port = ?self.port, reason, "the certificate has changed and cannot be used: the old one stays");
                }
            }
        }
        current.config.clone()
    }
}

fn stamp_of(files: &TlsFiles) -> Stamp {
    let paths = [Some(&files.certificate), Some(&files.key), files.authority.as_ref()];
    let stamp = |path: &PathBuf| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.mtime(), about.mtime_nsec(), about.len(), about.ino()))
    };
    paths.into_iter().flatten().map(stamp).collect()
}

fn read_config(port: &Port, files: &TlsFiles) -> Result<ServerConfig, String> {
    let [certificate_flag, key_flag, authority_flag] = port.flags();
    let chain = read_certificates(&files.certificate, certificate_flag)?;
    let key = read_key(&files.key, key_flag)?;
    let versions = if let Port::Peers(_) = port { &[&TLS13][..] } else { &[&TLS13, &TLS12] };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .expect("the provider knows every version");
    let builder = match &files.authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(read_authority(authority, authority_flag)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
                .build()
                .map_err(|error| format!("{} cannot be used: {error}", authority.display()))?;
            if let Port::Peers(name) = port {
                // Checked when this node starts. Otherwise every other node would refuse it later.
                let as_server = ExactName::new(roots, name)?.check(&chain);
                let as_client = verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).map(drop);
                as_server.and(as_client).map_err(|error| not_for_peers(&files.certificate, name, &chain, &error))?;
            }
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        format!(
            "{certificate} and {key} cannot be used together ({error}): give the key that the certificate was made for"
        )
    })?;
    config.alpn_protocols = port.protocols();
    if let Port::Peers(_) = port {
        // No session resumption: peers connect rarely, and their certificate is checked each time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn not_for_peers(path: &Path, name: &str, chain: &[CertificateDer<'_>], error: &Error) -> String {
    let path = path.display();
    let names = names_of(&chain[0]);
    if names.iter().any(|it| it == name) {
        return format!(
            "{path} is not a certificate that peers accept ({error}): it must be signed by an authority in --peer-ca, be valid \
             now, and be allowed for servers and for clients"
        );
    }
    let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
    format!(
        "{path} is for {names}, and this node is called {name:?}: a peer's certificate must have its node's name as a DNS name \
         (subjectAltName). Make such a certificate, or say another --name"
    )
}

/// The only source of cryptography. Never the process default, which other code may have set.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads a file. The bytes are wiped when they are dropped, because they may be a key.
fn read(path: &Path, flag: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    std::fs::read(path).map(Zeroizing::new).map_err(|error| {
        format!("cannot read {}: {error}; say a file that this user may read with {flag}", path.display())
    })
}

fn read_certificates(path: &Path, flag: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(path, flag)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let refused = |why: String| {
        format!("{}: {why}; give {flag} a PEM file, with -----BEGIN CERTIFICATE----- in it", path.display())
    };
    match found {
        Ok(found) if found.is_empty() => Err(refused("there is no certificate in it".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(refused(error.to_string())),
    }
}

fn read_key(path: &Path, flag: &str) -> Result<PrivateKeyDer<'static>, String> {
    // The error never shows the content of the file.
    PrivateKeyDer::from_pem_slice(&read(path, flag)?).map_err(|_| {
        format!(
            "{}: there is no private key in it; give {flag} a PEM file, with -----BEGIN PRIVATE KEY----- in it and no password",
            path.display()
        )
    })
}

fn read_authority(path: &Path, flag: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path, flag)? {
        roots
            .add(certificate)
            .map_err(|error| format!("{}: {error}; give {flag} the certificate of an authority", path.display()))?;
    }
    Ok(roots)
}

/// The DNS names that a certificate is for.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    match webpki::EndEntityCert::try_from(certificate) {
        Ok(parsed) => parsed.valid_dns_names().map(str::to_owned).collect(),
        // A certificate that cannot be parsed has no name.
        Err(_) => Vec::new(),
    }
}

/// Alerts of another node's port (see `wrong_door.rs`), and what they mean to a calling node.
const ALERTS: [(&str, &str); 2] = [
    ("ProtocolVersion", ": it speaks plain text; start all nodes with --peer-cert, --peer-key and --peer-ca, or none"),
    (
        "NoApplicationProtocol",
        ": this is not its port for other nodes; check the peer address of the member (--advertise-peer)",
    ),
];

/// The TLS of outgoing calls: the trusted authority, and the certificate to show. The files are read for each connection.
#[derive(Clone, Debug)]
pub(crate) struct Calling {
    authority: PathBuf,
    authority_flag: &'static str,
    identity: Option<TlsFiles>,
}

impl Calling {
    /// For calls from peer to peer.
    pub(crate) fn peers(files: &TlsFiles) -> Option<Calling> {
        let authority = files.authority.clone()?;
        Some(Calling { authority, authority_flag: "--peer-ca", identity: Some(files.clone()) })
    }

    /// For calls to another node's port for clients. Shows the certificate for peers, if there is one.
    pub(crate) fn clients(join_authority: Option<&PathBuf>, peer: Option<&TlsFiles>) -> Option<Calling> {
        let (authority, authority_flag) = match join_authority {
            Some(authority) => (authority.clone(), "--join-ca"),
            None => (peer?.authority.clone()?, "--peer-ca"),
        };
        Some(Calling { authority, authority_flag, identity: peer.cloned() })
    }

    /// Checks the file of the authority.
    ///
    /// # Errors
    /// If the file is missing or has no usable certificate.
    pub(crate) fn check(&self) -> Result<(), String> {
        read_authority(&self.authority, self.authority_flag).map(drop)
    }

    /// Does the handshake with this member on a connection that carries frames. Any other node is refused, whatever the address.
    pub(crate) async fn greet_member(&self, socket: TcpStream, name: &str) -> Result<TlsStream<TcpStream>, String> {
        let verifier = self.exactly(name)?;
        let server = verifier.name.clone();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider knows every version")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let chain = read_certificates(&files.certificate, "--peer-cert")?;
                let key = read_key(&files.key, "--peer-key")?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
        };
        config.alpn_protocols = vec![PEER_PROTOCOL.to_vec()];
        let greeted = TlsConnector::from(Arc::new(config)).connect(server, socket).await;
        greeted.map(TlsStream::from).map_err(|error| {
            let said = error.to_string();
            let hint = ALERTS.iter().find(|(alert, _)| said.contains(alert)).map_or("", |(_, hint)| hint);
            said + hint
        })
    }

    fn exactly(&self, name: &str) -> Result<ExactName, String> {
        ExactName::new(Arc::new(read_authority(&self.authority, self.authority_flag)?), name)
    }

    /// The same for a gRPC call.
    pub(crate) fn member(&self, endpoint: Endpoint, name: &str) -> Result<Endpoint, String> {
        let config = self.show(ClientTlsConfig::new().domain_name(name))?;
        endpoint.tls_config_with_verifier(config, Arc::new(self.exactly(name)?)).map_err(|it| it.to_string())
    }

    /// For a gRPC call to an address: accepts any node with a certificate for that address.
    pub(crate) fn host(&self, endpoint: Endpoint) -> Result<Endpoint, String> {
        let authority = Certificate::from_pem(read(&self.authority, self.authority_flag)?);
        let config = self.show(ClientTlsConfig::new().ca_certificate(authority))?;
        endpoint.tls_config(config).map_err(|error| error.to_string())
    }

    fn show(&self, config: ClientTlsConfig) -> Result<ClientTlsConfig, String> {
        let Some(files) = &self.identity else { return Ok(config) };
        let (certificate, key) = (read(&files.certificate, "--peer-cert")?, read(&files.key, "--peer-key")?);
        Ok(config.identity(Identity::from_pem(certificate, key)))
    }
}

/// Accepts only a certificate with exactly this name. A wildcard is refused: it would match every member.
#[derive(Debug)]
struct ExactName {
    of_the_authority: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ExactName {
    fn new(roots: Arc<RootCertStore>, name: &str) -> Result<ExactName, String> {
        let of_the_authority = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let of_the_authority = of_the_authority.map_err(|error| error.to_string())?;
        match ServerName::try_from(name.to_owned()) {
            Ok(name @ ServerName::DnsName(_)) => Ok(ExactName { of_the_authority, name }),
            _ => Err(format!(
                "{name:?} cannot be a DNS name in a certificate: with TLS among peers, say a --name of letters, digits, \
                 hyphens and dots"
            )),
        }
    }

    fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        self.verify_server_cert(&chain[0], &chain[1..], &self.name, &[], UnixTime::now()).map(drop)
    }
}

impl ServerCertVerifier for ExactName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        revocation: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.of_the_authority.verify_server_cert(certificate, between, &self.name, revocation, now)?;
        let name = self.name.to_str();
        if names_of(certificate).iter().any(|it| *it == name) {
            Ok(verified)
        } else {
            Err(Error::InvalidCertificate(CertificateError::NotValidForName))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_the_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_the_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_the_authority.supported_verify_schemes()
    }
}
