"""Log files: located by node, task, actor, submission or pid, with exact byte ranges, and never outside of the logs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.server.logs import stream
from rayhistory.server.logs.listing import group_logs
from rayhistory.server.logs.locate import relative_log_path
from rayhistory.sessions import Layout
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from support.recorded_sample import NODE, REF, live, serving, settings_for, store_indexed_sample

SESSION_LOGS = f"/tmp/ray/{REF.session}/logs"
TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
SLEEPER = "5d4b8d1788f12d2dffffffffffffffffffffffff01000000"
ROTATED_TASK = "fa31b89f94899135ffffffffffffffffffffffff03000000"
FLAKY = "e0dc174c83599034ffffffffffffffffffffffff01000000"
ACTOR_TASK = "2751d69548dba9562859905c520b70af2f5c71b601000000"
ASYNC_ACTOR = "2859905c520b70af2f5c71b601000000"
RESTARTED_ACTOR = "52297792c799d4f52f1fb4a701000000"
FIRST_INCARNATION = "worker-5237e64ba57039f1c2747790bf54dbce772646fcbe19eb2281961873-01000000-16444"
SECOND_INCARNATION = "worker-1e88e9b1f2a340e650ab6346b26e9710901cf3358eebda264c8f8191-01000000-16526"
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
JOB_WORKER = "worker-2c23437a918643461a120025f30b33cd8d6ef2d2789d699189cc3a50-03000000-16548"

OUTPUT = b"".join(b"%03d line\n" % i for i in range(40))
COLORED = "plain \x1b[31mröt\x1b[0m \x1b[1;32m绿\x1b[0m end\n".encode()
FILES = {
    f"{WORKER}.out": OUTPUT,
    f"{WORKER}.err": b"x" * 54 + b"the error" + b"y" * 100,
    f"{JOB_WORKER}.out": b"begun anew\n",
    f"{JOB_WORKER}.1.out": b"j" * 30 + b"hello from job task\n" + b"k" * 50,
    f"old/{FIRST_INCARNATION}.out": b"first incarnation\n",
    f"{SECOND_INCARNATION}.err": b"second incarnation, stderr\n",
    "python-core-worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5_16292.log": b"core\n",
    "python-core-driver-01000000ffffffffffffffffffffffffffffffffffffffffffffffff_16195.log": b"driver\n",
    "job-driver-sub-ok.log": b"driver output 1\n",
    "raylet.out": b"raylet 1\nraylet 2\nraylet 3, unfinished",
    "raylet.out.1": b"rotated\n",
    "gcs_server.out": b"",
    "log_monitor.log": b"m\n",
    "monitor.log": b"a\n",
    "dashboard_agent.log": b"a\n",
    "dashboard.log": b"d\n",
    "dashboard.log.1": b"d1\n",
    "events/event_GCS.log": b"{}\n",
    "events/deep/er.log": b"deep\n",
    "colored.log": COLORED,
    "binary.bin": bytes(range(256)) * 16,
    "named 日本.log": b"named\n",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def client(directory: Path) -> Iterator[TestClient]:
    with serving(directory, FILES) as client:
        yield client


def listing(client: TestClient, **query: str) -> dict[str, list[str]]:
    response = client.get("api/v0/logs", params={"node_id": NODE, **query})
    assert response.status_code == 200, response.text
    groups: dict[str, list[str]] = response.json()["data"]["result"]
    return groups


def read_log(client: TestClient, media_type: str = "file", **query: object) -> bytes:
    response = client.get(f"api/v0/logs/{media_type}", params={key: str(value) for key, value in query.items()})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain"
    return response.content


def error_text(client: TestClient, media_type: str = "file", **query: object) -> str:
    response = client.get(f"api/v0/logs/{media_type}", params={key: str(value) for key, value in query.items()})
    assert response.status_code == 500, response.text
    return response.text


def test_files_are_listed_in_ray_groups(client: TestClient) -> None:
    groups = listing(client)
    assert groups["worker_out"] == sorted([f"{WORKER}.out", f"{JOB_WORKER}.out", f"{JOB_WORKER}.1.out"])
    assert groups["worker_err"] == sorted([f"{WORKER}.err", f"{SECOND_INCARNATION}.err"])
    assert groups["raylet"] == ["raylet.out", "raylet.out.1"]
    assert (groups["gcs_server"], groups["autoscaler"]) == (["gcs_server.out"], ["monitor.log"])
    assert groups["agent"] == ["dashboard_agent.log"]
    assert groups["dashboard"] == ["dashboard.log", "dashboard.log.1"]
    assert {"events/", "old/", "log_monitor.log", "job-driver-sub-ok.log"} <= set(groups["internal"])
    assert len(groups["core_worker"]) == len(groups["driver"]) == 1


def test_live_listing_has_the_same_groups() -> None:
    for sample in ("v0_logs", "v0_logs_glob"):
        for group, names in live(sample)["data"]["result"].items():
            assert {group_logs([name], "**").popitem()[0] for name in names if not name.endswith("/")} <= {group}


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("events/*", {"events/event_GCS.log", "events/deep/"}),
        ("events/", {"events/"}),
        ("*GCS*", set()),
        ("**/*GCS*", {"events/event_GCS.log"}),
        ("**/*.log", {name for name in FILES if name.endswith(".log")}),
        ("events/**/er.log", {"events/deep/er.log"}),
        ("raylet.out*", {"raylet.out", "raylet.out.1"}),
        ("raylet.ou[a-t]", {"raylet.out"}),
        ("*日*", {"named 日本.log"}),
        ("*/" * 30 + "*", set()),
        ("**/" * 30 + "er.log", {"events/deep/er.log"}),
        ("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", set()),
    ],
)
def test_glob_matches_as_in_python(client: TestClient, glob: str, expected: set[str]) -> None:
    assert {name for names in listing(client, glob=glob).values() for name in names} == expected


@pytest.mark.parametrize("glob", ["../*", "/etc/*", "events/../../*", "a/.."])
def test_glob_stays_in_the_logs_directory(client: TestClient, glob: str) -> None:
    response = client.get("api/v0/logs", params={"node_id": NODE, "glob": glob})
    assert response.status_code == 500
    assert response.json()["msg"] == f"Invalid glob filter: {glob}. It must be a relative path and cannot contain '..'."


@pytest.mark.parametrize("glob", ["**/" * 33, "*" * 1001, "**/" * 5000])
def test_expensive_glob_is_rejected(client: TestClient, glob: str) -> None:
    response = client.get("api/v0/logs", params={"node_id": NODE, "glob": glob})
    assert (response.status_code, len(response.content) < 500) == (500, True)
    assert "at most 1000 characters and 32 folders" in response.json()["msg"]


def test_node_is_found_by_ip_with_the_head_as_fallback(client: TestClient) -> None:
    for ip in ("192.0.2.2", "10.9.9.9"):
        assert client.get("api/v0/logs", params={"node_ip": ip}).json()["data"]["result"] == listing(client)
        assert read_log(client, node_ip=ip, filename="raylet.out.1") == b"rotated\n"


def test_listing_requires_a_node(client: TestClient) -> None:
    response = client.get("api/v0/logs")
    assert (response.status_code, response.json()) == (400, missing_node_error())


def missing_node_error() -> dict[str, object]:
    message = "Both node id and node ip are not provided. Please provide at least one of them."
    return {"result": False, "msg": message, "data": {"result": None}}


@pytest.mark.parametrize("node", ["0" * 56, "unknown", "..", f"{NODE}/../{NODE}", f"{NODE}/logs/old", "\0", "*"])
def test_unknown_node_has_no_logs(client: TestClient, node: str) -> None:
    response = client.get("api/v0/logs", params={"node_id": node})
    assert response.status_code == 500
    assert response.json()["msg"] == f"Agent for node id: {node} doesn't exist."
    assert "doesn't exist" in error_text(client, node_id=node, filename="raylet.out")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (1, b"raylet 3, unfinished"),
        (2, b"raylet 2\nraylet 3, unfinished"),
        (3, FILES["raylet.out"]),
        (99, FILES["raylet.out"]),
        (-1, FILES["raylet.out"]),
        (0, FILES["raylet.out"]),
    ],
)
def test_last_lines_of_a_file(client: TestClient, lines: int, expected: bytes) -> None:
    assert read_log(client, node_id=NODE, filename="raylet.out", lines=lines) == expected


@pytest.mark.parametrize(
    "name",
    ["raylet.out", f"{SESSION_LOGS}/raylet.out", "./raylet.out", "events/../raylet.out",
     "/mnt/logs/ray/session_latest/logs/raylet.out", "/var/logs/raylet.out"],
)  # fmt: skip
def test_file_name_may_be_relative_or_absolute(client: TestClient, name: str) -> None:
    assert read_log(client, node_id=NODE, filename=name) == FILES["raylet.out"]


def test_moved_file_is_found(client: TestClient) -> None:
    assert read_log(client, node_id=NODE, filename=f"{FIRST_INCARNATION}.out") == b"first incarnation\n"


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..%2fsecret", "%2e%2e/secret", "events/../../secret", "a\0b", "..\\secret", "events",
     "events/", "", ".", "nope.log", f"{SESSION_LOGS}/../../secret", f"../../{NODE}/logs/raylet.out", "raylet.out/"
     "../../../secret", "*", "//etc/passwd"],
)  # fmt: skip
def test_file_name_cannot_leave_the_listing(client: TestClient, directory: Path, name: str) -> None:
    put(directory, Layout().logs_prefix(REF, NODE).removesuffix("/logs") + "/secret", b"9f3a61")
    response = client.get("api/v0/logs/file", params={"node_id": NODE, "filename": name})
    assert response.status_code == 500
    assert b"9f3a61" not in response.content


@pytest.mark.parametrize("path", ["/%2e%2e/secret", "/file/../../secret", "/file%2f..%2f..%2fsecret"])
def test_url_path_cannot_leave_the_logs(client: TestClient, path: str) -> None:
    response = client.get(f"api/v0/logs{path}?node_id={NODE}&filename=raylet.out")
    assert response.status_code in (404, 500)


def put(directory: Path, key: str, data: bytes) -> None:
    async def write() -> None:
        store = open_store(settings_for(directory), writable=True)
        await store.put(key, data)
        await store.close()

    asyncio.run(write())


def test_task_output_is_exactly_its_byte_range(client: TestClient) -> None:
    assert read_log(client, task_id=TASK) == OUTPUT[54:63]
    assert read_log(client, task_id=TASK, suffix="err", attempt_number=0) == b"the error"


def test_lines_are_counted_from_the_end_of_the_task(client: TestClient) -> None:
    assert read_log(client, task_id=TASK, lines=1) == OUTPUT[54:63]
    assert read_log(client, task_id=SLEEPER, lines=2) == b"038 line\n039 line\n"


def test_task_without_end_gets_the_rest_of_the_file(client: TestClient) -> None:
    assert read_log(client, task_id=SLEEPER, lines=-1) == OUTPUT[156:]


def test_task_output_is_found_in_a_rotated_file(client: TestClient) -> None:
    assert read_log(client, task_id=ROTATED_TASK) == b"hello from job task\n"


OWN_LINES = b":job_id:03000000\n:task_name:f\nhello from job task\n"
OTHER_LINES = b":task_name:another\nlines of another task, which began when the file was new\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        {".out": OTHER_LINES, ".1.out": OWN_LINES},
        {".out": OTHER_LINES, ".1.out": OTHER_LINES * 2, ".2.out": OWN_LINES + OTHER_LINES},
        {".out": OTHER_LINES, ".out.1": OWN_LINES},
        {".out": OWN_LINES + OTHER_LINES, ".1.out": OTHER_LINES},
        {".1.out": OWN_LINES, ".2.out": OWN_LINES + OTHER_LINES},
    ],
    ids=["rotated", "rotated twice", "numbered at the end", "newest", "copied"],
)
def test_task_does_not_get_lines_of_another_task_after_rotation(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(tmp_path, {JOB_WORKER + suffix: data for suffix, data in files.items()}) as client:
        assert read_log(client, task_id=ROTATED_TASK) == b"hello from job task\n"


@pytest.mark.slow
def test_ambiguous_task_output_is_an_error(tmp_path: Path) -> None:
    files = {f"{JOB_WORKER}.out": OTHER_LINES, f"{JOB_WORKER}.1.out": OTHER_LINES[::-1]}
    with serving(tmp_path, files) as client:
        assert error_text(client, task_id=ROTATED_TASK) == (
            f"The log of task attempt {ROTATED_TASK}(0) was rotated, and its output may be in any of these files: "
            f"{JOB_WORKER}.out, {JOB_WORKER}.1.out"
        )


def test_task_without_output_has_an_empty_log(client: TestClient, directory: Path) -> None:
    put(directory, Layout().log_key(REF, NODE, f"{JOB_WORKER}.err"), b"e" * 60)
    with serving(directory) as new_client:
        assert read_log(new_client, task_id=ROTATED_TASK, suffix="err") == b""


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"task_id": "00" * 24}, f"Could not find log file for task: {'00' * 24} (attempt 0) with suffix: out"),
        ({"task_id": FLAKY, "attempt_number": 7}, f"Could not find log file for task attempt:{FLAKY}(7)"),
        ({"actor_id": "00" * 16}, f"Actor ID {'00' * 16} not found."),
        ({"node_id": NODE, "filename": "nope.log"}, "A file is not found at: nope.log"),
        ({"task_id": TASK, "suffix": "log"}, "Invalid suffix: log. Must be one of 'out' or 'err'."),
        ({"task_id": TASK, "lines": "all"}, "lines must be a whole number, not 'all'"),
        ({"task_id": TASK, "attempt_number": "x"}, "attempt_number must be a whole number, not 'x'"),
        ({"task_id": TASK, "interval": 1}, "interval is given for a file. It is only for a stream."),
        ({"node_id": NODE, "node_ip": "1.2.3.4", "filename": "a"},
         "Both node_id and node_ip are given. Only one of them "
         f"can be provided. Given node id: {NODE}, given node ip: 1.2.3.4"),
        ({"node_id": NODE},
         "None of actor_id, task_id, pid, submission_id or filename is provided. At least one of them "
         "is required to fetch logs."),
        ({"filename": "raylet.out"}, "node_id or node_ip must be provided as constructor arguments when no actor or "
         "task_id is supplied as arguments."),
    ],
)  # fmt: skip
def test_log_errors_are_plain_text(client: TestClient, query: dict[str, Any], message: str) -> None:
    assert error_text(client, **query) == message


def test_task_without_log_info_gets_the_error_of_ray(client: TestClient) -> None:
    worker = "a517d9614243c4b0cd6df9cd142898f4a49e6618b938c38a92548e82"
    for attempt in (0, 1):
        assert error_text(client, task_id=FLAKY, attempt_number=attempt) == (
            f"Could not find log file for task attempt:{FLAKY}({attempt}).Worker id = {worker}, "
            f"node id = {NODE},log_info = None"
        )
    assert error_text(client, task_id=FLAKY).startswith(f"Could not find log file for task attempt:{FLAKY}(1)")


def test_actor_task_refers_to_the_log_of_its_actor(client: TestClient) -> None:
    assert error_text(client, task_id=ACTOR_TASK) == (
        f"For actor task, please query actor log for actor({ASYNC_ACTOR}): e.g. ray logs actor --id {ASYNC_ACTOR} . "
        "Or set RAY_ENABLE_RECORD_ACTOR_TASK_LOGGING=1 in actor's runtime env or when starting the cluster. Recording "
        "actor task's log could be expensive, so Ray turns it off by default."
    )


def test_actor_log_is_that_of_the_latest_incarnation_with_output(client: TestClient) -> None:
    assert read_log(client, actor_id=RESTARTED_ACTOR, suffix="err") == b"second incarnation, stderr\n"
    assert read_log(client, actor_id=RESTARTED_ACTOR) == b"first incarnation\n"
    assert error_text(client, actor_id=ASYNC_ACTOR).startswith("Could not find a log file.")


def test_each_actor_incarnation_can_be_requested(client: TestClient) -> None:
    restarted = {"actor_id": RESTARTED_ACTOR}
    assert read_log(client, incarnation=0, **restarted) == b"first incarnation\n"
    assert read_log(client, incarnation=1, suffix="err", **restarted) == b"second incarnation, stderr\n"
    assert error_text(client, incarnation=1, **restarted).startswith("Could not find a log file.")
    for number in (2, -1):
        message = f"Actor ID {RESTARTED_ACTOR} has no incarnation {number}: valid are 0 to 1."
        assert error_text(client, incarnation=number, **restarted) == message
    assert error_text(client, incarnation="x", **restarted) == "incarnation must be a whole number, not 'x'"


def test_submission_log_is_found_for_any_node(client: TestClient) -> None:
    for node in ({"node_id": NODE}, {"node_ip": "10.0.0.1"}, {"node_id": "0" * 56}):
        assert read_log(client, submission_id="sub-ok", **node) == b"driver output 1\n"
    assert "submission_id: sub-none" in error_text(client, submission_id="sub-none", node_id=NODE)


def test_process_log_is_found_by_pid(client: TestClient) -> None:
    assert read_log(client, node_id=NODE, pid=16292, lines=-1) == OUTPUT
    assert read_log(client, node_id=NODE, pid=16526, suffix="err") == b"second incarnation, stderr\n"
    assert "pid: 1629" in error_text(client, node_id=NODE, pid=1629)


def test_ansi_codes_are_kept_or_removed(client: TestClient) -> None:
    assert read_log(client, node_id=NODE, filename="colored.log") == COLORED
    plain = read_log(client, node_id=NODE, filename="colored.log", filter_ansi_code="true")
    assert plain.decode() == "plain röt 绿 end\n"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_blocks_never_split_characters_or_ansi_codes(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(stream, "BLOCK_BYTES", size)
    with client.stream("GET", "api/v0/logs/file", params={"node_id": NODE, "filename": "colored.log"}) as response:
        assert "".join(chunk.decode() for chunk in response.iter_raw()) == COLORED.decode()
    plain = read_log(client, node_id=NODE, filename="colored.log", filter_ansi_code="true")
    assert plain.decode() == "plain röt 绿 end\n"
    binary = FILES["binary.bin"]
    assert read_log(client, node_id=NODE, filename="binary.bin", lines=-1) == binary


def test_stream_of_an_ended_session_ends(client: TestClient) -> None:
    assert read_log(client, "stream", node_id=NODE, filename="raylet.out", interval=0.5) == FILES["raylet.out"]
    assert error_text(client, "video", node_id=NODE, filename="raylet.out") == "Invalid media type: video"


RAYLET = {"node_id": NODE, "filename": "raylet.out"}
SIZE = len(FILES["raylet.out"])


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=3-11", 3, 12),
        ("bytes = 30 - 99999", 30, SIZE),
        ("bytes=5-", 5, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        ("bytes=-99999", 0, SIZE),
    ],
)
def test_byte_range_of_a_file(client: TestClient, header: str, start: int, end: int) -> None:
    response = client.get("api/v0/logs/file", params=RAYLET, headers={"Range": header})
    assert (response.status_code, response.content) == (206, FILES["raylet.out"][start:end])
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert response.headers["content-length"] == str(end - start)


def test_byte_range_applies_to_the_last_lines(client: TestClient) -> None:
    response = client.get("api/v0/logs/file", params=RAYLET | {"lines": "2"}, headers={"Range": "bytes=0-7"})
    assert (response.content, response.headers["content-range"]) == (b"raylet 2", f"bytes 0-7/{SIZE - 9}")


@pytest.mark.parametrize("header", [f"bytes={SIZE}-", "bytes=99999-", "bytes=-0"])
def test_range_outside_of_the_file_gets_416(client: TestClient, header: str) -> None:
    response = client.get("api/v0/logs/file", params=RAYLET, headers={"Range": header})
    assert (response.status_code, response.headers["content-range"]) == (416, f"bytes */{SIZE}")


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=-"},
        {"Range": "bytes=7-3"},
        {"Range": "lines=1-2"},
        {"Range": "bytes=0-1,4-5"},
        {"Range": f"bytes=0-{9 * '9999999'}"},
        {"Range": "bytes=0-1", "If-Range": '"x"'},
        {},
    ],
)
def test_invalid_range_gets_the_whole_file(client: TestClient, headers: dict[str, str]) -> None:
    response = client.get("api/v0/logs/file", params=RAYLET, headers=headers)
    assert (response.status_code, response.content) == (200, FILES["raylet.out"])
    assert response.headers["accept-ranges"] == "bytes"


def test_ranges_are_ignored_when_ansi_codes_are_removed(client: TestClient) -> None:
    query = {"node_id": NODE, "filename": "colored.log", "filter_ansi_code": "true"}
    response = client.get("api/v0/logs/file", params=query, headers={"Range": "bytes=0-1"})
    assert (response.status_code, "accept-ranges" in response.headers) == (200, False)


def test_head_returns_the_size(client: TestClient) -> None:
    response = client.head("api/v0/logs/file", params=RAYLET | {"lines": "-1"})
    assert (response.status_code, response.headers["content-length"], response.content) == (200, str(SIZE), b"")
    for path, more in (("file", {"filter_ansi_code": "true"}), ("stream", {})):
        response = client.head(f"api/v0/logs/{path}", params=RAYLET | more)
        assert (response.status_code, "content-length" in response.headers, response.content) == (200, False, b"")


class CountingStore(LocalStore):
    """A directory that counts the bytes read from logs."""

    read = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        self.read += len(data) if "/logs/" in key else 0
        return data


@pytest.mark.slow
def test_last_lines_of_a_10_gb_log_are_read_from_the_end(tmp_path: Path) -> None:
    settings, layout = settings_for(tmp_path), Layout()
    store_indexed_sample(settings)
    lines = b"".join(b"%04d %s\n" % (number, b"x" * 95) for number in range(1500))
    path = Path(settings.local_storage_dir) / layout.log_key(REF, NODE, "large.log")
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.seek(10 << 30)  # a sparse file
        file.write(b"\n" + lines)
    store = CountingStore(Path(settings.local_storage_dir))
    query = {"node_id": NODE, "filename": "large.log"}
    with TestClient(create_app(settings, store), base_url=f"http://testserver{REF.url}") as client:
        assert read_log(client, **query) == b"".join(lines.splitlines(keepends=True)[-1000:])
        assert store.read < 1 << 20
        part = client.get("api/v0/logs/file", params=query | {"lines": "-1"}, headers={"Range": "bytes=-101"})
        assert part.content == lines[-101:]
        assert store.read < 1 << 20


@pytest.mark.slow
def test_log_without_newlines_is_read_only_in_the_requested_range(tmp_path: Path) -> None:
    settings, line = settings_for(tmp_path), bytes(range(11, 256)) * (5 << 12)
    store_indexed_sample(settings, {f"{WORKER}.out": line, f"{WORKER}.err": b"first\n" + line})
    store = CountingStore(Path(settings.local_storage_dir))
    with TestClient(create_app(settings, store), base_url=f"http://testserver{REF.url}") as client:
        assert read_log(client, task_id=TASK, lines=50000) == line[54:63]
        assert store.read == 2 * len(line[54:63])
        assert read_log(client, task_id=SLEEPER, lines=2) == line[156:]
        for lines in (1, 1000, -1):
            assert read_log(client, node_id=NODE, filename=f"{WORKER}.out", lines=lines) == line
        assert read_log(client, node_id=NODE, filename=f"{WORKER}.err", lines=1) == line
        assert read_log(client, node_id=NODE, filename=f"{WORKER}.err", lines=2) == b"first\n" + line
        store.read, query = 0, {"node_id": NODE, "filename": f"{WORKER}.out", "lines": "-1"}
        part = client.get("api/v0/logs/file", params=query, headers={"Range": "bytes=3000000-3000099"})
        assert (part.content, store.read) == (line[3000000:3000100], 100)


def test_empty_file_gets_an_empty_response(client: TestClient) -> None:
    assert read_log(client, node_id=NODE, filename="gcs_server.out") == b""


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("", 'attachment; filename="file.txt"'),
        ("my log.txt", 'attachment; filename="my log.txt"'),
        (
            'a"\r\nSet-Cookie: x',
            "attachment; filename=\"a___Set-Cookie: x\"; filename*=UTF-8''a%22%0D%0ASet-Cookie%3A%20x",
        ),
        ("日本", "attachment; filename=\"__\"; filename*=UTF-8''%E6%97%A5%E6%9C%AC"),
    ],
)
def test_download_has_the_requested_name(client: TestClient, name: str, header: str) -> None:
    query = {"node_id": NODE, "filename": "raylet.out", "download_filename": name}
    response = client.get("api/v0/logs/file", params=query)
    assert response.headers["content-disposition"] == header
    assert "set-cookie" not in response.headers


def test_absolute_names_become_relative_to_the_logs_directory() -> None:
    assert relative_log_path(f"{SESSION_LOGS}/old/logs/x.out") == "old/logs/x.out"
    assert relative_log_path("/logs/session_1/logs/x.out") == "x.out"
    assert relative_log_path("/etc/passwd") == "/etc/passwd"
