"""What is known about the packages in the images: vulnerabilities, licences, and a bill of materials for each image.

python tools/audit.py deploy/docker/locked-*.txt --to build/sbom

Ends with 1 when something bad is known, and with 3 when nothing bad is known but something could not be looked up.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

_BIN = Path(sys.executable).parent
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_GOOD = re.compile(
    r"MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla Public License|Unlicense|Zlib|HPND", re.IGNORECASE
)
"""Licences under which a package may be in an image; anything else is for a person to decide."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locked", nargs="+", type=Path, help="files that pin every package of an image")
    parser.add_argument("--to", type=Path, default=Path("build/sbom"), help="where bills of materials are written")
    arguments = parser.parse_args()
    bad, unknown = [], []
    for locked in arguments.locked:
        pinned = dict(_PINNED.findall(locked.read_text()))
        for found, missing in (vulnerabilities(locked), licences(pinned)):
            bad += found
            unknown += missing
        bill = write_bill(locked, arguments.to)
        print(f"{locked.name}: {len(pinned)} packages; bill of materials in {bill}")
    for line in sorted(set(bad)):
        print(f"BAD      {line}")
    for line in sorted(set(unknown)):
        print(f"UNKNOWN  {line}")
    print(f"{len(set(bad))} known to be bad, {len(set(unknown))} that could not be looked up")
    sys.exit(1 if bad else 3 if unknown else 0)


def vulnerabilities(locked: Path) -> tuple[list[str], list[str]]:
    """What is known to be wrong, and what could not be looked up."""
    command = [
        str(_BIN / "pip-audit"),
        "--requirement",
        str(locked),
        "--disable-pip",
        "--format=json",
        "--progress-spinner=off",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        return [], [f"vulnerabilities of all packages of {locked.name}: {reason}"]
    bad = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", [])
    ]
    unknown = [
        f"vulnerabilities of {package['name']}: {package['skip_reason']}"
        for package in packages
        if "skip_reason" in package
    ]
    return bad, unknown


def licences(pinned: dict[str, str]) -> tuple[list[str], list[str]]:
    """By what the installed packages say of themselves."""
    bad, unknown = [], []
    for name, version in pinned.items():
        try:
            known = metadata(name)
        except PackageNotFoundError:
            unknown.append(f"licence of {name}: it is not installed here")
            continue
        if known["Version"] != version:
            unknown.append(f"licence of {name} {version}: {known['Version']} is installed here")
            continue
        names = list(_licence_names(known))
        if not names:
            unknown.append(f"licence of {name}: it does not say")
        elif not any(_GOOD.search(licence) for licence in names):
            bad.append(f"{name} {version}: licence {', '.join(names)}")
    return bad, unknown


def _licence_names(known: PackageMetadata) -> Iterator[str]:
    yield from known.get_all("License-Expression", [])
    for classifier in known.get_all("Classifier", []):
        if classifier.startswith("License ::"):
            yield classifier.rpartition(" :: ")[2]
    yield from (text.strip().splitlines()[0] for text in known.get_all("License", []) if text.strip())


def write_bill(locked: Path, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    bill = directory / f"{locked.stem.removeprefix('locked-')}.cdx.json"
    command = [str(_BIN / "cyclonedx-py"), "requirements", str(locked), "--output-reproducible", "--of=JSON"]
    subprocess.run([*command, "-o", str(bill)], check=True)
    return bill


if __name__ == "__main__":
    main()
