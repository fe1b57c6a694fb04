"""Build a Dockerfile without an engine: each stage is a directory, and its commands run with it as their root.

The system and the Python of this machine, mounted read-only, take the place of the base image.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "etc")
BUILD_VARIABLES = ("PIP_", "SSL_", "REQUESTS_", "http_proxy", "https_proxy", "no_proxy")


@dataclass
class Image:
    """A built stage: its files, and how to run it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The size of the files that are not in the base image."""
        return sum(path.lstat().st_size for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def command(self, arguments: list[str], mounts: dict[str, Path], environment: dict[str, str]) -> list[str]:
        """Return a command that runs the image as its user, on a read-only root, without a network."""
        user, _, group = self.user.partition(":")
        switch = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        program = ["env", "-i", *_pairs(self.environment | environment), *switch, *arguments]
        empty = [volume for volume in self.volumes if volume not in mounts]
        mounting = _mounting(self.root, mounts, empty, writable=False)
        script = f"{mounting}ip link set lo up; exec {_in_root(self.root, program)}"
        return ["unshare", "--mount", "--net", "sh", "-ec", script]


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Yield instructions and their arguments, without comments and with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        if line.strip():
            instruction, _, rest = line.strip().partition(" ")
            yield instruction.upper(), rest.strip()


def build(
    context: Path, dockerfile: Path, work: Path, arguments: dict[str, str], mounts: dict[str, Path]
) -> dict[str, Image]:
    """Build all stages; `arguments` are --build-arg, and `mounts` exist while commands run."""
    stages: dict[str, Image] = {}
    variables = dict(arguments)
    image = Image(work)
    files = _context_files(context)
    for instruction, rest in parse(dockerfile.read_text()):
        if instruction == "ARG":
            name, _, default = rest.partition("=")
            variables.setdefault(name, default)
        elif instruction == "FROM":
            base, _, name = rest.split()
            image = _new_stage(work / name, stages.get(base))
            stages[name] = image
        elif instruction == "ENV":
            image.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif instruction == "WORKDIR":
            image.workdir = rest
            (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            _copy(rest, image, stages, files, context)
        elif instruction == "RUN":
            _run(rest, image, variables, mounts)
        elif instruction == "USER":
            image.user = rest
        elif instruction in ("ENTRYPOINT", "VOLUME"):
            setattr(image, {"ENTRYPOINT": "entrypoint", "VOLUME": "volumes"}[instruction], json.loads(rest))
        else:
            assert instruction == "EXPOSE", f"{instruction} is not known here"
    return stages


def _new_stage(root: Path, base: Image | None) -> Image:
    if base is None:
        root.mkdir(parents=True)
        return Image(root)
    subprocess.run(["cp", "-al", base.root, root], check=True)
    return Image(root, dict(base.environment), base.workdir)


def _context_files(context: Path) -> list[str]:
    """List the files that .dockerignore does not exclude; the last matching rule of a file counts."""
    rules = [line for line in (context / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    listed = subprocess.run(
        ["find", ".", "-name", ".git", "-prune", "-o", "-name", ".venv*", "-prune", "-o", "-type", "f", "-print"],
        cwd=context, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [name.removeprefix("./") for name in listed.stdout.splitlines()]
    return [name for name in files if _is_included(name, rules)]


def _is_included(name: str, rules: list[str]) -> bool:
    included = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        prefixes = [name, *(str(parent) for parent in Path(name).parents if str(parent) != ".")]
        if pattern.startswith("**/"):
            matches = any(fnmatch(part, pattern[3:]) for part in Path(name).parts)
        else:
            matches = any(fnmatch(prefix, pattern) and prefix.count("/") == pattern.count("/") for prefix in prefixes)
        if matches:
            included = rule.startswith("!")
    return included


def _copy(rest: str, image: Image, stages: dict[str, Image], files: list[str], context: Path) -> None:
    words = rest.split()
    origin = stages[words.pop(0).removeprefix("--from=")] if words[0].startswith("--from=") else None
    *sources, target = words
    destination = image.root / os.path.join(image.workdir, target).lstrip("/")  # noqa: PTH118 - target may be absolute
    for source in sources:
        if origin:
            destination.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-al", origin.root / source.lstrip("/"), destination], check=True)
            continue
        names = [name for name in files if name == source or name.startswith(f"{source}/")]
        assert names, f".dockerignore excludes {source}"
        for name in names:
            inner = Path(name).name if name == source else str(Path(name).relative_to(source))
            (destination / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(context / name, destination / inner)


def _run(command: str, image: Image, variables: dict[str, str], mounts: dict[str, Path]) -> None:
    build_variables = {name: value for name, value in os.environ.items() if name.startswith(BUILD_VARIABLES)}
    path = {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
    environment = path | build_variables | variables | image.environment
    script_in_image = f"cd {image.workdir} && {command}"
    program = ["env", "-i", *_pairs(environment), "sh", "-ec", script_in_image]
    cache = Path("~/.cache/pip").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    script = _mounting(image.root, {"/root/.cache/pip": cache, **mounts}, ["/tmp"], writable=True)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f"{script}exec {_in_root(image.root, program)}"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"RUN {command}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}"


def _mounting(root: Path, mounts: dict[str, Path], empty: list[str], *, writable: bool) -> str:
    """Return a script that mounts a system around the stage's files; the mounts end with the process."""
    lines = ["mount --make-rprivate /"]
    inside = shlex.quote(str(root))
    lines += [f"mount --bind {inside} {inside}"]
    for name in SYSTEM:
        target, source = shlex.quote(str(root / name)), Path("/") / name
        if source.is_symlink():
            lines.append(f"ln -sfn {source.readlink()} {target}")
        elif source.exists():
            lines += [f"mkdir -p {target}", f"mount --bind {source} {target}", f"mount -o remount,bind,ro {target}"]
    if not sys.base_prefix.startswith("/usr"):
        mounts = {sys.base_prefix: Path(sys.base_prefix), **mounts}
    for name in ("proc", "dev"):
        lines += [f"mkdir -p {inside}/{name}", f"mount --rbind /{name} {inside}/{name}"]
    for target in empty:
        lines += [f"mkdir -p {inside}{target}", f"mount -t tmpfs -o mode=1777 tmpfs {inside}{target}"]
    for target, source in mounts.items():
        lines += [f"mkdir -p {inside}{target}", f"mount --bind {shlex.quote(str(source))} {inside}{target}"]
    if not writable:
        lines.append(f"mount -o remount,bind,ro {inside}")
    return "; ".join(lines) + "; "


def _in_root(root: Path, program: list[str]) -> str:
    return shlex.join(["chroot", str(root), *program])


def _pairs(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]
