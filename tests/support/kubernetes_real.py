"""A real Kubernetes API server with etcd and kubectl, built from source once and cached."""

import fcntl
import json
import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.paths import ROOT
from support.store_servers.processes import free_port, is_listening, server_process

VERSION = "1.36.4"
MODULE = ROOT / "tests/kubernetes/apiserver"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
_ADMIN = "admin-of-the-tests"


def binaries() -> Path:
    """Return the directory with the three programs; the first build takes about ten minutes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    directory = cache / f"rayhistory-tests/kubernetes-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:  # for concurrent test runs
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, package in PROGRAMS.items():
            if not (directory / name).exists():
                _build(package, directory / name)
    return directory


def _build(package: str, target: Path) -> None:
    if shutil.which("go") is None:
        raise RuntimeError(f"{target.name} is built from source, and Go is not installed: see https://go.dev/dl")
    partial = target.with_suffix(".partial")
    version = f"-X k8s.io/component-base/version.gitVersion=v{VERSION}"
    command = ["go", "build", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w {version}", "-o", str(partial), package]
    done = subprocess.run(
        command, cwd=MODULE, env=os.environ | {"CGO_ENABLED": "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{target.name} {VERSION} could not be built:\n{done.stderr[-2000:]}")
    partial.rename(target)


@dataclass(frozen=True)
class ControlPlane:
    """A running API server, with administrator access."""

    url: str
    certificate: Path
    kubeconfig: Path
    programs: Path

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl, and return its result even if it failed."""
        command: list[str | Path] = [self.programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl, which must succeed, and return its output."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def token(self, service_account: str, namespace: str = "default", *arguments: str) -> str:
        """Create a token of an existing service account."""
        return self.kubectl("create", "token", service_account, "-n", namespace, *arguments).strip()


@contextmanager
def control_plane(programs: Path, directory: Path) -> Iterator[ControlPlane]:
    with ExitStack() as stack:
        etcd = stack.enter_context(_etcd(programs, directory / "etcd"))
        yield stack.enter_context(_api_server(programs, directory / "api", etcd))


@contextmanager
def _etcd(programs: Path, directory: Path) -> Iterator[str]:
    directory.mkdir()
    port, peer = free_port(), free_port()
    command: list[str | Path] = [
        programs / "etcd", f"--data-dir={directory / 'data'}", "--unsafe-no-fsync",
        f"--listen-client-urls=http://127.0.0.1:{port}", f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
    ]  # fmt: skip
    with server_process(command, directory, lambda: is_listening(port)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _api_server(programs: Path, directory: Path, etcd: str) -> Iterator[ControlPlane]:
    directory.mkdir()
    port = free_port()
    tokens, key = directory / "tokens.csv", directory / "service-accounts.pem"
    tokens.write_text(f'{_ADMIN},admin,admin,"system:masters"\n')
    _write_key(key)
    command: list[str | Path] = [
        programs / "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={directory / 'certificates'}",
        f"--token-auth-file={tokens}", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}", "--allow-privileged=true",
    ]  # fmt: skip
    certificate = directory / "certificates/apiserver.crt"
    url = f"https://127.0.0.1:{port}"
    with server_process(command, directory, lambda: is_listening(port) and certificate.exists() and _ready(url)):
        kubeconfig = directory / "kubeconfig.json"
        kubeconfig.write_text(json.dumps(_kubeconfig(url, certificate)))
        yield ControlPlane(url, certificate, kubeconfig, programs)


def _write_key(path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _ready(url: str) -> bool:
    unverified = ssl._create_unverified_context()  # noqa: S323 - its certificate is self-signed
    request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": f"Bearer {_ADMIN}"})
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unverified)
    )
    try:
        with opener.open(request, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _kubeconfig(url: str, certificate: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "admin", "user": {"token": _ADMIN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "current-context": "tests",
    }
