//! Starts a server to measure, finds its processes, and stops it when dropped.
//!
//! kube-apiserver comes from the lab's scripts; ours is the release binary beside this one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq)]
pub enum PeerKind {
    /// A built-in kind of Kubernetes: stored as protobuf, its fastest form.
    KubernetesConfigMap,
    /// The same objects as ours, as a custom resource.
    KubernetesCustom,
    CausewaySqlite,
    CausewayEtcd,
}

impl PeerKind {
    pub const ALL: [PeerKind; 4] = [
        PeerKind::KubernetesConfigMap,
        PeerKind::KubernetesCustom,
        PeerKind::CausewaySqlite,
        PeerKind::CausewayEtcd,
    ];

    pub fn name(self) -> &'static str {
        match self {
            PeerKind::KubernetesConfigMap => "kube-apiserver, ConfigMap",
            PeerKind::KubernetesCustom => "kube-apiserver, EService as CRD",
            PeerKind::CausewaySqlite => "causeway on SQLite, EService",
            PeerKind::CausewayEtcd => "causeway on etcd, EService",
        }
    }

    /// The name on the command line.
    pub fn short(self) -> &'static str {
        match self {
            PeerKind::KubernetesConfigMap => "configmap",
            PeerKind::KubernetesCustom => "custom",
            PeerKind::CausewaySqlite => "sqlite",
            PeerKind::CausewayEtcd => "etcd",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, PeerKind::CausewaySqlite | PeerKind::CausewayEtcd)
    }

    pub fn collection(self) -> &'static str {
        match self {
            PeerKind::KubernetesConfigMap => "/api/v1/namespaces/default/configmaps",
            _ => "/apis/causeway.io/v1/eservices",
        }
    }

    pub fn object(self, name: &str) -> Value {
        let metadata = json!({"name": name, "labels": {"app": "bench", "tier": "edge"}});
        match self {
            PeerKind::KubernetesConfigMap => json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
                "data": {"ip": "10.0.0.10", "port": "8080", "protocol": "TCP", "domainName": "web.example.com", "eSiteName": "berlin"}
            }),
            _ => json!({
                "apiVersion": "causeway.io/v1", "kind": "EService", "metadata": metadata,
                "ip": "10.0.0.10", "port": 8080, "protocol": "TCP", "domainName": "web.example.com", "eSiteName": "berlin"
            }),
        }
    }
}

/// Memory and CPU of the server's processes, the API server apart from its etcd.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub server_bytes: u64,
    pub etcd_bytes: u64,
    pub cpu: Duration,
}

pub struct Peer {
    pub kind: PeerKind,
    config: kube::Config,
    server: u32,
    etcd: Option<u32>,
    children: Vec<Child>,
    directory: tempfile::TempDir,
}

impl Peer {
    pub async fn start(kind: PeerKind) -> Result<Peer> {
        let directory = tempfile::tempdir()?;
        let (kubeconfig, server, etcd, children) = match kind {
            PeerKind::KubernetesConfigMap | PeerKind::KubernetesCustom => start_kubernetes(directory.path())?,
            PeerKind::CausewaySqlite => start_causeway(directory.path(), None)?,
            PeerKind::CausewayEtcd => start_causeway_on_etcd(directory.path())?,
        };
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let peer = Peer { kind, config, server, etcd, children, directory };
        peer.wait_until_ready().await?;
        Ok(peer)
    }

    /// A client with connections of its own.
    pub fn client(&self) -> Result<kube::Client> {
        Ok(kube::Client::try_from(self.config.clone())?)
    }

    pub fn usage(&self) -> Result<Usage> {
        let etcd = self.etcd.map(usage_of).transpose()?.unwrap_or_default();
        let server = usage_of(self.server)?;
        Ok(Usage { server_bytes: server.0, etcd_bytes: etcd.0, cpu: server.1 + etcd.1 })
    }

    async fn wait_until_ready(&self) -> Result<()> {
        if self.kind == PeerKind::KubernetesCustom {
            self.install_definition().await?;
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let request =
                http::Request::get(format!("{}?limit=1", self.kind.collection())).body(Vec::new())?;
            match self.client()?.request_text(request).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("the peer does not answer");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn install_definition(&self) -> Result<()> {
        let definition = repository().join("deploy/crds/eservices.yaml");
        let body =
            std::fs::read(&definition).with_context(|| format!("cannot read {}", definition.display()))?;
        let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
            .header("content-type", "application/yaml")
            .body(body)?;
        self.client()?.request_text(request).await.context("the definition was refused")?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        if !self.kind.is_ours() {
            let down = repository().join("tests/k8s/lab/kube-apiserver-down");
            Command::new(down).arg(self.directory.path()).status().ok();
        }
    }
}

type Started = (PathBuf, u32, Option<u32>, Vec<Child>);

fn start_kubernetes(directory: &Path) -> Result<Started> {
    let up = repository().join("tests/k8s/lab/kube-apiserver-up");
    let status = Command::new(up).arg(directory).stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("kube-apiserver-up failed");
    }
    let pid =
        |name: &str| -> Result<u32> { Ok(std::fs::read_to_string(directory.join(name))?.trim().parse()?) };
    Ok((directory.join("kubeconfig"), pid("apiserver.pid")?, Some(pid("etcd.pid")?), Vec::new()))
}

fn start_causeway(directory: &Path, store: Option<&str>) -> Result<Started> {
    let data = directory.join("cloud");
    let program = std::env::current_exe()?.with_file_name("causeway");
    let mut command = Command::new(program);
    command.args([
        "cloud",
        "--api",
        "127.0.0.1:0",
        "--channel",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--data-dir",
    ]);
    command.arg(&data).stderr(std::fs::File::create(directory.join("cloud.log"))?);
    if let Some(store) = store {
        command.args(["--store", store]);
    }
    let child = command.spawn().context("cannot start causeway; run bench/run, which builds it")?;
    let kubeconfig = data.join("admin.kubeconfig");
    wait_for_file(&data.join("run/addresses.json"))?;
    wait_for_file(&kubeconfig)?;
    Ok((kubeconfig, child.id(), None, vec![child]))
}

fn start_causeway_on_etcd(directory: &Path) -> Result<Started> {
    let install = Command::new(repository().join("tests/k8s/lab/install-etcd")).output()?;
    let printed = String::from_utf8(install.stdout)?;
    let program = printed.lines().last().context("install-etcd printed no path")?;
    let (client, peer) = (free_port()?, free_port()?);
    let endpoint = format!("http://127.0.0.1:{client}");
    let child = Command::new(program)
        .arg("--data-dir")
        .arg(directory.join("etcd"))
        .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
        .args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")])
        .stderr(std::fs::File::create(directory.join("etcd.log"))?)
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start etcd")?;
    let etcd = child.id();
    let (kubeconfig, server, _, mut children) = start_causeway(directory, Some(&format!("etcd={endpoint}")))?;
    children.push(child);
    Ok((kubeconfig, server, Some(etcd), children))
}

fn wait_for_file(path: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        if Instant::now() > deadline {
            bail!("{} did not appear; see cloud.log beside the data dir", path.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Resident bytes and CPU time of a process, from /proc.
pub fn usage_of(pid: u32) -> Result<(u64, Duration)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = resident.trim().trim_end_matches("kB").trim().parse()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("unexpected form of /proc stat")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // utime and stime are the fields 14 and 15, counted in ticks of 10 ms.
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok((kilobytes * 1024, Duration::from_millis(ticks * 10)))
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}
