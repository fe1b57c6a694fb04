"""A job that fails with exit code 5, and whose texts would do harm on a page that took them for HTML."""

import sys

import ray

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@ray.remote(max_retries=0)
def parse_document(markup: str) -> int:
    print(f"parsing {markup}", flush=True)
    raise ValueError(f"unexpected {markup}")


ray.init()
print(f"given {sys.argv[1]}", flush=True)
try:
    ray.get(parse_document.remote(HOSTILE))
except ValueError as error:
    print(f"stopped by: {error}", file=sys.stderr, flush=True)
sys.exit(5)
