"""A directory of the collector: links in it are not followed, and others cannot read it."""

import os
from pathlib import Path

import pytest

from rayhistory.collector.spool.private_directory import PrivateDirectory


def test_directories_and_files_are_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    directory = PrivateDirectory(tmp_path / "a" / "b", tmp_path)
    directory.folder("c").make()
    directory.folder("c").write("d", b"content")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": 0o700, "c": 0o700, "d": 0o600}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c", "a/b/c/d"])
def test_links_are_not_followed(tmp_path: Path, link: str) -> None:
    """Neither in place of the directory and its parents below the base, nor in it."""
    target, base = tmp_path / "target", tmp_path / "base"
    (target / "b" / "c").mkdir(parents=True)
    for place in ("d", "b/d", "b/c/d", "c/d"):
        (target / place).parent.mkdir(exist_ok=True)
        (target / place).write_text("secret")
    (base / link).parent.mkdir(parents=True)
    (base / link).symlink_to(target / "d" if link.endswith("d") else target)
    folder = PrivateDirectory(base / "a" / "b", base).folder("c")
    with pytest.raises(OSError, match=r"link|symbolic"):
        folder.read("d")
    with pytest.raises(OSError, match=r"link|symbolic"):
        os.close(folder.create("d"))


def test_base_may_be_a_link(tmp_path: Path) -> None:
    """Ray's directory, or the operator's, may lie on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "disk")
    PrivateDirectory(tmp_path / "base" / "a", tmp_path / "base").folder("b").make()
    assert (tmp_path / "disk" / "a" / "b").is_dir()


def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """Such as one that another user made in /tmp, which is writable for all and sticky."""
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner")
    tmp_path.chmod(0o1777)
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        PrivateDirectory(tmp_path / "a").make()
    PrivateDirectory(tmp_path / "b").make()


def test_directory_that_was_removed_is_made_again(tmp_path: Path) -> None:
    directory = PrivateDirectory(tmp_path / "a")
    directory.make()
    (tmp_path / "a").rmdir()
    directory.make()
    directory.write("b", b"content", sync=True)
    assert (tmp_path / "a" / "b").read_bytes() == b"content"


def test_directory_stays_the_same_when_it_is_moved(tmp_path: Path) -> None:
    directory = PrivateDirectory(tmp_path / "a")
    directory.make()
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "a").symlink_to("/etc")
    directory.write("b", b"content")
    assert (tmp_path / "moved" / "b").read_bytes() == b"content"
