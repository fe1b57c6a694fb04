"""What is asked of the dashboard, and when: at most one question per second, at any size of the cluster."""

import msgspec

VERSION = "/api/version"
JOBS = "/api/jobs/"
ACTORS = "/logical/actors"
NODES = "/nodes?view=summary"
SERVE = "/api/serve/applications/"
DATASETS = "/api/data/datasets/"
TRAIN = "/api/train/v2/runs/v1"
GRAFANA = "/api/grafana_health"
PLACEMENT_GROUPS = "/api/v0/placement_groups?detail=1&limit=10000"

_ONCE = float("inf")
_BYTES_PER_SECOND = 64 * 1024
"""A large answer is asked for less often: what is kept stays bounded."""
_LONGEST_WAIT = 60.0
_NODE_EVERY, _SOME_NODE_EVERY = 15.0, 5.0
_LAST_NODES = 8
_STALE = ("/nodes", "/logical/")
_STAGGER = 1.5
"""Seconds between the first times of two questions, so that the frequent ones are not kept waiting."""


class Question(msgspec.Struct, eq=False):
    uri: str
    every: float
    kuberay: bool = False
    """KubeRay's collector keeps this one too, as an object of its own."""
    final: bool = True
    """Asked once more at the end."""
    due: float = 0.0
    failures: int = 0

    @property
    def request(self) -> str:
        """Ray answers some questions with what it found the last time somebody asked, however long ago."""
        if not self.uri.startswith(_STALE):
            return self.uri
        return f"{self.uri}{'&' if '?' in self.uri else '?'}nocache=1"


class Schedule:
    def __init__(self, now: float, poll_interval: float, additional: tuple[str, ...] = ()) -> None:
        self._poll_interval = poll_interval
        self._nodes: list[str] = []
        self._node_due = 0.0
        # The order counts at the start of a session that may be short.
        self._questions = {
            question.uri: question
            for question in [
                Question(JOBS, 2.0),
                Question("/api/v0/cluster_metadata", _ONCE, kuberay=True, final=False),
                Question(NODES, 15.0),
                Question(PLACEMENT_GROUPS, 5.0, kuberay=True),
                Question(ACTORS, poll_interval),
                Question("/timezone", _ONCE, kuberay=True, final=False),
                Question("/api/cluster_status?format=1", 10.0),
                Question("/api/v0/workers?detail=1&limit=10000", poll_interval),
                Question("/api/v0/nodes?detail=1&limit=10000", poll_interval),
                Question(GRAFANA, _ONCE, final=False),
            ]
        }
        for uri in additional:
            self.add("/" + uri.lstrip("/"))
        for position, question in enumerate(self._questions.values()):
            question.due = now + position * _STAGGER

    def add(self, uri: str) -> None:
        """One more question that KubeRay's collector asks too."""
        if uri not in self._questions:
            self._questions[uri] = Question(uri, self._poll_interval, kuberay=True)

    def remove(self, uri: str) -> None:
        self._questions.pop(uri, None)

    def set_nodes(self, nodes: list[str]) -> None:
        """Their pages are asked for in turn."""
        known = set(self._nodes)
        still = set(nodes)
        self._nodes = [node for node in self._nodes if node in still] + [node for node in nodes if node not in known]

    def next(self) -> Question:
        """The one that is due first; asked once and answered is due never."""
        first = min(self._questions.values(), key=lambda question: question.due)
        if self._nodes and self._node_due < first.due:
            return Question(f"/nodes/{self._nodes[0]}", 0.0, final=False, due=self._node_due)
        return first

    def at_the_end(self) -> list[Question]:
        """What may have changed since, and what was never answered."""
        return [question for question in self._questions.values() if question.final or question.due != _ONCE]

    def nodes_at_the_end(self) -> list[Question]:
        """The pages of a few nodes, those first that were not asked for longest: what runs there runs until the end."""
        return [Question(f"/nodes/{node}", 0.0, final=False) for node in self._nodes[:_LAST_NODES]]

    def answered(self, question: Question, now: float, size: int) -> None:
        question.failures = 0
        question.due = now + max(question.every, size / _BYTES_PER_SECOND)
        self._turn_nodes(question, now, size)

    def failed(self, question: Question, now: float) -> None:
        question.failures += 1
        every = min(question.every, _LONGEST_WAIT)
        question.due = now + min(_LONGEST_WAIT, max(every, 2.0**question.failures))
        self._turn_nodes(question, now, 0)

    def _turn_nodes(self, question: Question, now: float, size: int) -> None:
        if self._nodes and question.uri == f"/nodes/{self._nodes[0]}":
            self._nodes.append(self._nodes.pop(0))
            self._node_due = now + max(_SOME_NODE_EVERY, _NODE_EVERY / len(self._nodes), size / _BYTES_PER_SECOND)
