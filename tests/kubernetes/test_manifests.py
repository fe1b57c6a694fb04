"""A real API server accepts every manifest and the chart, and their accounts have minimal permissions."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.files import CHART, CI_VALUES, HELM, MANIFESTS, documents, manifest, pod_templates
from support.kubernetes_real import ControlPlane

SERVER = "system:serviceaccount:default:historyserver"
READ = [
    (verb, f"{kind}.ray.io") for kind in ("rayclusters", "rayjobs", "rayservices") for verb in ("get", "list", "watch")
]
ACCESS = [("create", "tokenreviews.authentication.k8s.io"), ("create", "subjectaccessreviews.authorization.k8s.io")]
PROXY = [("get", "services/proxy")]


def dry_run(kubernetes: ControlPlane, objects: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return kubernetes.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


@pytest.fixture(scope="module", autouse=True)
def namespaces(kubernetes: ControlPlane) -> None:
    """Create the namespaces of the manifests, because a dry run does not."""
    for name in ("minio-dev", "azurite-dev", "history"):
        kubernetes.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_is_accepted(kubernetes: ControlPlane, name: str) -> None:
    done = dry_run(kubernetes, documents(name))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MANIFESTS)
def test_pod_templates_are_accepted(kubernetes: ControlPlane, name: str) -> None:
    """Ray's CRDs accept any pod template, so the templates are validated separately."""
    templates = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"pod-{n}"}, "template": template}
        for n, template in enumerate(pod_templates(name))
    ]
    done = dry_run(kubernetes, templates) if templates else None
    assert done is None or done.returncode == 0, done.stderr


def test_validation_finds_mistakes(kubernetes: ControlPlane) -> None:
    (cluster,) = documents("raycluster.yaml")
    cluster["spec"]["headGroupSpecs"] = {}
    assert "headGroupSpecs" in dry_run(kubernetes, [cluster]).stderr
    (template, *_) = pod_templates("raycluster.yaml")
    template["spec"]["containers"][0]["volumeMounts"][0]["name"] = "absent"
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
    assert "absent" in dry_run(kubernetes, [pod]).stderr


def rendered(kubernetes: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Install the chart as a dry run on the API server."""
    command: list[str | Path] = [
        HELM,
        f"--kubeconfig={kubernetes.kubeconfig}",
        "install",
        "history",
        CHART,
        "--namespace=history",
    ]
    return subprocess.run(
        [*command, "--dry-run=server", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_chart_is_accepted(kubernetes: ControlPlane, values: Path) -> None:
    secret = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "history-credentials", "namespace": "history"}}
    kubernetes.apply(secret)
    assert (done := rendered(kubernetes, f"--values={values}")).returncode == 0, done.stderr
    template = subprocess.run(
        [HELM, "template", "history", CHART, "--namespace=history", f"--values={values}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    done = kubernetes.run(
        "apply", "--dry-run=server", "--validate=strict", "-n", "history", "-f", "-", stdin=template.stdout
    )
    assert done.returncode == 0, done.stderr


def test_chart_names_a_missing_secret(kubernetes: ControlPlane) -> None:
    flags = ("--set=store.backend=gcs,store.gcs.bucket=b", "--set=credentialsSecret=nowhere")
    done = rendered(kubernetes, *flags)
    assert done.returncode != 0
    assert 'there is no Secret "nowhere" in the namespace "history"' in done.stderr


@pytest.fixture
def permitted(kubernetes: ControlPlane) -> Iterator[Any]:
    """A function that applies roles and returns the permissions of the server's account; removes them afterwards."""
    applied: list[str] = []

    def allowed(*files: str) -> set[tuple[str, str]]:
        for name in files:
            path = str(manifest(name))
            kubernetes.kubectl("apply", "-f", path)
            applied.append(path)
        return {action for action in ACTIONS if may(kubernetes, SERVER, *action)}

    yield allowed
    for path in applied:
        kubernetes.kubectl("delete", "-f", path)


def may(kubernetes: ControlPlane, account: str, verb: str, resource: str) -> bool:
    kind, _, sub = resource.partition("/")
    subresource = [f"--subresource={sub}"] if sub else []
    output = kubernetes.run(
        "auth", "can-i", verb, kind, *subresource, "--all-namespaces", f"--as={account}"
    ).stdout.strip()
    assert output in ("yes", "no")
    return output == "yes"


FORBIDDEN = [
    *((verb, "rayclusters.ray.io") for verb in ("create", "update", "patch", "delete")),
    *((verb, "secrets") for verb in ("get", "list", "create")),
    *((verb, "pods") for verb in ("get", "list", "create")),
    ("create", "pods/exec"), ("get", "pods/log"), ("get", "configmaps"), ("list", "namespaces"), ("get", "services"),
    ("create", "services/proxy"), ("create", "serviceaccounts/token"), ("get", "nodes/proxy"),
]  # fmt: skip
ACTIONS = {*READ, *ACCESS, *PROXY, *FORBIDDEN}


def test_server_account_can_only_read_ray_resources(permitted: Any) -> None:
    assert permitted("service_account.yaml") == set(READ)


def test_access_account_can_create_reviews(permitted: Any) -> None:
    assert permitted("service_account.yaml", "service_account_access.yaml") == {*READ, *ACCESS}


def test_live_proxy_account_can_read_service_proxies(permitted: Any) -> None:
    assert permitted("service_account.yaml", "service_account_live_proxy.yaml") == {*READ, *PROXY}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--set=discovery.enabled=false"], []),
        ([], READ),
        (["--set=auth=kubernetes"], [*READ, *ACCESS]),
        (["--set=live.enabled=true,live.throughApiServer=true"], [*READ, *PROXY]),
        (["--set=discovery.enabled=false", "--set=auth=kubernetes"], ACCESS),
    ],
    ids=["nothing", "discovery", "access", "proxy", "access only"],
)
def test_chart_grants_only_permissions_that_its_values_need(
    kubernetes: ControlPlane, flags: list[str], expected: list[tuple[str, str]]
) -> None:
    roles = subprocess.run(
        [HELM, "template", "history", CHART, "--namespace=history", "--set=store.backend=gcs,store.gcs.bucket=b",
         *flags, "--show-only=templates/rbac.yaml"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    kubernetes.kubectl("apply", "-n", "history", "-f", "-", stdin=roles)
    try:
        account = "system:serviceaccount:history:history"
        assert {action for action in ACTIONS if may(kubernetes, account, *action)} == set(expected)
    finally:
        kubernetes.kubectl("delete", "-n", "history", "-f", "-", stdin=roles)
