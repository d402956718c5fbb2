//! TLS: a cluster that speaks only TLS, and the clients, peers and files that it must refuse.

use std::path::PathBuf;
use std::sync::Arc;

use crate::client::authority::{Authority, Signed};
use crate::client::{
    AdminServiceClient, Client, ObserveServiceClient, PeerServiceClient, Running, TestDirectory, attach, config, lock,
    run_node, soon, token, until,
};
use fencepost_core::{Outcome, Wait};
use fencepost_server::{Begin, Config, Server, TlsFiles};
use fencepost_wire::{PEER_PROTOCOL, put_frame, take_frame, v1};
use prost::bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// One authority, and the nodes that it signed for.
struct World {
    directory: TestDirectory,
    authority: Authority,
    authority_file: PathBuf,
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    config: Config,
    end: tokio::sync::oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

impl World {
    fn new(name: &str) -> World {
        let (directory, authority) = (TestDirectory::new(name), Authority::new());
        let authority_file = authority.write(directory.path(), "authority.pem");
        World { directory, authority, authority_file, nodes: Vec::new() }
    }

    /// Mutual TLS on all ports: a certificate with the node's name for peers, and one with its address for clients.
    fn config(&self, name: &str, begin: Begin) -> Config {
        let files = |file: &str, names: &[&str]| {
            let (certificate, key) = self.authority.sign(names).write(self.directory.path(), file);
            TlsFiles { certificate, key, authority: Some(self.authority_file.clone()) }
        };
        Config {
            directory: Some(self.directory.path().join(name)),
            tls: Some(files(&format!("{name}-clients"), &["127.0.0.1"])),
            peer_tls: Some(files(&format!("{name}-peers"), &[name])),
            ..config(name, begin)
        }
    }

    async fn start(&mut self, config: Config) {
        let name = config.name.clone();
        let Running { config, end, ended } = run_node(config).await;
        self.nodes.push(Node { name, config, end, ended });
    }

    async fn grow(&mut self, name: &str) {
        let begin = match self.nodes.as_slice() {
            [] => Begin::Found,
            nodes => Begin::Join(nodes.iter().map(|node| node.config.client_listen.to_string()).collect()),
        };
        self.start(self.config(name, begin)).await;
        self.wait_for_voters(self.nodes.len()).await;
    }

    /// Shuts a node down. The returned configuration starts it again at the same addresses.
    async fn end(&mut self, name: &str) -> Config {
        let at = self.nodes.iter().position(|node| node.name == name).expect("the node runs");
        let Node { config, end, ended, .. } = self.nodes.remove(at);
        end.send(()).expect("the node runs");
        soon("the node ends", ended).await.expect("in good order");
        Config { begin: Begin::Never, ..config }
    }

    fn node(&self, name: &str) -> &Config {
        &self.nodes.iter().find(|node| node.name == name).expect("the node runs").config
    }

    /// A client of this node with a certificate of the authority.
    fn channel(&self, node: &Config) -> Channel {
        let tls = trusting(&self.authority).identity(identity(&self.authority.sign(&["client"])));
        channel(node.client_listen, tls)
    }

    async fn status(&self, node: &Config) -> Result<v1::GetStatusResponse, Status> {
        status(self.channel(node)).await
    }

    async fn wait_for_voters(&self, count: usize) {
        until("all vote", async || {
            for node in &self.nodes {
                let status = self.status(&node.config).await.ok()?;
                let voters =
                    status.members.iter().filter(|it| it.role == v1::MemberRole::Voter as i32 && !it.name.is_empty());
                (voters.count() == count && status.leader.is_some()).then_some(())?;
            }
            Some(())
        })
        .await;
    }

    /// A stream to the leader.
    async fn client(&self) -> Client {
        until("a node leads", async || {
            for node in &self.nodes {
                if let Ok(client) = Client::connect_as("tests", self.channel(&node.config)).await {
                    return Some(client);
                }
            }
            None
        })
        .await
    }

    /// The hello of the member `from` to the node `to`.
    async fn hello(&self, to: &str, from: u64) -> v1::PeerHello {
        let status = self.status(self.node(to)).await.expect("the node answers");
        let (cluster_high, cluster_low) = (status.cluster_high, status.cluster_low);
        let (to, peer_address) = (status.node, "127.0.0.1:1".to_owned());
        let version = "0.0.0".to_owned();
        let (oldest_format, newest_format) = (1, 1);
        v1::PeerHello { cluster_high, cluster_low, from, to, peer_address, version, oldest_format, newest_format }
    }

