"""What Ray's temporary directory tells about the session and the node."""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayhistory.collector.discovery import (
    Raylet,
    Sighting,
    autoscaler_port,
    find_dashboard,
    find_node,
    look,
    metrics_port,
    raylet,
    started_ms,
)
from rayhistory.collector.main import host_cluster_name
from rayhistory.settings import COLLECTOR, parse_command_line, parse_name

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODES = ["a" * 56, "b" * 56, "c" * 56]


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: a socket is below it."""
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


def test_nothing_is_no_session(root: Path) -> None:
    """Neither a missing directory nor a link to nowhere or to something else."""
    assert look(root / "nothing") is None
    (root / "session_latest").symlink_to("session_gone")
    assert look(root) is None
    (root / "session_latest").unlink()
    (root / "session_latest").symlink_to("/etc")
    assert look(root) is None


def test_the_node_is_known_from_port_files_newest_first(root: Path, session: Path) -> None:
    """A raylet that was started again has written new ones."""
    for age, node in enumerate(reversed(NODES)):
        path = session / f"metrics_export_port_{node}"
        path.write_text("1")
        os.utime(path, (1000 - age, 1000 - age))
    assert find_node(session) == NODES[-1]
    seen = look(root)
    assert seen
    assert (seen.session, seen.node) == (SESSION, NODES[-1])


def test_before_ray_2_54_the_node_is_known_from_the_raylets_log(root: Path, session: Path) -> None:
    """The last raylet that says so counts."""
    (session / "logs" / "raylet.out").write_text(
        "".join(f"[2026] main.cc:1: Raylet of id, {node} started. Raylet consists of …\n" for node in NODES)
    )
    assert find_node(session, root) == NODES[-1]


def test_a_raylet_that_came_back_is_found_wherever_its_log_tells_of_it(root: Path, session: Path) -> None:
    """In the middle of a long file that grows on, and in one that was rotated away meanwhile."""
    line, filler = "[2026] main.cc:1: Raylet of id, {} started. Raylet consists of …\n", "x" * 79 + "\n"
    log = session / "logs" / "raylet.out"
    log.write_text(line.format(NODES[0]) + filler * 50_000)
    assert find_node(session, root) == NODES[0]
    for _ in range(2):  # read on from where it was, and from the beginning
        with log.open("a") as file:
            file.write(line.format(NODES[1]) + filler * 50_000)
        assert find_node(session, root) == NODES[1]
        log.replace(log.with_name("raylet.0.out"))
        log.write_bytes(log.with_name("raylet.0.out").read_bytes())
        log.with_name("raylet.0.out").unlink()
    log.replace(log.with_name("raylet.1.out"))
    log.write_text("[2026] nothing of interest\n")
    assert find_node(session, root) == NODES[1]
    log.write_text(line.format(NODES[2]))
    assert find_node(session, root) == NODES[2]


def test_a_pipe_in_the_place_of_a_file_hangs_nothing(root: Path, session: Path) -> None:
    """Whoever opens one waits for somebody who writes; nobody may."""
    names = ["logs/raylet.out", "logs/dashboard.log", "logs/monitor.log", "ports_by_node.json"]
    for path in [root / "raylet_node_id", session / "metrics_export_port_x", *(session / name for name in names)]:
        os.mkfifo(path)
    found: list[object] = []

    def ask() -> None:
        found.append(look(root))
        found.extend((find_dashboard(session), metrics_port(session, "x"), autoscaler_port(session)))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    assert found == [Sighting(SESSION, session, None), None, None, None]


def test_the_hook_file_of_older_setups_is_honoured(root: Path, session: Path) -> None:
    """If nothing better is there; rubbish in it is not."""
    (root / "raylet_node_id").write_text("not an id\n")
    assert find_node(session, root) is None
    (root / "raylet_node_id").write_text(f"{NODES[0]}\n")
    assert find_node(session, root) == NODES[0]


def test_the_raylet_is_there_when_somebody_listens(session: Path) -> None:
    """A socket file alone means nothing."""
    assert raylet(session) is Raylet.GONE
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(session / "sockets" / "raylet"))
        listener.listen()
        assert raylet(session) is Raylet.ALIVE
    assert raylet(session) is Raylet.GONE


def test_a_raylet_of_another_user_is_there_while_its_logs_grow(root: Path, session: Path) -> None:
    """Ray as root, the collector as nobody: the socket lets nobody in."""
    path = session / "sockets" / "raylet"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o700)
        root.chmod(0o755)
        (session / "logs" / "raylet.out").write_text("it runs\n")
        assert _as_nobody(lambda: raylet(session)) is Raylet.ALIVE
        os.utime(session / "logs" / "raylet.out", (1000, 1000))
        assert _as_nobody(lambda: raylet(session)) is Raylet.GONE
        assert raylet(session) is (Raylet.ALIVE if os.geteuid() == 0 else Raylet.GONE)


def _as_nobody(question: Callable[[], Raylet]) -> Raylet:
    """The answer to another user; without the right to become one, that of a socket which lets nobody in."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(65534)
            code = list(Raylet).index(question())
        finally:
            os._exit(code)
    return list(Raylet)[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


def test_the_dashboard_is_found_from_its_log(session: Path) -> None:
    """Ray may have chosen another port than the usual one."""
    assert find_dashboard(session) is None
    (session / "logs" / "dashboard.log").write_text("INFO -- Dashboard head http address: 127.0.0.1:8266\n")
    assert find_dashboard(session) == "http://127.0.0.1:8266"


def test_a_session_began_when_its_oldest_file_was_made(session: Path) -> None:
    """A collector that comes late does not make the session younger."""
    os.utime(session / "sockets", (1000, 1000))
    assert started_ms(session, 2_000_000_000_000) == 1_000_000
    assert started_ms(session / "nothing", 5) == 5


@pytest.mark.parametrize(
    ("host", "cluster"),
    [("vm", "vm"), ("My_Laptop.local", "my-laptop.local"), ("-x-", "x"), ("ümlaut", "mlaut"), ("", "local")],
)
def test_a_hosts_name_becomes_a_clusters_name(host: str, cluster: str) -> None:
    """KubeRay's keys depend on DNS-1123 names."""
    assert host_cluster_name(host) == cluster
    assert parse_name(cluster) == cluster


def test_the_hook_file_is_read_again_when_it_changes(root: Path, session: Path) -> None:
    """A raylet that came back has another id."""
    for node in NODES:
        (root / "raylet_node_id").write_text(f"{node}\n")
        seen = look(root)
        assert seen
        assert seen.node == node


def test_early_spellings_of_the_collectors_flags_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--ray-head stands alone, and the configuration is looked for where early manifests mounted it."""
    flags = "--ray-head --runtime-class-name=local --ray-root=log --ray-cluster-name=a"
    mounted = tmp_path / "data"
    monkeypatch.setattr("rayhistory.settings.MOUNTED_CONFIG", mounted)
    settings, warnings = parse_command_line(COLLECTOR, flags.split(), "")
    assert (settings.role, settings.storage_root_dir, settings.storage_backend_config_path) == ("Head", "log", "")
    assert warnings == []
    mounted.write_text("{}")
    assert parse_command_line(COLLECTOR, [], "")[0].storage_backend_config_path == str(mounted)
    chosen = parse_command_line(COLLECTOR, ["--storage-backend-config-path=/other"], "")[0]
    assert chosen.storage_backend_config_path == "/other"
