"""Prompts: predefined investigations that an agent's user can choose."""

from typing import Any

import msgspec


class Prompt(msgspec.Struct, frozen=True):
    name: str
    description: str
    arguments: dict[str, str]
    """Descriptions of the arguments by name. The first argument is required."""
    text: str

    def describe(self) -> dict[str, Any]:
        arguments = [
            {"name": name, "description": text, "required": number == 0}
            for number, (name, text) in enumerate(self.arguments.items())
        ]
        return {"name": self.name, "description": self.description, "arguments": arguments}

    def fill(self, given: dict[str, str]) -> str:
        return self.text.format(**{name: given.get(name, "") for name in self.arguments})


_SESSION = {"session": "session name, namespace/cluster, or empty for the newest session"}

PROMPTS = {
    prompt.name: prompt
    for prompt in (
        Prompt(
            "why_did_it_fail", "Find the root cause of a failed session.", _SESSION,
            "Why did the Ray session {session!r} fail? Call diagnose first. Verify its verdict with the evidence: read "
            "the log of the first failure (read_log, search_logs), and look at memory around that time "
            "(query_metrics). Tell root causes from consequences. Answer in three sentences, with ids, times and a "
            "suggestion.",
        ),
        Prompt(
            "why_was_it_slow", "Find where the time of a session went.", _SESSION,
            "Why was the Ray session {session!r} slow? Call diagnose, then find the slowest functions with query_sql "
            "(name, count(*), median and max of end_time_ms - start_time_ms from tasks), waiting times, stragglers "
            "and idle nodes (query_metrics). Say what would make it faster, with numbers.",
        ),
        Prompt(
            "what_changed", "Compare a session with an earlier one.",
            {"session": "the session in question", "baseline": "an earlier session that was good"},
            "What changed between the Ray sessions {baseline!r} and {session!r}? Call compare_sessions, "
            "then diagnose for both. Name differences of versions, functions, durations "
            "and failures that matter.",
        ),
    )
}  # fmt: skip
