"""Discovery of the session, its raylet, dashboard and metrics ports in Ray's temporary directory."""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rayhistory.collector.session.ray_discovery import (
    LatestSession,
    RayletState,
    autoscaler_port,
    find_dashboard_address,
    find_latest_session,
    metrics_port,
    raylet_state,
    session_start_ms,
)

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "a" * 56


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path, because a socket is below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def session(root: Path) -> Path:
    directory = root / SESSION
    (directory / "logs").mkdir(parents=True)
    (directory / "sockets").mkdir()
    (root / "session_latest").symlink_to(SESSION)
    return directory


def test_session_latest_that_leads_to_no_session_is_ignored(root: Path) -> None:
    assert find_latest_session(root / "nothing") is None
    (root / "session_latest").symlink_to("session_gone")
    assert find_latest_session(root) is None
    (root / "session_latest").unlink()
    (root / "session_latest").symlink_to("/etc")
    assert find_latest_session(root) is None


def test_latest_session_has_its_node_id_from_files(root: Path, session: Path) -> None:
    (session / f"metrics_export_port_{NODE}").write_text("1")
    latest = find_latest_session(root)
    assert latest
    assert (latest.session, latest.directory.place, latest.node) == (SESSION, session, NODE)


def test_session_starts_with_its_oldest_file(session: Path) -> None:
    """A collector that starts late does not change that."""
    os.utime(session / "sockets", (1000, 1000))
    assert session_start_ms(session, 2_000_000_000_000) == 1_000_000
    assert session_start_ms(session / "nothing", 5) == 5


def test_pipes_in_place_of_files_do_not_block(root: Path, session: Path) -> None:
    """Opening a pipe waits for a writer."""
    names = ["logs/raylet.out", "logs/dashboard.log", "logs/monitor.log", "ports_by_node.json"]
    for path in [root / "raylet_node_id", session / "metrics_export_port_x", *(session / name for name in names)]:
        os.mkfifo(path)
    results: list[object] = []

    def discover() -> None:
        results.append(isinstance(find_latest_session(root), LatestSession))
        results.extend((find_dashboard_address(session), metrics_port(session, "x"), autoscaler_port(session)))

    thread = threading.Thread(target=discover, daemon=True)
    thread.start()
    thread.join(30)
    assert results == [True, None, None, None]


# Raylet


def test_raylet_is_alive_while_its_socket_accepts_connections(session: Path) -> None:
    """A socket file alone is not enough."""
    assert raylet_state(session) is RayletState.GONE
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(session / "sockets" / "raylet"))
        listener.listen()
        assert raylet_state(session) is RayletState.ALIVE
    assert raylet_state(session) is RayletState.GONE


def test_raylet_of_another_user_is_alive_while_its_logs_grow(root: Path, session: Path) -> None:
    """With Ray as root and the collector as nobody, the socket refuses the collector."""
    path = session / "sockets" / "raylet"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o700)
        root.chmod(0o755)
        (session / "logs" / "raylet.out").write_text("running\n")
        assert _as_nobody(lambda: raylet_state(session)) is RayletState.ACTIVE
        os.utime(session / "logs" / "raylet.out", (1000, 1000))
        assert _as_nobody(lambda: raylet_state(session)) is RayletState.GONE
        assert raylet_state(session) is (RayletState.ALIVE if os.geteuid() == 0 else RayletState.GONE)


def _as_nobody(probe: Callable[[], RayletState]) -> RayletState:
    """Return the result of a probe by the user nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root can change the user")
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(65534)
            code = list(RayletState).index(probe())
        finally:
            os._exit(code)
    return list(RayletState)[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


# Addresses


def test_dashboard_address_is_found_in_its_log(session: Path) -> None:
    """Ray may have chosen another port than the default."""
    assert find_dashboard_address(session) is None
    (session / "logs" / "dashboard.log").write_text("INFO -- Dashboard head http address: 127.0.0.1:8266\n")
    assert find_dashboard_address(session) == "http://127.0.0.1:8266"


@pytest.mark.parametrize(
    "address", ["192.0.2.1:80", "evil.example:80", "0.0.0.0:80", "[::]:80", "169.254.169.254:80", "2130706433:80"]
)
def test_logged_dashboard_address_of_another_machine_is_ignored(session: Path, address: str) -> None:
    log = session / "logs" / "dashboard.log"
    log.write_text(f"Dashboard head http address: {address}\n")
    assert find_dashboard_address(session) is None
    log.write_text(f"Dashboard head http address: [::1]:8266\nDashboard head http address: {address}\n")
    assert find_dashboard_address(session) == "http://[::1]:8266"


def test_logged_dashboard_address_of_an_own_interface_is_used(session: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses the interface
        except OSError:
            pytest.skip("this machine has only loopback")
        own = probe.getsockname()[0]
    (session / "logs" / "dashboard.log").write_text(f"Dashboard head http address: {own}:8265\n")
    assert find_dashboard_address(session) == f"http://{own}:8265"


def test_metrics_port_is_found_in_the_port_file_of_the_node(session: Path) -> None:
    assert metrics_port(session, NODE) is None
    for text, port in (("40099", 40099), ("-1", None), ("x", None), ("99999", None), ("0", None)):
        (session / f"metrics_export_port_{NODE}").write_text(text)
        assert metrics_port(session, NODE) == port


def test_metrics_port_before_ray_2_54_is_found_in_the_common_file(session: Path) -> None:
    ports = {"10.0.0.1:/tmp/plasma_store": {"metrics_agent_port": 1, "metrics_export_port": 8080}}
    (session / "ports_by_node.json").write_bytes(msgspec.json.encode(ports))
    assert metrics_port(session, NODE) == 8080
    for malformed in (b"\xff", b"[]", b"{", b'{"a":1}', b'{"a":{}}'):
        (session / "ports_by_node.json").write_bytes(malformed)
        assert metrics_port(session, NODE) is None


def test_autoscaler_port_is_found_in_its_log(session: Path) -> None:
    line = "2026-11-16 INFO monitor.py:200 -- Starting autoscaler metrics server on port 44217\n"
    (session / "logs/monitor.log").write_text(line)
    assert autoscaler_port(session) == 44217


def test_missing_temporary_directory_is_logged_once_and_found_later(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = root / "mistyped"
    for _ in range(3):
        assert find_latest_session(missing) is None
    (record,) = caplog.records
    assert record.message == "Ray's temporary directory does not exist, waiting for it (--ray-tmp-root)"
    assert record.__dict__["ray_tmp_root"] == str(missing)
    (missing / SESSION / "logs").mkdir(parents=True)
    (missing / "session_latest").symlink_to(missing / SESSION)
    assert find_latest_session(missing)


def test_empty_temporary_directory_is_not_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_latest_session(root) is None
    assert caplog.records == []
