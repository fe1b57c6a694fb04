"""Parse RayCluster, RayJob and RayService resources. Users write them, so every field may have any type."""

import re
from datetime import datetime
from typing import Any

import msgspec

DASHBOARD_PORT = 8265
_OWNER_KINDS = {"RayJob": "rayjob", "RayService": "rayservice"}
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")

RUNNING, SUSPENDED, STARTING = "running", "suspended", "starting"


class RayClusterResource(msgspec.Struct, frozen=True):
    """The fields of a RayCluster that the server uses."""

    namespace: str
    name: str
    state: str
    created_ms: int | None = None
    owner_kind: str | None = None
    owner_name: str | None = None
    ray_version: str | None = None
    service: str = ""
    """Name of the head's service; empty until the operator has created it."""
    port: int = DASHBOARD_PORT


class RayOwnerResource(msgspec.Struct, frozen=True):
    """A RayJob or RayService, and the cluster that it runs on."""

    namespace: str
    name: str
    cluster: str


def parse_cluster(resource: dict[str, Any]) -> RayClusterResource:
    metadata, spec, status = (_map(resource, part) for part in ("metadata", "spec", "status"))
    owner_kind, owner_name = _owner(metadata)
    service = _text(_map(status, "head"), "serviceName")
    state = SUSPENDED if spec.get("suspend") is True else RUNNING if service else STARTING
    return RayClusterResource(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        state=state,
        created_ms=_parse_time_ms(_text(metadata, "creationTimestamp")),
        owner_kind=owner_kind,
        owner_name=owner_name,
        ray_version=_text(spec, "rayVersion") or None,
        service=service if _DNS_LABEL.match(service) else "",
        port=_dashboard_port(spec),
    )


def parse_owner(resource: dict[str, Any]) -> RayOwnerResource:
    """Parse a RayJob or RayService. A RayService that is being upgraded has two clusters; the active one is used."""
    metadata, status = _map(resource, "metadata"), _map(resource, "status")
    candidates = (
        _text(status, "rayClusterName"),
        _text(_map(status, "activeServiceStatus"), "rayClusterName"),
        _text(_map(status, "pendingServiceStatus"), "rayClusterName"),
    )
    cluster = next(filter(None, candidates), "")
    return RayOwnerResource(_text(metadata, "namespace"), _text(metadata, "name"), cluster)


def _owner(metadata: dict[str, Any]) -> tuple[str | None, str | None]:
    for reference in _maps(metadata, "ownerReferences"):
        if reference.get("controller") is True and _text(reference, "kind") in _OWNER_KINDS:
            return _OWNER_KINDS[_text(reference, "kind")], _text(reference, "name")
    labels = _map(metadata, "labels")
    kind, name = (
        _OWNER_KINDS.get(_text(labels, "ray.io/originated-from-crd")),
        _text(labels, "ray.io/originated-from-cr-name"),
    )
    return (kind, name) if kind and name else (None, None)


def _dashboard_port(spec: dict[str, Any]) -> int:
    pod = _map(_map(_map(spec, "headGroupSpec"), "template"), "spec")
    for port in (port for container in _maps(pod, "containers")[:1] for port in _maps(container, "ports")):
        if port.get("name") == "dashboard" and isinstance(port.get("containerPort"), int):
            number: int = port["containerPort"]
            return number if 0 < number < 65536 else DASHBOARD_PORT
    return DASHBOARD_PORT


def _map(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _maps(parent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = parent.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(parent: dict[str, Any], name: str) -> str:
    value = parent.get(name)
    return value if isinstance(value, str) else ""


def _parse_time_ms(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
