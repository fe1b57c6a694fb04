"""A job that is still at work when its cluster ends: running and waiting tasks and actors, and a placement group."""

import time

import ray
from ray.util.placement_group import placement_group


@ray.remote(num_cpus=0.5)
def wait_for_ever() -> None:
    print("waiting for something that never comes", flush=True)
    time.sleep(3600)


@ray.remote(num_cpus=0)
class Watcher:
    def watch(self, what: str) -> str:
        print(f"watching {what}", flush=True)
        return what

    def __repr__(self) -> str:
        return "Watcher(of=shards)"


ray.init(namespace="watch", runtime_env={"env_vars": {"WATCHED": "shards"}})
group = placement_group([{"CPU": 0.5}], strategy="PACK", name="kept")
ray.get(group.ready())
watcher = Watcher.options(name="watcher").remote()
ray.get(watcher.watch.remote("shards"))
unplaced = Watcher.options(name="unplaced", resources={"unobtainable": 1}).remote()
running = wait_for_ever.remote()
unscheduled = wait_for_ever.options(resources={"unobtainable": 1}).remote()
ray.wait([running], timeout=1)
print("everything is under way", flush=True)
time.sleep(3600)
