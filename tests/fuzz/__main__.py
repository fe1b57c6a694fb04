"""Coverage-guided fuzzing: `python -m fuzz [target …] --seconds 60`, each target in a process of its own.

The corpus is kept in artifacts/fuzz, where the next run begins. An input that crashes a target is written beside it;
copy it to tests/fuzz/crashes/<target>/ when the crash is fixed.
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
    parser = argparse.ArgumentParser(prog="fuzz", description="fuzz the parsers of untrusted data")
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        fuzz(options.targets[0], options.seconds)
    from fuzz.targets import TARGETS

    crashed = []
    for name in options.targets or TARGETS:
        started = time.monotonic()
        command = [sys.executable, "-m", "fuzz", name, "--in-process", "--seconds", str(options.seconds)]
        done = subprocess.run(command, cwd=ROOT / "tests", stderr=subprocess.PIPE, text=True, check=False)
        last = next((line for line in reversed(done.stderr.splitlines()) if "cov:" in line), "no coverage")
        print(f"{name:15} {time.monotonic() - started:5.0f} s  {last.strip()}", flush=True)
        if done.returncode:
            crashed.append(name)
            print(done.stderr[-6000:], file=sys.stderr)
    if crashed:
        print(f"crashed: {', '.join(crashed)}; see the inputs in {CORPUS}", file=sys.stderr)
    return 1 if crashed else 0


def fuzz(name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["rayhistory"]):
        from fuzz.mutate import mutate
        from fuzz.targets import TARGETS

    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (folder / f"seed-{number}").write_bytes(seed)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        return (mutate(data, rng) if rng.random() < 0.7 else atheris.Mutate(data, max_size))[:max_size]

    arguments = [f"-max_total_time={seconds}", "-max_len=65536", "-timeout=20", "-rss_limit_mb=2048",
               f"-artifact_prefix={folder}/crash-", "-print_final_stats=1"]  # fmt: skip
    atheris.Setup([sys.argv[0], *arguments, str(folder)], TARGETS[name].run, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
