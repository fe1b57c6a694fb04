"""Readers of the files in deploy/."""

import os
import string
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(str(path.relative_to(DEPLOY / "manifests")) for path in (DEPLOY / "manifests").rglob("*.yaml"))
CHART = DEPLOY / "helm/ray-history-server"
CI_VALUES = sorted((CHART / "ci").glob("*.yaml"))
HELM = Path(sys.executable).with_name("helm")

VARIABLES = {
    "GCS_BUCKET": "a-bucket",
    "BUCKET": "a-bucket",
    "PREFIX": "ray/",
    "AWS_REGION": "eu-central-1",
    "AZURE_STORAGE_ACCOUNT_URL": "https://account.blob.core.windows.net",
    "AZURE_STORAGE_CONTAINER": "a-container",
    "COLLECTOR_IMAGE": "registry.example.com/collector:v0.1.0",
    "HISTORY_SERVER_IMAGE": "registry.example.com/historyserver:v0.1.0",
}
"""The variables that the guides export before `envsubst`."""


def manifest(name: str) -> Path:
    return DEPLOY / "manifests" / name


def documents(name: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest, with variables substituted as by envsubst."""
    text = string.Template(manifest(name).read_text()).safe_substitute(VARIABLES)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def pod_templates(name: str) -> list[dict[str, Any]]:
    """Return the pod templates of RayClusters, RayJobs and RayServices."""
    return [template for document in documents(name) if document["apiVersion"] == "ray.io/v1"
            for template in _templates(document["spec"])]  # fmt: skip


def _templates(spec: Any) -> list[dict[str, Any]]:
    if isinstance(spec, list):
        return [template for item in spec for template in _templates(item)]
    if not isinstance(spec, dict):
        return []
    if "containers" in spec.get("spec", {}):
        return [spec]
    return [template for value in spec.values() for template in _templates(value)]


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", []))}


def collectors(name: str) -> list[dict[str, Any]]:
    """Return the collector containers of a manifest, the head's first."""
    return [each["collector"] for pod in pod_templates(name) if "collector" in (each := containers(pod))]


def environment_of(container: dict[str, Any], **pod_fields: str) -> dict[str, str]:
    """Return the variables of a container; `pod_fields` are the values read from the pod's metadata."""
    return {
        each["name"]: each["value"] if "value" in each else pod_fields[each["name"]]
        for each in container.get("env", [])
    }


def clean_environment() -> dict[str, str]:
    """Return the environment without the settings of our programs and of cloud clients."""
    prefixes = ("RAY", "STORAGE_", "LOCAL_STORAGE_", "AWS_", "S3", "GCS_", "GOOGLE_", "AZURE_", "OSS_", "ALIBABA_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
