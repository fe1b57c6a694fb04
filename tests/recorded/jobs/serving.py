"""An application of Ray Serve, of two deployments, that is up when its cluster ends."""

import socket
import time
from typing import Any
from urllib.request import urlopen

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.1})
class Doubler:
    def __call__(self, value: int) -> int:
        print(f"doubling {value}", flush=True)
        return 2 * value


@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Front:
    def __init__(self, doubler: serve.handle.DeploymentHandle[Any]) -> None:
        self.doubler = doubler

    async def __call__(self, given: int | Request) -> int:
        value = given if isinstance(given, int) else int(given.query_params["value"])
        doubled: int = await self.doubler.remote(value)
        return doubled


ray.init()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
serve.start(http_options={"host": "127.0.0.1", "port": port})
handle = serve.run(Front.bind(Doubler.bind()), name="doubling", route_prefix="/double")
print([handle.remote(value).result() for value in range(4)], flush=True)
for value in range(24):  # longer than the 10 s between two exports of metrics
    urlopen(f"http://127.0.0.1:{port}/double?value={value}").read()
    time.sleep(0.5)
print("everything is under way", flush=True)
time.sleep(3600)
