"""An application of Ray Serve, of two deployments, that is up when its cluster ends."""

import socket
import time
from typing import Any

import ray
from ray import serve


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.1})
class Doubler:
    def __call__(self, value: int) -> int:
        print(f"doubling {value}", flush=True)
        return 2 * value


@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Front:
    def __init__(self, doubler: serve.handle.DeploymentHandle[Any]) -> None:
        self.doubler = doubler

    async def __call__(self, value: int) -> int:
        doubled: int = await self.doubler.remote(value)
        return doubled


ray.init()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
serve.start(http_options={"host": "127.0.0.1", "port": port})
handle = serve.run(Front.bind(Doubler.bind()), name="doubling", route_prefix="/double")
print([handle.remote(value).result() for value in range(4)], flush=True)
print("everything is under way", flush=True)
time.sleep(3600)
