"""Evidence names things that have a page, and links to it."""

from rayhistory.cli.inspect.diagnose import describe
from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.links import with_links
from rayhistory.diagnosis.markdown import to_markdown
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.gaps import GapCode
from rayhistory.index.query.failure_groups import FailureGroups

BASE = "/s/default/demo/session_1"
TASK = "ab" * 24


def test_failed_tasks_are_named_by_the_first_of_them() -> None:
    for error_type in ("RUNTIME_ENV_SETUP_FAILED", "OUT_OF_MEMORY", "SOMETHING_NEW"):
        facts = SessionFacts(failures=FailureGroups([failed_task("it failed", error_type=error_type)], 1, 1))
        (found,) = with_links(diagnose(facts), BASE).findings
        assert (found.evidence[0].kind, found.evidence[0].id) == ("task", TASK)
        assert found.evidence[0].url == f"{BASE}/#/tasks/{TASK}"


def test_dead_process_links_to_its_node() -> None:
    (found,) = with_links(diagnose(death_facts(dead_example_worker())), BASE).findings
    assert [(each.kind, each.url) for each in found.evidence if each.kind == "worker"] == [
        ("worker", f"{BASE}/#/cluster/nodes/{'ef' * 28}")
    ]


def test_missing_events_link_to_the_gaps() -> None:
    facts = SessionFacts(gaps={GapCode.TASK_WITHOUT_EXECUTION: 3})
    (found,) = with_links(diagnose(facts), BASE).findings
    assert found.code == "events_missing"
    assert [each.url for each in found.evidence] == [f"{BASE}/gaps"]


def test_suggestions_are_marked_as_such() -> None:
    found = diagnose(death_facts(dead_example_worker()))
    assert f"    Suggestion: {found.findings[0].suggestion}" in list(describe(found))
    assert "\nSuggestion: " in to_markdown(found, "demo")


def test_evidence_of_a_cancelled_task_is_a_traceback_with_lines() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n    ray.get(ref)\n'
        "ray.exceptions.TaskCancelledError: Task: TaskID(39088be3) was cancelled.\n"
    )
    (found,) = diagnose(SessionFacts(jobs=[failed_job(text)])).findings
    assert found.code == "task_cancelled"
    assert found.evidence[0].text.strip() == text.strip()


def test_last_log_lines_link_to_the_end_of_their_file_in_the_log_viewer() -> None:
    worker = dead_example_worker(stderr="Fatal Python error: Aborted", stderr_path="old/worker-cd-01000000-4376.err")
    (found,) = with_links(diagnose(death_facts(worker)), BASE).findings
    log = next(each for each in found.evidence if each.kind == "log")
    assert log.url == f"{BASE}/logs/{'ef' * 28}/old/worker-cd-01000000-4376.err?end=1"


def test_line_of_the_raylet_links_to_its_time_in_the_log_viewer() -> None:
    (found,) = with_links(diagnose(death_facts(dead_example_worker(exit_signal=9))), BASE).findings
    log = next(each for each in found.evidence if each.id == "raylet.out")
    assert log.url == f"{BASE}/logs/{'ef' * 28}/raylet.out?time=1800000000990"
