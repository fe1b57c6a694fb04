"""The `historyserver` program: certificate reload, allowed hosts, keep-alive and invalid settings."""

import datetime
import http.client
import signal
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

from rayhistory.server.main import warn_about_open_access
from rayhistory.settings import Settings
from support.recorded_sample import NODE, REF, settings_for
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HISTORYSERVER,
    STDERR,
    bearer,
    run_historyserver,
    server_environment,
    store_sessions,
    write_access_file,
)


def write_certificate(directory: Path, name: str) -> int:
    """Write a self-signed certificate for loopback and return its serial number."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    (directory / "tls.key").write_bytes(pem)
    (directory / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate.serial_number


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def served_serial_number(address: str) -> int:
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 20) as plain, unverified().wrap_socket(plain) as secure:
        certificate = secure.getpeercert(binary_form=True)
    assert certificate
    return x509.load_der_x509_certificate(certificate).serial_number


def test_certificate_is_reloaded_without_a_restart(tmp_path: Path) -> None:
    first = write_certificate(tmp_path, "first")
    flags = (f"--tls-cert={tmp_path / 'tls.crt'}", f"--tls-key={tmp_path / 'tls.key'}", "--auth=token")
    with run_historyserver(tmp_path, *flags, f"--access-file={write_access_file(tmp_path)}") as address:
        assert address.startswith("https://")
        assert served_serial_number(address) == first
        with httpx.Client(base_url=address, verify=unverified(), trust_env=False) as client:
            signed_in = client.post("/api/authenticate", headers=bearer(ALLOWED_TOKEN), json={})
            assert signed_in.headers["set-cookie"].endswith("; Secure")
        (tmp_path / "tls.crt").write_text("half a certificate")
        deadline = time.monotonic() + 60
        while "TLS certificate reload failed, using the previous certificate" not in (tmp_path / STDERR).read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert served_serial_number(address) == first
        second = write_certificate(tmp_path, "second")
        while served_serial_number(address) != second:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_idle_connection_is_kept_open(tmp_path: Path) -> None:
    """Load balancers keep idle connections for a minute, and report one that we closed as an error."""
    with run_historyserver(tmp_path) as address:
        connection = http.client.HTTPConnection(address.partition("//")[2])
        for pause in (6, 0):
            connection.request("GET", "/livez")
            assert connection.getresponse().read()
            time.sleep(pause)
        connection.close()


def test_interrupted_server_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    argv = [str(HISTORYSERVER), "--host", "127.0.0.1", "--port", "0"]
    server = subprocess.Popen(argv, env=server_environment(tmp_path), stderr=subprocess.PIPE, text=True)
    assert server.stderr
    lines = iter(server.stderr)
    assert any('"serving"' in line for line in lines)
    server.send_signal(signal.SIGINT)
    rest = [line for line in lines if not line.startswith("{")]
    assert (server.wait(60), rest) == (130, [])


def test_only_loopback_names_are_allowed_on_loopback(tmp_path: Path) -> None:
    """Any other name may be the result of DNS rebinding."""
    audit = tmp_path / "audit"
    with run_historyserver(
        tmp_path, f"--audit-log={audit}", "--auth=token", f"--access-file={write_access_file(tmp_path)}"
    ) as address:
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
        assert "access denied" in audit.read_text()
        assert "access denied" not in (tmp_path / STDERR).read_text()


@pytest.mark.parametrize(
    ("host", "auth", "warns"),
    [
        *((host, "none", True) for host in ("0.0.0.0", "::", "10.0.0.5", "history.internal")),
        *((host, "none", False) for host in ("127.0.0.1", "::1", "localhost")),
        ("10.0.0.5", "token", False),
    ],
)
def test_access_without_authentication_from_other_machines_is_warned_about(
    host: str, auth: str, *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_about_open_access(Settings(auth=auth), host)
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("authentication is off") for message in messages) == warns


def test_command_lines_sign_in_with_the_token_of_their_environment(tmp_path: Path) -> None:
    store_sessions(settings_for(tmp_path))
    scripts = Path(sys.executable).parent
    with run_historyserver(tmp_path, "--auth=token", f"--access-file={write_access_file(tmp_path)}") as address:

        def run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
            clean = {name: value for name, value in server_environment(tmp_path).items() if not name.startswith("RAY_")}
            command = (str(scripts / command[0]), *command[1:])
            return subprocess.run(
                command, env=clean | variables, capture_output=True, text=True, timeout=120, check=False
            )

        listing = ("ray", "list", "nodes", "--address", f"{address}{REF.url}")
        signed_in = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ALLOWED_TOKEN}
        assert NODE in run(*listing, **signed_in).stdout
        assert "Missing authentication token" in run(*listing, RAY_AUTH_MODE="disabled").stderr
        own = ("rayhistory", "tasks", "--server", address, f"{REF.namespace}/{REF.cluster}")
        assert '"task_id"' in run(*own, "--limit=1", "--json", RAY_AUTH_TOKEN=ALLOWED_TOKEN).stdout
        assert "Missing authentication token" in run(*own).stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--auth=maybe"], "--auth=maybe: use none, token, kubernetes or proxy"),
        (["--tls-cert=/not/there", "--tls-key=/not/there"], "No such file"),
        (["--audit-log=/not/there/file"], "--audit-log=/not/there/file"),
    ],
)
def test_invalid_setting_is_reported_in_one_line(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "store").mkdir()
    env = {n: v for n, v in server_environment(tmp_path).items() if n != "KUBERNETES_SERVICE_HOST"}
    done = subprocess.run([HISTORYSERVER, *flags], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message in line


QUIET_SOCKET = """
import rayhistory.server.main as main
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

async def quiet(socket):
    await socket.accept()
    await socket.receive()

main._PING_INTERVAL_S = 0.05
listener = main.bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
main.serve(Starlette(routes=[WebSocketRoute("/quiet", quiet)]), listener)
"""
UPGRADE = (
    b"GET /quiet HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_quiet_websocket_is_pinged_and_stays_open_without_replies() -> None:
    """Load balancers close connections without traffic; Ray's client may not reply while it prints."""
    ping_header = b"\x89\x04"
    with subprocess.Popen([sys.executable, "-c", QUIET_SOCKET], stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            with socket.create_connection(("127.0.0.1", int(process.stdout.readline())), 20) as connection:
                connection.sendall(UPGRADE)
                stream = connection.makefile("rb")
                assert b" 101 " in stream.readline()
                while stream.readline().strip():
                    pass
                assert [stream.read(6)[:2] for _ in range(3)] == [ping_header] * 3
        finally:
            process.kill()
