"""Coverage-guided fuzzing: `python -m fuzz [target …] --seconds 60`, each target in a process of its own.

What is found to be interesting stays in artifacts/fuzz, and is where the next run begins. An input that breaks a target
is written beside it; it belongs into tests/fuzz/found/<target>/ as soon as it is mended.
"""

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "artifacts/fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="fuzzes what reads foreign bytes")
    parser.add_argument("targets", nargs="*", help="which (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        fuzz(given.targets[0], given.seconds)
    from fuzz.targets import TARGETS

    broken = []
    for name in given.targets or TARGETS:
        began = time.monotonic()
        command = [sys.executable, "-m", "fuzz", name, "--inside", "--seconds", str(given.seconds)]
        done = subprocess.run(command, cwd=ROOT / "tests", stderr=subprocess.PIPE, text=True, check=False)
        last = next((line for line in reversed(done.stderr.splitlines()) if "cov:" in line), "no figures")
        print(f"{name:15} {time.monotonic() - began:5.0f} s  {last.strip()}", flush=True)
        if done.returncode:
            broken.append(name)
            print(done.stderr[-6000:], file=sys.stderr)
    if broken:
        print(f"broken: {', '.join(broken)}; the inputs are in {CORPUS}", file=sys.stderr)
    return 1 if broken else 0


def fuzz(name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["rayhistory"]):
        from fuzz.mutate import mutated
        from fuzz.targets import TARGETS

    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (folder / f"seed-{number}").write_bytes(seed)

    def other(data: bytes, largest: int, seed: int) -> bytes:
        dice = random.Random(seed)
        return (mutated(data, dice) if dice.random() < 0.7 else atheris.Mutate(data, largest))[:largest]

    options = [f"-max_total_time={seconds}", "-max_len=65536", "-timeout=20", "-rss_limit_mb=2048",
               f"-artifact_prefix={folder}/broken-", "-print_final_stats=1"]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(folder)], TARGETS[name].run, custom_mutator=other)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
