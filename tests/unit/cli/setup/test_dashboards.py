"""`rayhistory dashboards`: add, list and remove versions of Ray's frontend."""

import zipfile
from pathlib import Path

import pytest

from support.cli_call import Command
from support.fake_frontends import BUILD_IN_WHEEL, make_frontend, make_wheel, overwrite_entry_headers

OWN = "2.60.0"
"""The version of the Ray that is installed here."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capfd)


@pytest.fixture
def dashboard_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "dashboards"


@pytest.mark.slow
def test_version_is_downloaded_with_pip(
    command: Command, dashboard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip uses the user's settings. Only the dashboard of the wheel is installed, and a second call changes nothing."""
    (tmp_path / "wheels").mkdir()
    wheel = make_wheel(tmp_path / "wheels", "2.55.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert f"added 2.55.0: {dashboard_dir / '2.55.0'}" in command.good("dashboards", "add", "2.55.0")
    assert sorted(path.name for path in (dashboard_dir / "2.55.0").iterdir()) == ["index.html", "static"]
    assert "already" in command.good("dashboards", "add", "2.55.0")
    assert "No matching distribution found for ray==2.54.0" in command.bad("dashboards", "add", "2.54.0")
    assert [path.name for path in dashboard_dir.iterdir()] == ["2.55.0"]


@pytest.mark.slow
def test_wheel_for_another_platform_is_accepted(
    command: Command, dashboard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of Ray that does not support this Python has a dashboard all the same."""
    (tmp_path / "wheels").mkdir()
    wheel = make_wheel(tmp_path / "wheels", "2.55.0")
    wheel.rename(wheel.with_name("ray-2.55.0-cp311-cp311-manylinux2014_x86_64.whl"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_PYTHON_VERSION", "3.9")
    monkeypatch.setenv("PIP_ABI", "cp311")
    command.good("dashboards", "add", "2.55.0")
    assert (dashboard_dir / "2.55.0" / "index.html").is_file()


def test_wheels_and_directories_are_added_listed_and_removed(
    command: Command, dashboard_dir: Path, tmp_path: Path
) -> None:
    """The version of a directory comes from the Ray around it, from its name, or from --as."""
    around = tmp_path / "site-packages" / "ray"
    make_frontend(around / "dashboard/client/build", "2.53.0")
    (around / "_version.py").write_text('version = "2.53.0"\ncommit = "abc"\n')
    named, other = make_frontend(tmp_path / "2.52.0", "2.52.0"), make_frontend(tmp_path / "mine", "mine")
    wheel = make_wheel(tmp_path, "2.54.0")
    command.good("dashboards", "add", str(wheel), str(around.parent), str(named))
    assert "set it with --as" in command.bad("dashboards", "add", str(other))
    command.good("dashboards", "add", str(other), "--as", "2.51.0")
    listed = [line.split()[0] for line in command.good("dashboards", "list").splitlines()]
    assert listed == ["VERSION", OWN, "2.54.0", "2.53.0", "2.52.0", "2.51.0"]

    make_frontend(other, "mine", **{"static/new.js": "new"})
    command.good("dashboards", "add", str(other), "--as", "2.51.0")
    assert (dashboard_dir / "2.51.0/static/new.js").read_text() == "new"

    assert "removed 2.54.0" in command.good("dashboards", "remove", "2.54.0", "2.51.0")
    assert sorted(path.name for path in dashboard_dir.iterdir()) == ["2.52.0", "2.53.0"]


def test_file_names_are_unique_across_versions(command: Command, dashboard_dir: Path, tmp_path: Path) -> None:
    """A page would get a file of another version, so builds without digests in file names are rejected."""
    one = make_frontend(tmp_path / "2.52.0", "2.52.0", **{"static/app.js": "one"})
    two = make_frontend(tmp_path / "2.53.0", "2.53.0", **{"static/app.js": "two"})
    command.good("dashboards", "add", str(one))
    assert "Ray 2.53.0 and 2.52.0 have different files named static/app.js" in command.bad(
        "dashboards", "add", str(two)
    )
    assert [path.name for path in dashboard_dir.iterdir()] == ["2.52.0"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("add", "newest"), "use a version such as"),
        (("add", "../2.55.0"), "use a version such as"),
        (("add", "nothing.whl"), "cannot read the wheel"),
        (("add", "broken.whl"), "cannot read the wheel"),
        (("add", "encrypted.whl"), "cannot read the wheel"),
        (("add", "packed.whl"), "cannot read the wheel"),
        (("add", "other.whl"), "is not a Ray wheel with a dashboard"),
        (("add", "outside.whl"), "is outside of the wheel"),
        (("add", "empty"), "has no Ray Dashboard frontend"),
        (("add", "2.52.0", "--as", "../../2.52.0"), "is not a Ray version"),
        (("add", "2.52.0", "--dashboard-dir", "broken.whl"), "cannot write"),
        (("remove", OWN), "it is part of the installed Ray"),
        (("remove", "2.55.0"), "it is not in"),
        (("remove", ".."), "it is not in"),
        (("remove",), "required: VERSION"),
        (("lst",), "unknown action 'lst': did you mean list?"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.whl").write_text("not a zip")
    with zipfile.ZipFile("other.whl", "w") as package:
        package.writestr("numpy/__init__.py", "")
    make_wheel(tmp_path, "2.55.0", **{f"{BUILD_IN_WHEEL}/../../../../outside.txt": "x"}).rename("outside.whl")
    for name, offset, value in (("encrypted.whl", 8, 1), ("packed.whl", 10, 99)):
        make_wheel(tmp_path, "2.55.0").rename(name)
        overwrite_entry_headers(tmp_path / name, offset, value)
    (tmp_path / "empty").mkdir()
    make_frontend(tmp_path / "2.52.0", "2.52.0")
    assert message in command.bad("dashboards", *argv)
    assert not (tmp_path / "cache" / "dashboards").exists()


def test_dashboards_alone_lists_them(command: Command) -> None:
    assert command.good("dashboards") == command.good("dashboards", "list")
