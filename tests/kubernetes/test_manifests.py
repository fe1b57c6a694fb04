"""Every file that we tell people to apply is taken by a real API server, and gives its accounts what they need only."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.files import CHART, CI_VALUES, HELM, MANIFESTS, documents, manifest, pod_templates
from kubernetes_real import ControlPlane

SERVER = "system:serviceaccount:default:historyserver"
READING = [
    (verb, f"{kind}.ray.io") for kind in ("rayclusters", "rayjobs", "rayservices") for verb in ("get", "list", "watch")
]
ACCESS = [("create", "tokenreviews.authentication.k8s.io"), ("create", "subjectaccessreviews.authorization.k8s.io")]
PROXY = [("get", "services/proxy")]


def dry_run(kubernetes: ControlPlane, objects: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return kubernetes.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


@pytest.fixture(scope="module", autouse=True)
def namespaces(kubernetes: ControlPlane) -> None:
    """A dry run makes no namespace, so those that files bring along are made before."""
    for name in ("minio-dev", "azurite-dev", "history"):
        kubernetes.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_taken(kubernetes: ControlPlane, name: str) -> None:
    done = dry_run(kubernetes, documents(name))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_inside_of_rays_kinds_are_taken(kubernetes: ControlPlane, name: str) -> None:
    """Ray's kinds take any pod; the API server knows better what a pod is."""
    templates = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"pod-{n}"}, "template": template}
        for n, template in enumerate(pod_templates(name))
    ]
    done = dry_run(kubernetes, templates) if templates else None
    assert done is None or done.returncode == 0, done.stderr


def test_a_mistake_in_a_manifest_is_found(kubernetes: ControlPlane) -> None:
    """Otherwise the tests above could not fail."""
    (cluster,) = documents("raycluster.yaml")
    cluster["spec"]["headGroupSpecs"] = {}
    assert "headGroupSpecs" in dry_run(kubernetes, [cluster]).stderr
    (template, *_) = pod_templates("raycluster.yaml")
    template["spec"]["containers"][0]["volumeMounts"][0]["name"] = "absent"
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
    assert "absent" in dry_run(kubernetes, [pod]).stderr


def rendered(kubernetes: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The chart as it would be installed: looked at by the API server, too."""
    command = [HELM, f"--kubeconfig={kubernetes.kubeconfig}", "install", "history", CHART, "--namespace=history"]
    return subprocess.run(
        [*command, "--dry-run=server", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_the_chart_is_taken(kubernetes: ControlPlane, values: Path) -> None:
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


def test_the_chart_names_a_secret_that_is_not_there(kubernetes: ControlPlane) -> None:
    flags = ("--set=store.backend=gcs,store.gcs.bucket=b", "--set=credentialsSecret=nowhere")
    done = rendered(kubernetes, *flags)
    assert done.returncode != 0
    assert 'there is no Secret "nowhere" in the namespace "history"' in done.stderr


@pytest.fixture
def permitted(kubernetes: ControlPlane) -> Iterator[Any]:
    """Applies files of roles for real, and says what the server's account may do; afterwards they are gone."""
    applied: list[str] = []

    def allowed(*files: str) -> set[tuple[str, str]]:
        for name in files:
            path = str(manifest(name))
            kubernetes.kubectl("apply", "-f", path)
            applied.append(path)
        return {question for question in QUESTIONS if may(kubernetes, SERVER, *question)}

    yield allowed
    for path in applied:
        kubernetes.kubectl("delete", "-f", path)


def may(kubernetes: ControlPlane, account: str, verb: str, resource: str) -> bool:
    kind, _, sub = resource.partition("/")
    more = [f"--subresource={sub}"] if sub else []
    said = kubernetes.run("auth", "can-i", verb, kind, *more, "--all-namespaces", f"--as={account}").stdout.strip()
    assert said in ("yes", "no")
    return said == "yes"


EVERYTHING_ELSE = [
    *((verb, "rayclusters.ray.io") for verb in ("create", "update", "patch", "delete")),
    *((verb, "secrets") for verb in ("get", "list", "create")),
    *((verb, "pods") for verb in ("get", "list", "create")),
    ("create", "pods/exec"), ("get", "pods/log"), ("get", "configmaps"), ("list", "namespaces"), ("get", "services"),
    ("create", "services/proxy"), ("create", "serviceaccounts/token"), ("get", "nodes/proxy"),
]  # fmt: skip
QUESTIONS = {*READING, *ACCESS, *PROXY, *EVERYTHING_ELSE}


def test_the_server_may_see_rays_clusters_and_nothing_else(permitted: Any) -> None:
    assert permitted("service_account.yaml") == set(READING)


def test_with_access_by_kubernetes_it_may_ask_who_somebody_is(permitted: Any) -> None:
    assert permitted("service_account.yaml", "service_account_access.yaml") == {*READING, *ACCESS}


def test_through_the_api_server_it_may_read_from_dashboards(permitted: Any) -> None:
    assert permitted("service_account.yaml", "service_account_live_proxy.yaml") == {*READING, *PROXY}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--set=discovery.enabled=false"], []),
        ([], READING),
        (["--set=auth=kubernetes"], [*READING, *ACCESS]),
        (["--set=live.enabled=true,live.throughApiServer=true"], [*READING, *PROXY]),
        (["--set=discovery.enabled=false", "--set=auth=kubernetes"], ACCESS),
    ],
    ids=["nothing", "discovery", "access", "proxy", "access only"],
)
def test_the_chart_gives_what_its_values_need(
    kubernetes: ControlPlane, flags: list[str], expected: list[tuple[str, str]]
) -> None:
    made = subprocess.run(
        [HELM, "template", "history", CHART, "--namespace=history", "--set=store.backend=gcs,store.gcs.bucket=b",
         *flags, "--show-only=templates/rbac.yaml"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    kubernetes.kubectl("apply", "-n", "history", "-f", "-", stdin=made)
    try:
        account = "system:serviceaccount:history:history"
        assert {question for question in QUESTIONS if may(kubernetes, account, *question)} == set(expected)
    finally:
        kubernetes.kubectl("delete", "-n", "history", "-f", "-", stdin=made)
