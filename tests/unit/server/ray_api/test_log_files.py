"""Logs: found by node, task, actor, submitted job and process; the exact bytes; and never a file of anybody else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rayhistory.layout import Layout
from rayhistory.server import logflow
from rayhistory.server.app import create_app
from rayhistory.server.logfind import below_logs
from rayhistory.server.routes import logs as routes
from rayhistory.storage import open_store
from rayhistory.storage.local import LocalStore
from recorded_sample import NODE, REF, keep_sample, live, serving, settings_for

SESSION_LOGS = f"/tmp/ray/{REF.session}/logs"
TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
SLEEPER = "5d4b8d1788f12d2dffffffffffffffffffffffff01000000"
ROTATED_TASK = "fa31b89f94899135ffffffffffffffffffffffff03000000"
FLAKY = "e0dc174c83599034ffffffffffffffffffffffff01000000"
ACTOR_TASK = "2751d69548dba9562859905c520b70af2f5c71b601000000"
ASYNC_ACTOR = "2859905c520b70af2f5c71b601000000"
RESTARTED_ACTOR = "52297792c799d4f52f1fb4a701000000"
FIRST_LIFE = "worker-5237e64ba57039f1c2747790bf54dbce772646fcbe19eb2281961873-01000000-16444"
SECOND_LIFE = "worker-1e88e9b1f2a340e650ab6346b26e9710901cf3358eebda264c8f8191-01000000-16526"
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
JOB_WORKER = "worker-2c23437a918643461a120025f30b33cd8d6ef2d2789d699189cc3a50-03000000-16548"

OUTPUT = b"".join(b"%03d line\n" % i for i in range(40))
COLOURED = "plain \x1b[31mröt\x1b[0m \x1b[1;32m绿\x1b[0m end\n".encode()
FILES = {
    f"{WORKER}.out": OUTPUT,
    f"{WORKER}.err": b"x" * 54 + b"the error" + b"y" * 100,
    f"{JOB_WORKER}.out": b"begun anew\n",
    f"{JOB_WORKER}.1.out": b"j" * 30 + b"hello from job task\n" + b"k" * 50,
    f"old/{FIRST_LIFE}.out": b"first life\n",
    f"{SECOND_LIFE}.err": b"second life, stderr\n",
    "python-core-worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5_16292.log": b"core\n",
    "python-core-driver-01000000ffffffffffffffffffffffffffffffffffffffffffffffff_16195.log": b"driver\n",
    "job-driver-sub-ok.log": b"driver says 1\n",
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
    "coloured.log": COLOURED,
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
    answer = client.get("api/v0/logs", params={"node_id": NODE, **query})
    assert answer.status_code == 200, answer.text
    groups: dict[str, list[str]] = answer.json()["data"]["result"]
    return groups


def content(client: TestClient, media_type: str = "file", **query: object) -> bytes:
    answer = client.get(f"api/v0/logs/{media_type}", params={key: str(value) for key, value in query.items()})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain"
    return answer.content


def complaint(client: TestClient, media_type: str = "file", **query: object) -> str:
    answer = client.get(f"api/v0/logs/{media_type}", params={key: str(value) for key, value in query.items()})
    assert answer.status_code == 500, answer.text
    return answer.text


def test_files_are_listed_in_the_groups_of_ray(client: TestClient) -> None:
    found = listing(client)
    assert found["worker_out"] == sorted([f"{WORKER}.out", f"{JOB_WORKER}.out", f"{JOB_WORKER}.1.out"])
    assert found["worker_err"] == sorted([f"{WORKER}.err", f"{SECOND_LIFE}.err"])
    assert found["raylet"] == ["raylet.out", "raylet.out.1"]
    assert (found["gcs_server"], found["autoscaler"]) == (["gcs_server.out"], ["monitor.log"])
    assert found["agent"] == ["dashboard_agent.log"]
    assert found["dashboard"] == ["dashboard.log", "dashboard.log.1"]
    assert {"events/", "old/", "log_monitor.log", "job-driver-sub-ok.log"} <= set(found["internal"])
    assert len(found["core_worker"]) == len(found["driver"]) == 1


def test_names_of_a_live_listing_fall_into_the_same_groups() -> None:
    for sample in ("v0_logs", "v0_logs_glob"):
        for group, names in live(sample)["data"]["result"].items():
            assert {routes.listed([name], "**").popitem()[0] for name in names if not name.endswith("/")} <= {group}


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
def test_a_glob_selects_what_it_selects_in_python(client: TestClient, glob: str, expected: set[str]) -> None:
    assert {name for names in listing(client, glob=glob).values() for name in names} == expected


@pytest.mark.parametrize("glob", ["../*", "/etc/*", "events/../../*", "a/.."])
def test_a_glob_stays_in_the_logs_directory(client: TestClient, glob: str) -> None:
    answer = client.get("api/v0/logs", params={"node_id": NODE, "glob": glob})
    assert answer.status_code == 500
    assert answer.json()["msg"] == f"Invalid glob filter: {glob}. It must be a relative path and cannot contain '..'."


@pytest.mark.parametrize("glob", ["**/" * 33, "*" * 1001, "**/" * 5000])
def test_a_glob_that_takes_long_is_refused(client: TestClient, glob: str) -> None:
    answer = client.get("api/v0/logs", params={"node_id": NODE, "glob": glob})
    assert (answer.status_code, len(answer.content) < 500) == (500, True)
    assert "at most 1000 characters and 32 folders" in answer.json()["msg"]


def test_a_node_is_found_by_its_address_and_an_unknown_address_is_the_head(client: TestClient) -> None:
    for ip in ("192.0.2.2", "10.9.9.9"):
        assert client.get("api/v0/logs", params={"node_ip": ip}).json()["data"]["result"] == listing(client)
        assert content(client, node_ip=ip, filename="raylet.out.1") == b"rotated\n"


def test_a_listing_needs_a_node(client: TestClient) -> None:
    answer = client.get("api/v0/logs")
    assert (answer.status_code, answer.json()) == (400, live_error())


def live_error() -> dict[str, object]:
    message = "Both node id and node ip are not provided. Please provide at least one of them."
    return {"result": False, "msg": message, "data": {"result": None}}


@pytest.mark.parametrize("node", ["0" * 56, "nobody", "..", f"{NODE}/../{NODE}", f"{NODE}/logs/old", "\0", "*"])
def test_a_node_that_nobody_knows_has_no_logs(client: TestClient, node: str) -> None:
    answer = client.get("api/v0/logs", params={"node_id": node})
    assert answer.status_code == 500
    assert answer.json()["msg"] == f"Agent for node id: {node} doesn't exist."
    assert "doesn't exist" in complaint(client, node_id=node, filename="raylet.out")


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
def test_the_last_lines_of_a_file(client: TestClient, lines: int, expected: bytes) -> None:
    assert content(client, node_id=NODE, filename="raylet.out", lines=lines) == expected


@pytest.mark.parametrize(
    "name",
    ["raylet.out", f"{SESSION_LOGS}/raylet.out", "./raylet.out", "events/../raylet.out",
     "/mnt/logs/ray/session_latest/logs/raylet.out", "/var/logs/raylet.out"],
)  # fmt: skip
def test_a_name_may_be_relative_or_inside_a_logs_directory(client: TestClient, name: str) -> None:
    assert content(client, node_id=NODE, filename=name) == FILES["raylet.out"]


def test_a_file_that_was_moved_away_is_found(client: TestClient) -> None:
    assert content(client, node_id=NODE, filename=f"{FIRST_LIFE}.out") == b"first life\n"


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..%2fsecret", "%2e%2e/secret", "events/../../secret", "a\0b", "..\\secret", "events",
     "events/", "", ".", "nope.log", f"{SESSION_LOGS}/../../secret", f"../../{NODE}/logs/raylet.out", "raylet.out/"
     "../../../secret", "*", "//etc/passwd"],
)  # fmt: skip
def test_no_name_leads_to_anything_but_a_file_of_the_listing(client: TestClient, directory: Path, name: str) -> None:
    put(directory, Layout().logs_prefix(REF, NODE).removesuffix("/logs") + "/secret", b"9f3a61")
    answer = client.get("api/v0/logs/file", params={"node_id": NODE, "filename": name})
    assert answer.status_code == 500
    assert b"9f3a61" not in answer.content


@pytest.mark.parametrize("path", ["/%2e%2e/secret", "/file/../../secret", "/file%2f..%2f..%2fsecret"])
def test_no_path_leads_to_anything_else(client: TestClient, path: str) -> None:
    answer = client.get(f"api/v0/logs{path}?node_id={NODE}&filename=raylet.out")
    assert answer.status_code in (404, 500)


def put(directory: Path, key: str, data: bytes) -> None:
    async def write() -> None:
        store = open_store(settings_for(directory), writable=True)
        await store.put(key, data)
        await store.close()

    asyncio.run(write())


def test_the_output_of_a_task_is_exactly_its_bytes(client: TestClient) -> None:
    assert content(client, task_id=TASK) == OUTPUT[54:63]
    assert content(client, task_id=TASK, suffix="err", attempt_number=0) == b"the error"


def test_lines_count_from_the_end_of_the_task(client: TestClient) -> None:
    assert content(client, task_id=TASK, lines=1) == OUTPUT[54:63]
    assert content(client, task_id=SLEEPER, lines=2) == b"038 line\n039 line\n"


def test_a_task_without_an_end_has_the_rest_of_the_file(client: TestClient) -> None:
    assert content(client, task_id=SLEEPER, lines=-1) == OUTPUT[156:]


def test_a_task_whose_file_was_rotated_since_is_found_in_the_older_one(client: TestClient) -> None:
    assert content(client, task_id=ROTATED_TASK) == b"hello from job task\n"


MARKED = b":job_id:03000000\n:task_name:f\nhello from job task\n"
OTHERS = b":task_name:another\nlines of another task, which began when the file was new\n"


@pytest.mark.parametrize(
    "files",
    [
        {".out": OTHERS, ".1.out": MARKED},
        {".out": OTHERS, ".1.out": OTHERS * 2, ".2.out": MARKED + OTHERS},
        {".out": OTHERS, ".out.1": MARKED},
        {".out": MARKED + OTHERS, ".1.out": OTHERS},
        {".1.out": MARKED, ".2.out": MARKED + OTHERS},
    ],
    ids=["rotated", "rotated twice", "numbered at the end", "newest", "copied"],
)
def test_a_task_is_not_given_the_lines_that_are_now_in_its_place(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(tmp_path, {JOB_WORKER + suffix: data for suffix, data in files.items()}) as client:
        assert content(client, task_id=ROTATED_TASK) == b"hello from job task\n"


def test_a_task_whose_bytes_could_be_in_several_files_is_given_none_of_them(tmp_path: Path) -> None:
    files = {f"{JOB_WORKER}.out": OTHERS, f"{JOB_WORKER}.1.out": OTHERS[::-1]}
    with serving(tmp_path, files) as client:
        assert complaint(client, task_id=ROTATED_TASK) == (
            f"The log of task attempt {ROTATED_TASK}(0) was rotated, and it is not known which of these files has its "
            f"output: {JOB_WORKER}.out, {JOB_WORKER}.1.out"
        )


def test_a_task_that_wrote_nothing_has_an_empty_log(client: TestClient, directory: Path) -> None:
    put(directory, Layout().log_key(REF, NODE, f"{JOB_WORKER}.err"), b"e" * 60)
    with serving(directory) as fresh:
        assert content(fresh, task_id=ROTATED_TASK, suffix="err") == b""


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
def test_what_is_wrong_is_said_in_plain_text(client: TestClient, query: dict[str, object], message: str) -> None:
    assert complaint(client, **query) == message


def test_a_task_without_log_information_is_answered_as_by_ray(client: TestClient) -> None:
    worker = "a517d9614243c4b0cd6df9cd142898f4a49e6618b938c38a92548e82"
    for attempt in (0, 1):
        assert complaint(client, task_id=FLAKY, attempt_number=attempt) == (
            f"Could not find log file for task attempt:{FLAKY}({attempt}).Worker id = {worker}, "
            f"node id = {NODE},log_info = None"
        )
    assert complaint(client, task_id=FLAKY).startswith(f"Could not find log file for task attempt:{FLAKY}(1)")


def test_a_task_of_an_actor_leads_to_the_log_of_the_actor(client: TestClient) -> None:
    assert complaint(client, task_id=ACTOR_TASK) == (
        f"For actor task, please query actor log for actor({ASYNC_ACTOR}): e.g. ray logs actor --id {ASYNC_ACTOR} . "
        "Or set RAY_ENABLE_RECORD_ACTOR_TASK_LOGGING=1 in actor's runtime env or when starting the cluster. Recording "
        "actor task's log could be expensive, so Ray turns it off by default."
    )


def test_an_actor_has_the_output_of_its_latest_life_that_left_any(client: TestClient) -> None:
    assert content(client, actor_id=RESTARTED_ACTOR, suffix="err") == b"second life, stderr\n"
    assert content(client, actor_id=RESTARTED_ACTOR) == b"first life\n"
    assert complaint(client, actor_id=ASYNC_ACTOR).startswith("Could not find a log file.")


def test_every_incarnation_of_an_actor_can_be_asked_for(client: TestClient) -> None:
    restarted = {"actor_id": RESTARTED_ACTOR}
    assert content(client, incarnation=0, **restarted) == b"first life\n"
    assert content(client, incarnation=1, suffix="err", **restarted) == b"second life, stderr\n"
    assert complaint(client, incarnation=1, **restarted).startswith("Could not find a log file.")
    for number in (2, -1):
        said = f"Actor ID {RESTARTED_ACTOR} has no incarnation {number}: there are 0 to 1."
        assert complaint(client, incarnation=number, **restarted) == said
    assert complaint(client, incarnation="x", **restarted) == "incarnation must be a whole number, not 'x'"


def test_a_submitted_job_is_found_whatever_node_is_named(client: TestClient) -> None:
    for node in ({"node_id": NODE}, {"node_ip": "10.0.0.1"}, {"node_id": "0" * 56}):
        assert content(client, submission_id="sub-ok", **node) == b"driver says 1\n"
    assert "submission_id: sub-none" in complaint(client, submission_id="sub-none", node_id=NODE)


def test_a_process_is_found_by_its_number(client: TestClient) -> None:
    assert content(client, node_id=NODE, pid=16292, lines=-1) == OUTPUT
    assert content(client, node_id=NODE, pid=16526, suffix="err") == b"second life, stderr\n"
    assert "pid: 1629" in complaint(client, node_id=NODE, pid=1629)


def test_colours_are_kept_or_removed(client: TestClient) -> None:
    assert content(client, node_id=NODE, filename="coloured.log") == COLOURED
    plain = content(client, node_id=NODE, filename="coloured.log", filter_ansi_code="true")
    assert plain.decode() == "plain röt 绿 end\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_no_block_ends_inside_a_character_or_a_colour(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(logflow, "BLOCK", size)
    with client.stream("GET", "api/v0/logs/file", params={"node_id": NODE, "filename": "coloured.log"}) as answer:
        assert "".join(chunk.decode() for chunk in answer.iter_raw()) == COLOURED.decode()
    plain = content(client, node_id=NODE, filename="coloured.log", filter_ansi_code="true")
    assert plain.decode() == "plain röt 绿 end\n"
    binary = FILES["binary.bin"]
    assert content(client, node_id=NODE, filename="binary.bin", lines=-1) == binary


def test_a_stream_sends_what_there_is_and_ends(client: TestClient) -> None:
    assert content(client, "stream", node_id=NODE, filename="raylet.out", interval=0.5) == FILES["raylet.out"]
    assert complaint(client, "video", node_id=NODE, filename="raylet.out") == "Invalid media type: video"


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
def test_a_part_of_a_file_is_given_by_its_place(client: TestClient, header: str, start: int, end: int) -> None:
    answer = client.get("api/v0/logs/file", params=RAYLET, headers={"Range": header})
    assert (answer.status_code, answer.content) == (206, FILES["raylet.out"][start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert answer.headers["content-length"] == str(end - start)


def test_a_part_of_the_last_lines_is_a_part_of_what_would_be_given(client: TestClient) -> None:
    answer = client.get("api/v0/logs/file", params=RAYLET | {"lines": "2"}, headers={"Range": "bytes=0-7"})
    assert (answer.content, answer.headers["content-range"]) == (b"raylet 2", f"bytes 0-7/{SIZE - 9}")


@pytest.mark.parametrize("header", [f"bytes={SIZE}-", "bytes=99999-", "bytes=-0"])
def test_what_is_not_there_cannot_be_a_part(client: TestClient, header: str) -> None:
    answer = client.get("api/v0/logs/file", params=RAYLET, headers={"Range": header})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{SIZE}")


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
def test_what_is_no_range_is_answered_with_everything(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.get("api/v0/logs/file", params=RAYLET, headers=headers)
    assert (answer.status_code, answer.content) == (200, FILES["raylet.out"])
    assert answer.headers["accept-ranges"] == "bytes"


def test_colours_that_are_removed_have_no_place(client: TestClient) -> None:
    query = {"node_id": NODE, "filename": "coloured.log", "filter_ansi_code": "true"}
    answer = client.get("api/v0/logs/file", params=query, headers={"Range": "bytes=0-1"})
    assert (answer.status_code, "accept-ranges" in answer.headers) == (200, False)


def test_the_size_is_told_without_the_content(client: TestClient) -> None:
    answer = client.head("api/v0/logs/file", params=RAYLET | {"lines": "-1"})
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, str(SIZE), b"")
    for path, more in (("file", {"filter_ansi_code": "true"}), ("stream", {})):
        answer = client.head(f"api/v0/logs/{path}", params=RAYLET | more)
        assert (answer.status_code, "content-length" in answer.headers, answer.content) == (200, False, b"")


class Counted(LocalStore):
    """A directory that counts what is read of its logs."""

    read = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        data = await super().get_range(key, start, end)
        self.read += len(data) if "/logs/" in key else 0
        return data


def test_the_last_lines_of_a_log_of_10_gb_are_found_from_its_end(tmp_path: Path) -> None:
    settings, layout = settings_for(tmp_path), Layout()
    keep_sample(settings)
    lines = b"".join(b"%04d %s\n" % (number, b"x" * 95) for number in range(1500))
    path = Path(settings.local_storage_dir) / layout.log_key(REF, NODE, "large.log")
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.seek(10 << 30)  # a hole, which takes no room
        file.write(b"\n" + lines)
    store = Counted(Path(settings.local_storage_dir))
    query = {"node_id": NODE, "filename": "large.log"}
    with TestClient(create_app(settings, store), base_url=f"http://testserver{REF.url}") as client:
        assert content(client, **query) == b"".join(lines.splitlines(keepends=True)[-1000:])
        assert store.read < 1 << 20
        part = client.get("api/v0/logs/file", params=query | {"lines": "-1"}, headers={"Range": "bytes=-101"})
        assert part.content == lines[-101:]
        assert store.read < 1 << 20


def test_a_log_without_any_newline_is_one_line_of_which_no_more_is_read_than_was_asked_for(tmp_path: Path) -> None:
    settings, line = settings_for(tmp_path), bytes(range(11, 256)) * (5 << 12)
    keep_sample(settings, {f"{WORKER}.out": line, f"{WORKER}.err": b"first\n" + line})
    store = Counted(Path(settings.local_storage_dir))
    with TestClient(create_app(settings, store), base_url=f"http://testserver{REF.url}") as client:
        assert content(client, task_id=TASK, lines=50000) == line[54:63]
        assert store.read == 2 * len(line[54:63])
        assert content(client, task_id=SLEEPER, lines=2) == line[156:]
        for lines in (1, 1000, -1):
            assert content(client, node_id=NODE, filename=f"{WORKER}.out", lines=lines) == line
        assert content(client, node_id=NODE, filename=f"{WORKER}.err", lines=1) == line
        assert content(client, node_id=NODE, filename=f"{WORKER}.err", lines=2) == b"first\n" + line
        store.read, query = 0, {"node_id": NODE, "filename": f"{WORKER}.out", "lines": "-1"}
        part = client.get("api/v0/logs/file", params=query, headers={"Range": "bytes=3000000-3000099"})
        assert (part.content, store.read) == (line[3000000:3000100], 100)


def test_an_empty_file_is_an_empty_answer(client: TestClient) -> None:
    assert content(client, node_id=NODE, filename="gcs_server.out") == b""


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
def test_a_download_has_the_name_that_was_asked_for(client: TestClient, name: str, header: str) -> None:
    query = {"node_id": NODE, "filename": "raylet.out", "download_filename": name}
    answer = client.get("api/v0/logs/file", params=query)
    assert answer.headers["content-disposition"] == header
    assert "set-cookie" not in answer.headers


def test_absolute_names_are_reduced_to_what_follows_the_logs_directory() -> None:
    assert below_logs(f"{SESSION_LOGS}/old/logs/x.out") == "old/logs/x.out"
    assert below_logs("/logs/session_1/logs/x.out") == "x.out"
    assert below_logs("/etc/passwd") == "/etc/passwd"
