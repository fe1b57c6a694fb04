"""The real program: HTTPS with a certificate that changes, the names that it goes by, and mistakes in its settings."""

import datetime
import http.client
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from guarded import OURS, PROGRAM, bearer, environment, keep_sessions, program, rules
from recorded_sample import NODE, REF, settings_for


def write_certificate(directory: Path, name: str) -> int:
    """A certificate for loopback, signed by itself; its number."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (directory / "tls.key").write_bytes(pem)
    (directory / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return made.serial_number


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def served_certificate(address: str) -> int:
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 20) as plain, unverified().wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    first = write_certificate(tmp_path, "first")
    flags = (f"--tls-cert={tmp_path / 'tls.crt'}", f"--tls-key={tmp_path / 'tls.key'}", "--auth=token")
    with program(tmp_path, *flags, f"--access-file={rules(tmp_path)}") as address:
        assert address.startswith("https://")
        assert served_certificate(address) == first
        with httpx.Client(base_url=address, verify=unverified(), trust_env=False) as client:
            signed_in = client.post("/api/authenticate", headers=bearer(OURS), json={})
            assert signed_in.headers["set-cookie"].endswith("; Secure")
        (tmp_path / "tls.crt").write_text("half a certificate")
        until = time.monotonic() + 60
        while "the new certificate is not used" not in (tmp_path / "said").read_text():
            assert time.monotonic() < until
            time.sleep(0.1)
        assert served_certificate(address) == first
        second = write_certificate(tmp_path, "second")
        while served_certificate(address) != second:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_connection_that_is_idle_for_a_while_can_be_used_again(tmp_path: Path) -> None:
    """Load balancers keep them for a minute, and take one that is closed for an answer."""
    with program(tmp_path) as address:
        connection = http.client.HTTPConnection(address.partition("//")[2])
        for pause in (6, 0):
            connection.request("GET", "/livez")
            assert connection.getresponse().read()
            time.sleep(pause)
        connection.close()


def test_on_loopback_only_names_of_loopback_are_answered(tmp_path: Path) -> None:
    """Another name may be one that somebody's page has rebound to this machine."""
    audit = tmp_path / "audit"
    with program(tmp_path, f"--audit-log={audit}", "--auth=token", f"--access-file={rules(tmp_path)}") as address:
        with httpx.Client(base_url=address, trust_env=False) as client:
            port = address.rpartition(":")[2]
            for host, status in {
                "localhost": 401,
                f"127.0.0.1:{port}": 401,
                "evil.example": 400,
                "127.0.0.1.evil": 400,
            }.items():
                assert client.get("/clusters", headers={"Host": host}).status_code == status, host
            forged = {"X-Forwarded-For": "198.51.100.7", **bearer("a-token-that-is-wrong")}
            client.get("/clusters", headers=forged)
            assert "server" not in client.get("/livez").headers
        assert '"address":"127.0.0.1"' in audit.read_text()
        assert "198.51.100.7" not in audit.read_text()
        assert "refused" not in (tmp_path / "said").read_text()


def test_rays_command_line_and_ours_sign_in_with_the_token_of_their_environment(tmp_path: Path) -> None:
    keep_sessions(settings_for(tmp_path))
    beside = Path(sys.executable).parent
    with program(tmp_path, "--auth=token", f"--access-file={rules(tmp_path)}") as address:

        def run(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
            clean = {name: value for name, value in environment(tmp_path).items() if not name.startswith("RAY_")}
            command = (str(beside / command[0]), *command[1:])
            return subprocess.run(command, env=clean | more, capture_output=True, text=True, timeout=120, check=False)

        listing = ("ray", "list", "nodes", "--address", f"{address}{REF.url}")
        signed_in = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OURS}
        assert NODE in run(*listing, **signed_in).stdout
        assert "Missing authentication token" in run(*listing, RAY_AUTH_MODE="disabled").stderr
        own = ("rayhistory", "tasks", "--server", address, f"{REF.namespace}/{REF.cluster}")
        assert '"task_id"' in run(*own, "--limit=1", "--json", RAY_AUTH_TOKEN=OURS).stdout
        assert "Missing authentication token" in run(*own).stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--auth=maybe"], "--auth=maybe: use none, token, kubernetes or proxy"),
        (["--tls-cert=/not/there", "--tls-key=/not/there"], "No such file"),
        (["--audit-log=/not/there/file"], "--audit-log=/not/there/file"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(tmp_path: Path, flags: list[str], said: str) -> None:
    (tmp_path / "store").mkdir()
    env = {n: v for n, v in environment(tmp_path).items() if n != "KUBERNETES_SERVICE_HOST"}
    done = subprocess.run([PROGRAM, *flags], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line
