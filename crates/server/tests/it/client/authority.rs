//! An authority that signs certificates for a test, and writes them to files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    /// A new authority with a unique name.
    pub(crate) fn new() -> Authority {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let mut params = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("authority {}", MADE.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("the system has random numbers");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("it signs itself") }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these DNS names and addresses.
    pub(crate) fn sign(&self, names: &[&str]) -> Signed {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("the system has random numbers");
        let params = CertificateParams::new(names).expect("valid names");
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// The authority's own certificate in a file.
    pub(crate) fn write(&self, directory: &Path, name: &str) -> PathBuf {
        write(directory.join(name), &self.pem())
    }
}

impl Signed {
    /// Certificate and key in files of this name.
    pub(crate) fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = write(directory.join(format!("{name}.pem")), &self.certificate);
        (certificate, write(directory.join(format!("{name}.key")), &self.key))
    }
}

fn write(path: PathBuf, text: &str) -> PathBuf {
    // Replaced in one step, as a renewal of certificates should do it.
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("a directory of the test");
    std::fs::rename(&new, &path).expect("a directory of the test");
    path
}
