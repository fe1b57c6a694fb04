"""What is taken from Ray's resources in Kubernetes. Whoever may write them may write anything: nothing is believed."""

import re
from datetime import datetime
from typing import Any

import msgspec

DASHBOARD_PORT = 8265
_KINDS = {"RayJob": "rayjob", "RayService": "rayservice"}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")

RUNNING, SUSPENDED, STARTING = "running", "suspended", "starting"


class LiveCluster(msgspec.Struct, frozen=True):
    """A RayCluster that exists."""

    namespace: str
    name: str
    state: str
    created_ms: int | None = None
    owner_kind: str | None = None
    owner_name: str | None = None
    ray_version: str | None = None
    service: str = ""
    """Of the head; empty until the operator has made it."""
    port: int = DASHBOARD_PORT


class LiveOwner(msgspec.Struct, frozen=True):
    """A RayJob or RayService, and the cluster that it runs on now."""

    namespace: str
    name: str
    cluster: str


def cluster_of(resource: dict[str, Any]) -> LiveCluster:
    metadata, spec, status = (_map(resource, part) for part in ("metadata", "spec", "status"))
    owner_kind, owner_name = _owner(metadata)
    service = _text(_map(status, "head"), "serviceName")
    state = SUSPENDED if spec.get("suspend") is True else RUNNING if service else STARTING
    return LiveCluster(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        state=state,
        created_ms=_time(_text(metadata, "creationTimestamp")),
        owner_kind=owner_kind,
        owner_name=owner_name,
        ray_version=_text(spec, "rayVersion") or None,
        service=service if _LABEL.match(service) else "",
        port=_dashboard_port(spec),
    )


def owner_of(resource: dict[str, Any]) -> LiveOwner:
    """While a RayService is upgraded it has two clusters: the one that serves counts, not the one that is coming."""
    metadata, status = _map(resource, "metadata"), _map(resource, "status")
    candidates = (
        _text(status, "rayClusterName"),
        _text(_map(status, "activeServiceStatus"), "rayClusterName"),
        _text(_map(status, "pendingServiceStatus"), "rayClusterName"),
    )
    cluster = next(filter(None, candidates), "")
    return LiveOwner(_text(metadata, "namespace"), _text(metadata, "name"), cluster)


def _owner(metadata: dict[str, Any]) -> tuple[str | None, str | None]:
    for reference in _maps(metadata, "ownerReferences"):
        if reference.get("controller") is True and _text(reference, "kind") in _KINDS:
            return _KINDS[_text(reference, "kind")], _text(reference, "name")
    labels = _map(metadata, "labels")
    kind, name = (
        _KINDS.get(_text(labels, "ray.io/originated-from-crd")),
        _text(labels, "ray.io/originated-from-cr-name"),
    )
    return (kind, name) if kind and name else (None, None)


def _dashboard_port(spec: dict[str, Any]) -> int:
    pod = _map(_map(_map(spec, "headGroupSpec"), "template"), "spec")
    for port in (each for head in _maps(pod, "containers")[:1] for each in _maps(head, "ports")):
        if port.get("name") == "dashboard" and isinstance(port.get("containerPort"), int):
            number: int = port["containerPort"]
            return number if 0 < number < 65536 else DASHBOARD_PORT
    return DASHBOARD_PORT


def _map(holder: dict[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _maps(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = holder.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _text(holder: dict[str, Any], name: str) -> str:
    found = holder.get(name)
    return found if isinstance(found, str) else ""


def _time(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
