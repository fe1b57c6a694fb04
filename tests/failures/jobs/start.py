"""Jobs that fail before their first task."""

import sys

import ray


def assertion() -> None:
    shards = [12, 12, 11]
    assert len(set(shards)) == 1, f"shards have different lengths: {shards}"


def working_dir_missing() -> None:
    ray.init(runtime_env={"working_dir": "/nowhere/project"})


def pip_package_missing() -> None:
    ray.init(runtime_env={"pip": {"packages": ["pandsa-of-nobody==9.9"], "pip_install_options": ["--no-index"]}})
    ray.get(ray.remote(lambda: 1).remote())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
