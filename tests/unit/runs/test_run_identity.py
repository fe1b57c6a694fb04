"""Runs of the same job have one identity, whatever was generated for each night."""

import msgspec
import pytest

from rayhistory.runs.run_identity import identify, normalized_entrypoint, normalized_name
from rayhistory.runs.session_summary import RunJob
from support.generated_runs import generated


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("python train.py --date 2026-11-17", "python train.py --date 2026-11-18"),
        ("/tmp/ray/a1/bin/python  /home/u/train.py", "/opt/venv/bin/python /srv/app/train.py"),
        (
            "python x.py --run 5f0c2a9e-1111-2222-3333-444455556666",
            "python x.py --run 0a0c2a9e-1111-2222-3333-444455556667",
        ),
        ("python x.py --at 2026-11-18T02:00:00Z", "python x.py --at 2026-11-19T02:00:01Z"),
    ],
)
def test_entry_points_that_differ_in_what_varies_are_equal(first: str, second: str) -> None:
    assert normalized_entrypoint(first) == normalized_entrypoint(second)


def test_entry_points_that_differ_in_words_differ() -> None:
    assert normalized_entrypoint("python train.py") != normalized_entrypoint("python eval.py")


@pytest.mark.parametrize(
    "name", ["nightly-28374650", "nightly-x7k2d", "nightly-20261118", "nightly-2026-11-18-0200", "nightly"]
)
def test_generated_suffixes_of_names_are_dropped(name: str) -> None:
    assert normalized_name(name) == "nightly"


def test_words_are_not_taken_for_suffixes() -> None:
    assert normalized_name("etl-daily") == "etl-daily"
    assert normalized_name("-28374650") == "-28374650"


def test_owner_comes_first_then_name_then_entry_point_then_cluster() -> None:
    summary = generated().summary
    job = msgspec.structs.replace(summary.jobs[0], name="etl", metadata={"team": "red"})
    free = msgspec.structs.replace(summary, owner_kind=None, owner_name=None)
    assert identify(summary, job)[1:] == ("rayjob", "nightly")
    assert identify(free, job)[1:] == ("job", "etl")
    assert identify(free, summary.jobs[0])[1:] == ("entrypoint", "python train.py --epochs #")
    assert identify(free, RunJob())[1:] == ("cluster", "nightly-00000")


def test_run_key_chooses_and_falls_back() -> None:
    summary = generated().summary
    job = msgspec.structs.replace(summary.jobs[0], name="etl", metadata={"team": "red"})
    assert identify(summary, job, "name")[1:] == ("job", "etl")
    assert identify(summary, job, "entrypoint").kind == "entrypoint"
    assert identify(summary, job, "metadata.team")[1:] == ("metadata", "team=red")
    assert identify(summary, job, "metadata.other").kind == "rayjob"


def test_keys_differ_by_namespace_and_are_safe_in_urls() -> None:
    job = RunJob(name='"><script>/../')
    keys = {identify(generated(namespace=name, owner=False).summary, job).key for name in ("a", "b")}
    assert len(keys) == 2
    assert all(key.isalnum() for key in keys)
