"""Make the pictures of the README: record two jobs, and photograph pages of their sessions in headless Chromium."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from rayhistory.cli.local_ray import sample_job

IMAGES = Path(__file__).parents[1] / "docs/images"
SIZE = {"width": 1280, "height": 720}
HOME_HEIGHT = 440
TIMEOUT_MS = 60_000
FAILING_JOB = """import ray


@ray.remote
def mean(scores):
    return sum(scores) / len(scores)


print(ray.get([mean.remote(scores) for scores in ([0.7, 0.8], [0.9], [])]))
"""


@contextmanager
def recording(directory: str) -> Iterator[str]:
    """Record the sample job and a failing job, as a user records scripts. Yield the URL of the failed session."""
    programs = Path(sys.executable).parent
    variables = os.environ | {
        "LOCAL_STORAGE_DIR": f"{directory}/store",
        "RAYHISTORY_CACHE_DIR": f"{directory}/cache",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    shutil.copy(sample_job.__file__, f"{directory}/train.py")
    Path(directory, "evaluate.py").write_text(FAILING_JOB)
    for script, exit_code in (("train.py", 0), ("evaluate.py", 1)):
        run: list[str | Path] = [programs / "rayhistory", "run", "--", "python", script]
        if subprocess.run(run, env=variables, cwd=directory, check=False).returncode != exit_code:
            raise SystemExit(f"{script} did not end with {exit_code}")
    serve: list[str | Path] = [programs / "rayhistory", "open", "--serve", "--print", "--port", "0"]
    process = subprocess.Popen(serve, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout or ():
            if found := re.search(r"http://\S+/s/\S+/", line):
                yield found[0]
                return
        raise SystemExit("rayhistory open ended without a session")
    finally:
        process.terminate()
        process.wait()


def photograph(page: Page, session: str) -> None:
    page.goto(session)
    page.frame_locator("#dashboard").get_by_text("Overview").first.wait_for()
    page.goto(session.partition("/s/")[0] + "/home")
    page.locator(".session .headline").first.wait_for()
    page.screenshot(path=IMAGES / "home.png", clip={"x": 0, "y": 0, "width": SIZE["width"], "height": HOME_HEIGHT})
    page.goto(f"{session}#/jobs")
    dashboard = page.frame_locator("#dashboard")
    dashboard.get_by_role("row").nth(1).get_by_role("link").first.click()
    dashboard.get_by_text("Ray Core Overview").first.wait_for()
    page.locator("#verdict").wait_for()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=IMAGES / "job.png")


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with (
        tempfile.TemporaryDirectory() as directory,
        recording(directory) as session,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.set_default_timeout(TIMEOUT_MS)
        photograph(page, session)
        browser.close()
    print(f"{IMAGES}/home.png\n{IMAGES}/job.png")


if __name__ == "__main__":
    main()
