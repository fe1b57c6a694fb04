"""Polls are spread over time, at any size of the cluster."""

from rayhistory.collector.dashboard.schedule import JOBS, Poll, PollSchedule


def test_at_most_one_poll_per_second_with_a_thousand_nodes() -> None:
    """Nodes are polled in turn, and the frequent polls are not delayed."""
    schedule = PollSchedule(0.0, 30.0)
    schedule.set_nodes([f"{number:056x}" for number in range(1000)])
    polls: list[Poll] = []
    now = 0.0
    while now < 300:
        poll = schedule.next()
        now = max(now, poll.due)
        polls.append(poll)
        schedule.succeeded(poll, now, 2000)
        now += 1.0
    jobs = [poll for poll in polls if poll.uri == JOBS]
    nodes = {poll.uri for poll in polls if poll.uri.startswith("/nodes/")}
    assert len(polls) <= 301
    assert len(jobs) > 60
    assert len(nodes) > 30


def test_large_responses_are_polled_less_often() -> None:
    """The stored bytes stay bounded."""
    schedule = PollSchedule(0.0, 30.0)
    poll = schedule.next()
    schedule.succeeded(poll, 100.0, 10 * 2**20)
    assert poll.due == 100.0 + 160.0


def test_response_that_is_too_large_is_not_requested_every_minute() -> None:
    schedule = PollSchedule(0.0, 30.0)
    poll = schedule.next()
    schedule.failed(poll, 100.0, 64 * 2**20)
    assert poll.due == 100.0 + 1024.0
