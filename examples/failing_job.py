"""A job that fails: the one of docs/tutorial/first-session.md."""

import ray


@ray.remote
def halve(number: int) -> float:
    if number == 3:
        raise ValueError("cannot halve 3")
    return number / 2


print(ray.get([halve.remote(number) for number in range(5)]))