    /// A connection to this node's port for peers, with this certificate.
    async fn connect_as_peer(&self, to: &str, shown: Option<&Signed>) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(to.to_owned()).expect("a name");
        greet(self.node(to).peer_listen, name, &self.authority, shown, PEER_PROTOCOL).await
    }

    /// Calls a node as a peer that shows this certificate and claims to be the member `from`. `Err` is the reason of the refusal.
    async fn call_as_peer(&self, to: &str, shown: Option<&Signed>, from: u64) -> Result<(), String> {
        let hello = self.hello(to, from).await;
        let delivered = v1::DeliverRequest { hello: Some(hello.clone()), messages: Vec::new() };
        let mut stream = self.connect_as_peer(to, shown).await.map_err(|_| String::new())?;
        // This fails if the node has refused already; the refusal can still be read.
        let _ = say(&mut stream, &delivered).await;
        let _ = stream.shutdown().await;
        refusal(stream).await.map_or(Ok(()), Err)?;
        // The call for snapshots makes the same checks. No valid snapshot follows the hello, so the node installs nothing.
        let snapshot = v1::InstallSnapshotRequest { hello: Some(hello), ..Default::default() };
        let tls = trusting(&self.authority).domain_name(to);
        let tls = match shown {
            Some(shown) => tls.identity(identity(shown)),
            None => tls,
        };
        let mut peer = PeerServiceClient::new(channel(self.node(to).peer_listen, tls));
        match peer.install_snapshot(tokio_stream::once(snapshot)).await {
            Err(status) if status.code() == Code::InvalidArgument => Ok(()),
            other => other.map(drop).map_err(|status| reason(&status)),
        }
    }
}

async fn say(stream: &mut TlsStream<TcpStream>, message: &v1::DeliverRequest) -> std::io::Result<()> {
    let mut bytes = BytesMut::new();
    put_frame(message, &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// The reason with which a node hangs up. `None` if it gives none, empty if the handshake failed.
async fn refusal(mut stream: TlsStream<TcpStream>) -> Option<String> {
    let mut bytes = BytesMut::new();
    loop {
        if let Some(answer) = take_frame::<v1::DeliverResponse>(&mut bytes, 10_000).expect("a valid message") {
            return Some(answer.reason);
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return None,
            Ok(_) => {}
            Err(_) => return Some(String::new()),
        }
    }
}

fn trusting(authority: &Authority) -> ClientTlsConfig {
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()))
}

fn identity(signed: &Signed) -> Identity {
    Identity::from_pem(&signed.certificate, &signed.key)
}

fn channel(address: impl std::fmt::Display, tls: ClientTlsConfig) -> Channel {
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an address");
    endpoint.tls_config(tls).expect("valid certificates").connect_lazy()
}

async fn status(channel: Channel) -> Result<v1::GetStatusResponse, Status> {
    let answer = ObserveServiceClient::new(channel).get_status(v1::GetStatusRequest {}).await?;
    Ok(answer.into_inner())
}

/// The reason in an error, as programs read it.
fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

#[tokio::test]
async fn three_nodes_speak_only_tls_and_a_lock_outlives_each_of_them() {
    let mut world = World::new("tls-cluster");
    for name in ["n1", "n2", "n3"] {
        world.grow(name).await;
    }
    let mut client = world.client().await;
    client.open(1, 60_000).await;
    let first = token(&client.ask(1, 1, 1, lock("kept", Wait::No)).await);
    for (round, name) in ["n1", "n2", "n3"].into_iter().enumerate() {
        let config = world.end(name).await;
        let mut client = world.client().await;
        client.say(v1::ClientMessage { attaches: vec![attach(1, round as u64)], ..Default::default() }).await;
        let Outcome::Attached(attached) = client.outcome().await else { panic!("not attached") };
        assert_eq!(attached.grants.iter().map(|grant| grant.token).collect::<Vec<_>>(), [first]);
        world.start(config).await;
        world.wait_for_voters(3).await;
    }
}

