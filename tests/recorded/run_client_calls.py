"""Run calls of Ray's own clients: a JSON list of (address, call) on standard input, their results on standard output.

A call names a function of this file and its arguments after the address: a command line of `ray`, or the arguments of
an SDK function. One process runs many calls, because importing Ray takes seconds.
"""

import asyncio
import json
import sys
from typing import Any

from click.testing import CliRunner
from ray.job_submission import JobSubmissionClient
from ray.scripts.scripts import cli
from ray.util import state


def command(address: str, argv: list[str]) -> dict[str, Any]:
    done = CliRunner().invoke(cli, [*argv, "--address", address])
    return {"code": done.exit_code, "out": done.output, "error": repr(done.exception) if done.exception else None}


def listed(address: str, kind: str, **options: Any) -> list[Any]:
    rows = getattr(state, f"list_{kind}")(address=address, limit=10_000, raise_on_missing_output=True, **options)
    return [row.asdict() for row in rows]


def got(address: str, kind: str, name: str) -> Any:
    row = getattr(state, f"get_{kind}")(name, address=address)
    return [one.asdict() for one in row] if isinstance(row, list) else row and row.asdict()


def summarized(address: str, kind: str) -> Any:
    return getattr(state, f"summarize_{kind}")(address=address)


def jobs(address: str) -> dict[str, Any]:
    client = JobSubmissionClient(address)
    submitted = [job.submission_id for job in client.list_jobs() if job.submission_id]
    return {
        "version": client.get_version(),
        "jobs": [job.dict() for job in client.list_jobs()],
        "status": {name: client.get_job_status(name) for name in submitted},
        "logs": {name: client.get_job_logs(name) for name in submitted},
    }


def tailed(address: str, job: str) -> str:
    async def tail() -> str:
        return "".join([text async for text in JobSubmissionClient(address).tail_job_logs(job)])

    return asyncio.run(asyncio.wait_for(tail(), 60))


def changed(address: str) -> str:
    try:
        JobSubmissionClient(address).submit_job(entrypoint="true")
    except RuntimeError as error:
        return str(error)
    return "submitted"


CALLS = {each.__name__: each for each in (command, listed, got, summarized, jobs, tailed, changed)}


def run_call(address: str, call: dict[str, Any]) -> Any:
    try:
        return CALLS[call["function"]](address, *call["arguments"], **call.get("options", {}))
    except Exception as error:  # noqa: BLE001 - an exception is a result
        return {"raised": repr(error)}


def main() -> None:
    results = [run_call(address, call) for address, call in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(results, default=str))


if __name__ == "__main__":
    main()
