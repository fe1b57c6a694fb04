"""The schedule of dashboard polls: at most one per second, at any size of the cluster."""

import msgspec

from rayhistory.events.dashboard_responses import FAILED_TASKS_URI, TASK_SPANS_URI

VERSION = "/api/version"
JOBS = "/api/jobs/"
ACTORS = "/logical/actors"
NODES = "/nodes?view=summary"
SERVE = "/api/serve/applications/"
DATASETS = "/api/data/datasets/"
TRAIN = "/api/train/v2/runs/v1"
GRAFANA = "/api/grafana_health"
FAILED_TASKS = FAILED_TASKS_URI
TASK_SPANS = TASK_SPANS_URI
PLACEMENT_GROUPS = "/api/v0/placement_groups?detail=1&limit=10000"

_ONCE = float("inf")
_BYTES_PER_SECOND = 64 * 1024
"""Maximum rate of stored bytes. Large responses are polled less often, to stay below it."""
_FAILED_TASKS_INTERVAL_S = 5.0
_MAX_RETRY_INTERVAL_S = 60.0
_NODE_INTERVAL_S = 15.0
_MIN_NODE_INTERVAL_S = 5.0
_MAX_FINAL_NODES = 8
_CACHED_BY_RAY = ("/nodes", "/logical/")
_STAGGER_S = 1.5
"""Seconds between the first polls of two URIs, so that frequent polls are not delayed by all first polls at once."""


class Poll(msgspec.Struct, eq=False):
    uri: str
    interval: float
    kuberay: bool = False
    """True if KubeRay's collector also polls this URI. Then its response is also stored as KubeRay stores it."""
    final: bool = True
    """True if this URI is polled once more at session end."""
    due: float = 0.0
    failures: int = 0

    @property
    def request(self) -> str:
        """Return the URI to request. If Ray caches responses of this route, the URI bypasses the cache."""
        if not self.uri.startswith(_CACHED_BY_RAY):
            return self.uri
        return f"{self.uri}{'&' if '?' in self.uri else '?'}nocache=1"


class PollSchedule:
    def __init__(self, now: float, poll_interval: float, additional_uris: tuple[str, ...] = ()) -> None:
        self._poll_interval = poll_interval
        self._nodes: list[str] = []
        self._node_due = 0.0
        # The order matters at the start of a session, which may be short.
        self._polls = {
            poll.uri: poll
            for poll in [
                Poll(JOBS, 2.0),
                Poll("/api/v0/cluster_metadata", _ONCE, kuberay=True, final=False),
                Poll(NODES, 15.0),
                Poll(PLACEMENT_GROUPS, 5.0, kuberay=True),
                Poll(ACTORS, poll_interval),
                Poll("/timezone", _ONCE, kuberay=True, final=False),
                Poll("/api/cluster_status?format=1", 10.0),
                Poll("/api/v0/workers?detail=1&limit=10000", poll_interval),
                Poll("/api/v0/nodes?detail=1&limit=10000", poll_interval),
                Poll(GRAFANA, _ONCE, final=False),
            ]
        }
        for uri in additional_uris:
            self.add("/" + uri.lstrip("/"))
        for position, poll in enumerate(self._polls.values()):
            poll.due = now + position * _STAGGER_S

    def add(self, uri: str) -> None:
        """Add a poll that KubeRay's collector also makes."""
        if uri not in self._polls:
            self._polls[uri] = Poll(uri, self._poll_interval, kuberay=True)

    def add_failed_tasks(self) -> None:
        """Add a poll for failed tasks, for drivers that do not export events."""
        self._polls.setdefault(FAILED_TASKS, Poll(FAILED_TASKS, _FAILED_TASKS_INTERVAL_S))

    def add_task_spans(self) -> None:
        """Add a poll for profile spans, for versions of Ray that do not export all of them."""
        self._polls.setdefault(TASK_SPANS, Poll(TASK_SPANS, self._poll_interval))

    def remove(self, uri: str) -> None:
        self._polls.pop(uri, None)

    def set_nodes(self, nodes: list[str]) -> None:
        """Set the nodes whose pages are polled in turn."""
        before, now = set(self._nodes), set(nodes)
        self._nodes = [node for node in self._nodes if node in now] + [node for node in nodes if node not in before]

    def next(self) -> Poll:
        """Return the poll that is due next."""
        first = min(self._polls.values(), key=lambda poll: poll.due)
        if self._nodes and self._node_due < first.due:
            return Poll(f"/nodes/{self._nodes[0]}", 0.0, final=False, due=self._node_due)
        return first

    def final_polls(self) -> list[Poll]:
        """Return polls whose responses may have changed, and polls that never succeeded."""
        return [poll for poll in self._polls.values() if poll.final or poll.due != _ONCE]

    def final_node_polls(self) -> list[Poll]:
        """Return polls for the pages of a few nodes, starting with those whose last poll is oldest."""
        return [Poll(f"/nodes/{node}", 0.0, final=False) for node in self._nodes[:_MAX_FINAL_NODES]]

    def succeeded(self, poll: Poll, now: float, size: int) -> None:
        poll.failures = 0
        poll.due = now + max(poll.interval, size / _BYTES_PER_SECOND)
        self._rotate_nodes(poll, now, size)

    def failed(self, poll: Poll, now: float, size: int = 0) -> None:
        """Schedule the next try of a failed poll. `size` is the number of bytes that were received before it failed."""
        poll.failures += 1
        interval = min(poll.interval, _MAX_RETRY_INTERVAL_S)
        delay = min(_MAX_RETRY_INTERVAL_S, max(interval, 2.0**poll.failures))
        poll.due = now + max(delay, size / _BYTES_PER_SECOND)
        self._rotate_nodes(poll, now, 0)

    def _rotate_nodes(self, poll: Poll, now: float, size: int) -> None:
        if self._nodes and poll.uri == f"/nodes/{self._nodes[0]}":
            self._nodes.append(self._nodes.pop(0))
            interval = max(_MIN_NODE_INTERVAL_S, _NODE_INTERVAL_S / len(self._nodes), size / _BYTES_PER_SECOND)
            self._node_due = now + interval