#[tokio::test]
async fn clients_without_the_right_certificate_are_refused() {
    let mut world = World::new("tls-clients");
    world.grow("n1").await;
    let (address, mine) = (world.node("n1").client_listen, world.authority.sign(&["client"]));
    let (other, other_mine) = {
        let other = Authority::new();
        let mine = other.sign(&["client"]);
        (other, mine)
    };
    let good = trusting(&world.authority).identity(identity(&mine));
    status(channel(address, good)).await.expect("this certificate is accepted");
    let bad = [
        ("no certificate", trusting(&world.authority)),
        ("a certificate of another authority", trusting(&world.authority).identity(identity(&other_mine))),
        ("trusts another authority", trusting(&other).identity(identity(&mine))),
        ("trusts no authority", ClientTlsConfig::new().identity(identity(&mine))),
        ("another host", trusting(&world.authority).identity(identity(&mine)).domain_name("elsewhere.example")),
    ];
    for (what, tls) in bad {
        let refused = soon(what, status(channel(address, tls))).await.expect_err(what);
        assert!(matches!(refused.code(), Code::Unavailable | Code::Unknown), "{what}: {refused:?}");
    }
    let plain = soon("it is refused", status(crate::client::channel(address))).await;
    assert!(plain.is_err(), "in plain text: {plain:?}");
    status(world.channel(world.node("n1"))).await.expect("the refused clients did no harm");
}

#[tokio::test]
async fn http_is_behind_tls_too() {
    let mut world = World::new("tls-http");
    let mut settings = world.config("n1", Begin::Found);
    settings.tls.as_mut().expect("it has TLS").authority = None;
    world.start(settings).await;
    let address = world.node("n1").http_listen;
    let mut stream = connect(address, &world.authority).await.expect("the handshake succeeds");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");

    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The connection may be cut off in the middle of the answer.
    let _ = soon("it is cut off", plain.read_to_end(&mut answer)).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200"), "{answer:?}");
}

/// A TLS connection without a client certificate.
async fn connect(address: std::net::SocketAddr, authority: &Authority) -> std::io::Result<TlsStream<TcpStream>> {
    greet(address, ServerName::from(address.ip()), authority, None, b"http/1.1").await
}

