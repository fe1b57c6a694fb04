"""Helpers for rules about placement groups that were never placed."""

import re
from collections import Counter

from rayhistory.diagnosis.headlines import plural
from rayhistory.diagnosis.session_facts import PlacementGroupFacts, SessionFacts

_RESOURCE = re.compile(r"(.+)_group_(?:\d+_)?([0-9a-f]{36})")
"""A resource of a bundle, such as `CPU_group_<id>` or `CPU_group_0_<id>`."""
_MARK = "bundle"


def without_group(required: dict[str, float]) -> tuple[dict[str, float], str]:
    """Return the resources that a task requests from a placement group, and the group's id."""
    found = {name: match for name in required if (match := _RESOURCE.fullmatch(name))}
    if not found:
        return required, ""
    inside = {match[1]: required[name] for name, match in found.items() if match[1] != _MARK}
    return inside, next(iter(found.values()))[2]


def impossible(group: PlacementGroupFacts, facts: SessionFacts) -> str:
    """Return why the nodes cannot hold a placement group; an empty text if it may only have to wait."""
    for bundle in group.bundles:
        if not any(_fits(bundle, node.resources) for node in facts.nodes):
            return f"its bundle {resources_text(bundle)} fits on no node"
    wanted: Counter[str] = Counter()
    for bundle in group.bundles:
        wanted.update(bundle)
    for name, amount in wanted.items():
        total = sum(node.resources.get(name, 0.0) for node in facts.nodes)
        if amount > total:
            return f"it needs {amount:g} {name} in total; all nodes together have {total:g}"
    if len(group.bundles) > len(facts.nodes):
        nodes = f"{plural(len(group.bundles), 'bundle')} on {plural(len(facts.nodes), 'node')}"
        return f"it has {nodes}. STRICT_SPREAD needs one node per bundle; other strategies need free resources"
    return ""


def unplaced_group(job_id: str, facts: SessionFacts) -> PlacementGroupFacts | None:
    """Return a placement group of this job that was never placed; None if there is none."""
    return next((each for each in facts.placement_groups if each.job_id == job_id and not each.placed), None)


def resources_text(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _fits(wanted: dict[str, float], available: dict[str, float]) -> bool:
    return all(available.get(name, 0.0) >= amount for name, amount in wanted.items())
