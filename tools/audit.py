"""Audit the packages of the images: vulnerabilities, licenses, and an SBOM for each image.

    python tools/audit.py deploy/docker/locked-*.txt --to build/sbom

Exits with 1 if a package has a vulnerability or an unaccepted license, else with 3 if a lookup failed.
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
_ACCEPTED_LICENSES = re.compile(
    r"MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla Public License|Unlicense|Zlib|HPND", re.IGNORECASE
)
"""Licenses accepted in an image; any other needs a decision by a person."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locked", nargs="+", type=Path, help="lock files of the images")
    parser.add_argument("--to", type=Path, default=Path("build/sbom"), help="directory for the SBOMs")
    arguments = parser.parse_args()
    problems, unknown = [], []
    for locked in arguments.locked:
        pinned = dict(_PINNED.findall(locked.read_text()))
        for found, missing in (vulnerabilities(locked), licenses(pinned)):
            problems += found
            unknown += missing
        sbom = write_sbom(locked, arguments.to)
        print(f"{locked.name}: {len(pinned)} packages, SBOM in {sbom}")
    for line in sorted(set(problems)):
        print(f"PROBLEM  {line}")
    for line in sorted(set(unknown)):
        print(f"UNKNOWN  {line}")
    print(f"{len(set(problems))} problems, {len(set(unknown))} failed lookups")
    sys.exit(1 if problems else 3 if unknown else 0)


def vulnerabilities(locked: Path) -> tuple[list[str], list[str]]:
    """Return known vulnerabilities, and failed lookups."""
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
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        return [], [f"vulnerabilities of all packages of {locked.name}: {reason}"]
    problems = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", [])
    ]
    unknown = [
        f"vulnerabilities of {package['name']}: {package['skip_reason']}"
        for package in packages
        if "skip_reason" in package
    ]
    return problems, unknown


def licenses(pinned: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return unaccepted licenses, and failed lookups, from the metadata of installed packages."""
    problems, unknown = [], []
    for name, version in pinned.items():
        try:
            package = metadata(name)
        except PackageNotFoundError:
            unknown.append(f"license of {name}: package not installed")
            continue
        if package["Version"] != version:
            unknown.append(f"license of {name} {version}: {package['Version']} is installed")
            continue
        names = list(_license_names(package))
        if not names:
            unknown.append(f"license of {name}: not in the metadata")
        elif not any(_ACCEPTED_LICENSES.search(license_name) for license_name in names):
            problems.append(f"{name} {version}: license {', '.join(names)}")
    return problems, unknown


def _license_names(package: PackageMetadata) -> Iterator[str]:
    yield from package.get_all("License-Expression", [])
    for classifier in package.get_all("Classifier", []):
        if classifier.startswith("License ::"):
            yield classifier.rpartition(" :: ")[2]
    yield from (text.strip().splitlines()[0] for text in package.get_all("License", []) if text.strip())


def write_sbom(locked: Path, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    sbom = directory / f"{locked.stem.removeprefix('locked-')}.cdx.json"
    command = [str(_BIN / "cyclonedx-py"), "requirements", str(locked), "--output-reproducible", "--of=JSON"]
    subprocess.run([*command, "-o", str(sbom)], check=True)
    return sbom


if __name__ == "__main__":
    main()
