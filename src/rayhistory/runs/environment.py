"""The environment of jobs: packages, names of environment variables, and a digest of the runtime environment."""

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.lenient_json import members
from rayhistory.masking import mask_env_vars
from rayhistory.runs.session_summary import MAX_PACKAGES

_MAX_ITEM = 200
_PACKAGE_FIELDS = ("pip", "uv", "conda")
_MAX_DEPTH = 4
_VARYING_FIELDS = ("working_dir", "_ray_commit", "_ray_release", "py_modules")
"""Fields that the digest leaves out: URIs of uploads, which differ in each run, and the version of Ray."""


@functools.lru_cache(maxsize=16)  # the jobs of a session mostly have one environment
def environment_digest(runtime_env: str | None) -> str:
    """Return a digest that is equal for equal environments. Values of environment variables do not count."""
    fields = {name: value for name, value in mask_env_vars(members(runtime_env)).items() if name not in _VARYING_FIELDS}
    if not fields:
        return ""
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


def packages_of(runtime_envs: Iterable[str | None]) -> list[str]:
    """Return the packages that jobs requested, sorted."""
    found: set[str] = set()
    for text in set(runtime_envs):
        fields = members(text)
        for name in _PACKAGE_FIELDS:
            found.update(_texts(fields.get(name), _MAX_DEPTH))
    return sorted(found)[:MAX_PACKAGES]


def env_var_names(runtime_envs: Iterable[str | None]) -> list[str]:
    """Return the names of environment variables that jobs set, sorted. Values may be secrets."""
    found: set[str] = set()
    for text in set(runtime_envs):
        variables = members(text).get("env_vars")
        if isinstance(variables, dict):
            found.update(one_line(str(name), _MAX_ITEM) for name in variables)
    return sorted(found)[:MAX_PACKAGES]


def _texts(value: Any, depth: int) -> Iterable[str]:
    """Yield the package specifications of a runtime environment field, in any form that Ray accepts."""
    if isinstance(value, str):
        yield one_line(value, _MAX_ITEM)
    elif isinstance(value, list) and depth:
        for item in value[:MAX_PACKAGES]:
            yield from _texts(item, depth - 1)
    elif isinstance(value, dict) and depth:
        for name in ("packages", "dependencies", "pip"):
            yield from _texts(value.get(name), depth - 1)
