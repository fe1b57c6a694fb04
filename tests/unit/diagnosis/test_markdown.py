"""Markdown and HTML of a diagnosis, with text that tries to break out."""

from rayhistory import web
from rayhistory.diagnosis.findings import (
    Counts,
    CriticalPath,
    Diagnosis,
    Evidence,
    Finding,
    PathStep,
    TimeShare,
    Verdict,
)
from rayhistory.diagnosis.markdown import escaped, to_markdown
from rayhistory.web import SessionRow

HOSTILE = "<script>alert(1)</script> [click](javascript:x) ``` \x1b[31m"
EVIDENCE = Evidence(kind="task", id=HOSTILE, text=f"a\n```\n# heading\n{HOSTILE}", url="#/tasks/x")
FINDING = Finding(
    code="user_exception", severity="critical", headline=HOSTILE, detail=HOSTILE, suggestion=HOSTILE, first_ms=1,
    last_ms=2, counts=Counts(tasks=2), evidence=[EVIDENCE],
)  # fmt: skip
DIAGNOSIS = Diagnosis(
    verdict=Verdict(code="user_exception", headline=HOSTILE, confidence="certain", finding=0),
    findings=[FINDING],
    time_shares=[TimeShare("running", 5_000)],
    critical_path=CriticalPath(
        job_id=HOSTILE,
        span_ms=9,
        run_ms=5,
        tasks=2,
        steps=[PathStep(function=HOSTILE, tasks=2, run_ms=5, first_ms=1, last_ms=2, task_id=HOSTILE)],
    ),
    started_ms=1,
    ended_ms=10**17,
)
ROW = SessionRow(
    namespace="default", cluster="demo", session="session_x", state="ended", url="/s/default/demo/session_x/"
)


def test_markdown_escapes_everything_outside_of_code_blocks() -> None:
    outside, inside = [], False
    for line in to_markdown(DIAGNOSIS, HOSTILE).splitlines():
        if line.startswith("````"):
            inside = not inside
        elif not inside:
            outside.append(line)
    text = "\n".join(outside)
    assert "<script" not in text
    assert "](javascript" not in text
    assert "\x1b" not in text


def test_code_block_cannot_be_closed_by_its_text() -> None:
    lines = to_markdown(DIAGNOSIS, "x").splitlines()
    start = lines.index("````text")
    assert lines[start : start + 4] == ["````text", "a", "```", "# heading"]


def test_escaped_text_is_one_line() -> None:
    assert "\n" not in escaped("a\nb\n# c")


def test_page_escapes_text_from_the_cluster() -> None:
    page = web.render_diagnosis(ROW, DIAGNOSIS, as_of_ms=None, version="1")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "2 tasks" in page


def test_page_of_a_point_in_time_is_provisional_and_links_to_it() -> None:
    page = web.render_diagnosis(ROW, Diagnosis(provisional=True), as_of_ms=1_800_000_000_000, version="1")
    assert "Provisional" in page
    assert 'href="/s/default/demo/session_x@1800000000000/diagnosis.json"' in page
