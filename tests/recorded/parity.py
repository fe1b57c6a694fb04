"""Print how much of what live clusters responded their history responds too, per version of Ray.

cd tests && python -m recorded.parity [--reasons] [PYTHON …]

Each interpreter has its own version of Ray; without any, this one is used. RAYHISTORY_TEST_RECORDING names a directory
that keeps the recordings. Not compared are statistics that change with every request, what changed because the cluster
went on after the request, and ended, and requests for which Ray's code raised an exception. All other differences count
as unequal, with a reason or without.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx
import msgspec

from rayhistory.ray_env import Version
from recorded.compare import Comparison, compare
from recorded.expected_differences import Kind, explanation
from recorded.ray_versions import THIS_PYTHON
from recorded.recorder import Recording, record_once
from support.server_process import running_server

HEADING = f"""\
| Ray | fields | measured | later | crashed | compared | equal | accepted | unexplained | equal ÷ compared |
|{"---|" * 10}"""


class Parity(msgspec.Struct):
    """The fields of all responses of one cluster, counted."""

    fields: int
    equal: int
    differences: dict[Kind, int]
    reasons: Counter[str]
    unexplained: int

    @property
    def compared(self) -> int:
        return self.fields - sum(count for kind, count in self.differences.items() if kind is not Kind.OTHER)

    @property
    def share(self) -> float:
        return self.equal / self.compared


def parity(comparisons: Iterable[Comparison], version: Version) -> Parity:
    each = list(comparisons)
    expected = [explanation(difference, version) for one in each for difference in one.differences]
    found = [reason for reason in expected if reason is not None]
    return Parity(
        fields=sum(one.total for one in each),
        equal=sum(one.equal for one in each),
        differences={kind: sum(reason.kind == kind for reason in found) for kind in Kind},
        reasons=Counter(f"{reason.reason} ({reason.kind})" for reason in found),
        unexplained=len(expected) - len(found),
    )


def compare_all(recorded: Recording, history: str) -> dict[str, Comparison]:
    """Repeat every request on the history server, and compare the responses."""
    found = {}
    with httpx.Client(base_url=history + recorded.ref.url.rstrip("/"), timeout=60, trust_env=False) as http:
        while http.get("/api/version").status_code == 503:  # the first request builds the index
            pass
        for name, live in recorded.responses.items():
            request = live.request
            dead = http.request(request.method, request.path, headers=request.headers)
            found[name] = compare(request, (live.status, live.text), (dead.status_code, dead.text))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare live clusters with their history.")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", default=[THIS_PYTHON])
    parser.add_argument("--reasons", action="store_true", help="count accepted differences by reason")
    arguments = parser.parse_args()
    print(HEADING)
    for python in arguments.pythons:
        with tempfile.TemporaryDirectory() as directory:
            recorded = record_once(Path(directory), python)
            with running_server(recorded.store, Path(directory) / "server") as history:
                found = parity(compare_all(recorded, history).values(), recorded.version)
        print(table_row(recorded.version, found), flush=True)
        if arguments.reasons:
            print("\n".join(f"{count:8} {reason}" for reason, count in found.reasons.most_common()))


def table_row(version: Version, found: Parity) -> str:
    not_compared = (found.differences[kind] for kind in (Kind.MEASURED, Kind.LATER, Kind.CRASHED))
    accepted = found.differences[Kind.OTHER]
    counts = (found.fields, *not_compared, found.compared, found.equal, accepted, found.unexplained)
    return f"| {'.'.join(map(str, version))} | {' | '.join(f'{count:,}' for count in counts)} | {found.share:.2%} |"


if __name__ == "__main__":
    main()