/// A TLS connection to a server with this name, which shows this client certificate and speaks this protocol.
pub(crate) async fn greet(
    address: std::net::SocketAddr,
    name: ServerName<'static>,
    authority: &Authority,
    shown: Option<&Signed>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some(shown) => {
            let chain = vec![CertificateDer::from_pem_slice(shown.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).expect("a certificate with its key")
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

#[tokio::test]
async fn a_peer_needs_a_certificate_with_the_name_of_the_member_that_it_claims_to_be() {
    let mut world = World::new("tls-peers");
    world.grow("n1").await;
    world.grow("n2").await;
    let ids = world.status(world.node("n1")).await.unwrap().members;
    let id = |name: &str| ids.iter().find(|it| it.name == name).expect("it is a member").node;
    let (authority, other) = (&world.authority, Authority::new());
    let shows = |names: &[&str]| Some(authority.sign(names));

    let n2 = shows(&["n2"]);
    world.call_as_peer("n1", n2.as_ref(), id("n2")).await.expect("n2 is the member that it claims to be");
    let more = shows(&["host.example", "n2"]);
    world.call_as_peer("n1", more.as_ref(), id("n2")).await.expect("a certificate may have further names");
    let refused = [
        ("a name of no member", shows(&["n9"]), id("n2")),
        ("n2 claims to be n1", shows(&["n2"]), id("n1")),
        ("n2 claims to be an unknown node", shows(&["n2"]), 77),
        ("the name of the node that is called", shows(&["n1"]), id("n2")),
        ("a wildcard", shows(&["*"]), id("n2")),
        ("the name in upper case", shows(&["N2"]), id("n2")),
        ("an address and no name", shows(&["127.0.0.1"]), id("n2")),
    ];
    for (what, shown, from) in refused {
        let reason = soon(what, world.call_as_peer("n1", shown.as_ref(), from)).await.expect_err(what);
        assert_eq!(reason, "UNKNOWN_PEER", "{what}");
    }
    let no_handshake = [("no certificate", None), ("the right name by the wrong authority", Some(other.sign(&["n2"])))];
    for (what, shown) in no_handshake {
        let reason = soon(what, world.call_as_peer("n1", shown.as_ref(), id("n2"))).await.expect_err(what);
        assert!(reason.is_empty(), "{what} reaches the service: {reason}");
    }
    world.wait_for_voters(2).await;
}

#[tokio::test]
async fn a_member_sends_only_its_own_messages_and_only_while_it_is_a_member() {
    let mut world = World::new("tls-speaks");
    world.grow("n1").await;
    world.grow("n2").await;
    world.grow("n3").await;
    let ids = world.status(world.node("n1")).await.unwrap().members;
    let id = |name: &str| ids.iter().find(|it| it.name == name).expect("it is a member").node;
    let as_n3 = Some(world.authority.sign(&["n3"]));

    let hello = world.hello("n1", id("n3")).await;
    let message = heartbeat(&hello, id("n2"));
    let message_of_n2 = v1::DeliverRequest { hello: Some(hello), messages: vec![message] };
    let mut stream = world.connect_as_peer("n1", as_n3.as_ref()).await.expect("the handshake succeeds");
    say(&mut stream, &message_of_n2).await.expect("the node reads");
    assert_eq!(soon("n3 sends a message of n2", refusal(stream)).await.as_deref(), Some("FOREIGN_NAME"));

    // The connection is open when its member is removed.
    world.end("n3").await;
    let hello = world.hello("n1", id("n3")).await;
    let mut stream = world.connect_as_peer("n1", as_n3.as_ref()).await.expect("the handshake succeeds");
    say(&mut stream, &v1::DeliverRequest { hello: Some(hello), messages: Vec::new() }).await.expect("the node reads");
    until("n3 is removed", async || {
        for node in &world.nodes {
            let mut admin = AdminServiceClient::new(world.channel(&node.config));
            let _ = admin.remove_member(v1::RemoveMemberRequest { node: id("n3"), ..Default::default() }).await;
        }
        let members = world.status(world.node("n1")).await.ok()?.members;
        members.iter().all(|it| it.name != "n3").then_some(())
    })
    .await;
    say(&mut stream, &v1::DeliverRequest::default()).await.expect("the node reads");
    assert_eq!(soon("n3 is refused", refusal(stream)).await.as_deref(), Some("UNKNOWN_PEER"));
}

/// The bytes of a consensus message of that node: a heartbeat in term 1.
fn heartbeat(hello: &v1::PeerHello, from: u64) -> Vec<u8> {
    let mut bytes = vec![0x09];
    bytes.extend(hello.cluster_high.to_le_bytes());
    bytes.push(0x11);
    bytes.extend(hello.cluster_low.to_le_bytes());
    for (field, mut value) in [(3_u8, 1), (4, 6), (5, from), (6, hello.to), (7, 1)] {
        bytes.push(field << 3);
        while value > 0x7f {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }
    fencepost_replica::decode_peer(&bytes).expect("a valid message");
    bytes
}

#[tokio::test]
async fn a_node_connects_only_to_the_member_that_it_means() {
    let mut world = World::new("tls-dials");
    world.grow("n1").await;
    let mut admin = AdminServiceClient::new(world.channel(world.node("n1")));
    // These members do not exist. A listener at each address shows a right or a wrong certificate.
    let cases =
        [("n2", "n2", true), ("n3", "n2", false), ("a.nodes.example", "*.nodes.example", false), ("n5", "N5", false)];
    for (node, (name, shown, is_right)) in (100..).zip(cases) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let signed = world.authority.sign(&[shown]);
        let peer_address = listener.local_addr().unwrap().to_string();
        let member = v1::AddMemberRequest {
            node,
            name: name.to_owned(),
            peer_address,
            client_address: "127.0.0.1:1".to_owned(),
            ..Default::default()
        };
        admin.add_member(member).await.unwrap_or_else(|status| panic!("{name} is added: {status:?}"));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(signed.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![PEER_PROTOCOL.to_vec()];
        let (stream, _) = soon("n1 calls", listener.accept()).await.unwrap();
        let greeted = soon("n1 decides", TlsAcceptor::from(Arc::new(config)).accept(stream)).await;
        assert_eq!(greeted.is_ok(), is_right, "{name} shown {shown}: {:?}", greeted.err());
    }
}

#[tokio::test]
async fn a_node_that_was_down_asks_members_about_new_members() {
    let mut world = World::new("tls-away");
    for name in ["n1", "n2", "n3"] {
        world.grow(name).await;
    }
    let away = world.end("n3").await;
    let known = vec![world.node("n1").client_listen.to_string()];
    world.start(world.config("n4", Begin::Join(known))).await;
    world.wait_for_voters(4).await;
    let id = world.status(world.node("n4")).await.unwrap().node;
    // When n3 comes back, n4 leads, which n3 has never heard of.
    until("n4 leads", async || {
        for node in &world.nodes {
            let mut admin = AdminServiceClient::new(world.channel(&node.config));
            let asked = v1::TransferLeadRequest { node: id, ..Default::default() };
            let _ = admin.transfer_lead(asked).await;
        }
        let status = world.status(world.node("n4")).await.ok()?;
        (status.leader == Some(id)).then_some(())
    })
    .await;
    world.start(away).await;
    world.wait_for_voters(4).await;
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart_and_a_bad_one_is_not() {
    let mut world = World::new("tls-renewed");
    let mut settings = world.config("n1", Begin::Found);
    settings.tls.as_mut().expect("it has TLS").authority = None;
    world.start(settings).await;
    let address = world.node("n1").http_listen;
    connect(address, &world.authority).await.expect("the first certificate");

    let next = Authority::new();
    let renewed = next.sign(&["127.0.0.1"]);
    let half = Signed { key: "nothing".to_owned(), ..renewed.clone() };
    half.write(world.directory.path(), "n1-clients");
    connect(address, &world.authority)
        .await
        .expect("without its key the new certificate is not used: the first one stays");
    renewed.write(world.directory.path(), "n1-clients");
    connect(address, &next).await.expect("the new certificate");
    assert!(connect(address, &world.authority).await.is_err(), "the first certificate is not used any more");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_with_what_to_do() {
    let world = World::new("tls-files");
    let directory = world.directory.path();
    let (authority, other) = (&world.authority, Authority::new());
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (good, key) = authority.sign(&["n1", "127.0.0.1"]).write(directory, "good");
    let (_, other_key) = authority.sign(&["n1"]).write(directory, "other");
    let (foreign, foreign_key) = other.sign(&["n1"]).write(directory, "foreign");
    let (for_another, for_another_key) = authority.sign(&["n2"]).write(directory, "another");
    let missing = directory.join("missing.pem");
    let (empty, noise) = (write("empty.pem", ""), write("noise.pem", "-----BEGIN CERTIFICATE-----\nnoise\n"));
    let ca = world.authority_file.clone();
    let bare = |begin| Config { tls: None, peer_tls: None, ..world.config("n1", begin) };
    let files = |certificate: &PathBuf, key: &PathBuf, authority: Option<&PathBuf>| {
        Some(TlsFiles { certificate: certificate.clone(), key: key.clone(), authority: authority.cloned() })
    };
    let clients =
        |certificate, key, authority| Config { tls: files(certificate, key, authority), ..bare(Begin::Found) };
    let peers =
        |certificate, key, authority| Config { peer_tls: files(certificate, key, authority), ..bare(Begin::Found) };
    let nowhere = || Begin::Join(vec!["127.0.0.1:1".to_owned()]);
    let cases = [
        (clients(&missing, &key, None), "--tls-cert"),
        (clients(&good, &missing, None), "--tls-key"),
        (clients(&good, &key, Some(&missing)), "--tls-client-ca"),
        (clients(&empty, &key, None), "no certificate in it; give --tls-cert a PEM file"),
        (clients(&noise, &key, None), "give --tls-cert a PEM file"),
        (clients(&key, &key, None), "no certificate in it"),
        (clients(&good, &good, None), "no private key in it; give --tls-key"),
        (clients(&good, &other_key, None), "give the key that the certificate was made for"),
        (clients(&good, &key, Some(&empty)), "give --tls-client-ca a PEM file"),
        (peers(&good, &key, None), "give --peer-ca"),
        (peers(&good, &missing, Some(&ca)), "--peer-key"),
        (peers(&good, &other_key, Some(&ca)), "give the key that the certificate was made for"),
        (peers(&foreign, &foreign_key, Some(&ca)), "signed by an authority in --peer-ca"),
        (peers(&for_another, &for_another_key, Some(&ca)), "is for n2, and this node is called \"n1\""),
        (Config { name: "a node".to_owned(), ..peers(&good, &key, Some(&ca)) }, "say a --name of letters"),
        (Config { begin: nowhere(), ..clients(&good, &key, None) }, "--join-ca"),
        (
            Config { begin: nowhere(), join_authority: Some(missing.clone()), ..clients(&good, &key, None) },
            "with --join-ca",
        ),
        (
            Config { client_listen: ([0, 0, 0, 0], 0).into(), ..peers(&good, &key, Some(&ca)) },
            "give --tls-cert and --tls-key",
        ),
        (
            Config { peer_listen: ([0, 0, 0, 0], 0).into(), ..clients(&good, &key, None) },
            "give --peer-cert, --peer-key and --peer-ca",
        ),
    ];
    for (config, expected) in cases {
        let error = Server::start(config.clone()).await.err().unwrap_or_else(|| panic!("{config:?} should be refused"));
        assert!(error.to_string().contains(expected), "{error} should say {expected}");
        assert!(!error.to_string().contains("PRIVATE KEY-----\n"), "{error} shows a key");
    }
    let open = Config {
        client_listen: ([0, 0, 0, 0], 0).into(),
        http_listen: ([0, 0, 0, 0], 0).into(),
        client_advertise: Some("127.0.0.1:1".to_owned()),
        ..clients(&good, &key, None)
    };
    drop(Server::start(open).await.expect("with TLS a node may listen anywhere"));
}
