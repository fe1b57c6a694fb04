"""Small frontends of Ray's dashboard, as directories and as wheels."""

import shutil
import zipfile
from pathlib import Path

from rayhistory.server.frontend import Frontends

BUILD_IN_WHEEL = "ray/dashboard/client/build"


def make_frontend(directory: Path, version: str, **files: str) -> Path:
    """Write a small frontend. As in Ray's, file names depend on the content."""
    text = f"{version} {files}"
    names = {"index.html": f"<title>{version}</title>", f"static/js/main.{abs(hash(text)):x}.js": text, **files}
    for name, content in names.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory


def make_wheel(directory: Path, version: str, **more: str) -> Path:
    wheel = directory / f"ray-{version}-py3-none-any.whl"
    built = make_frontend(directory / "build", version)
    with zipfile.ZipFile(wheel, "w") as package:
        for path in sorted(built.rglob("*.*")):
            package.write(path, f"{BUILD_IN_WHEEL}/{path.relative_to(built)}")
        about = f"ray-{version}.dist-info"
        package.writestr("ray/__init__.py", "")
        package.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
        package.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        package.writestr(f"{about}/RECORD", "")
        for name, content in more.items():
            package.writestr(name, content)
    shutil.rmtree(built)
    return wheel


def overwrite_entry_headers(package: Path, offset: int, value: int) -> None:
    """Overwrite a byte in the header of every file of a package, and in its central directory."""
    content = bytearray(package.read_bytes())
    for signature, shift in ((b"PK\x01\x02", 0), (b"PK\x03\x04", -2)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset + shift] = value
            at = content.find(signature, at + 4)
    package.write_bytes(content)


def frontends_of(directory: Path, *versions: str) -> Frontends:
    for version in versions:
        make_frontend(directory / version, version)
    return Frontends(str(directory))
