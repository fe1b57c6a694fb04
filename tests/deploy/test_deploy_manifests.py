"""The files of deploy/manifests are what Kubernetes knows, what the programs understand, and what people were told."""

import asyncio
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deploy.files import (
    CHART,
    DEPLOY,
    MANIFESTS,
    VARIABLES,
    collectors,
    containers,
    documents,
    environment_of,
    manifest,
    pod_templates,
)
from rayhistory.collector.service import Collector
from rayhistory.rayenv import export_environment
from rayhistory.server.app import create_app
from rayhistory.settings import COLLECTOR, SERVER, declared, own_variable, resolve
from rayhistory.storage import open_store
from recorded_sample import settings_for

OTHERS = {"ray.io/v1", "monitoring.coreos.com/v1"}  # kinds that Kubernetes does not bring
VERSION = "1.37"
TOLD = {
    "minio.yaml", "azurite.yaml", "raycluster.yaml", "raycluster-azureblob.yaml", "raycluster-gcs.yaml",
    "historyserver.yaml", "historyserver-gcs.yaml", "rayjob.yaml", "service_account.yaml",
    *(f"samples/aliyuncs/{name}.yaml" for name in ("configmap", "raycluster", "historyserver", "svc")),
}  # fmt: skip
WITH_COLLECTOR = [name for name in MANIFESTS if collectors(name)]
BY_THE_OPERATOR = [name for name in MANIFESTS if "historyServerOptions" in manifest(name).read_text()]
SERVERS = [name for name in MANIFESTS if "historyserver" in name]
OF_THE_POD = {"RAY_CLUSTER_NAME": "a-cluster", "RAY_CLUSTER_NAMESPACE": "a-namespace"}


def test_files_that_people_were_told_of_are_there() -> None:
    assert set(MANIFESTS) >= TOLD


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_kubernetes_knows(name: str) -> None:
    own = [each for each in documents(name) if each["apiVersion"] not in OTHERS]
    pods = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
        for template in pod_templates(name)
    ]
    for each in (*own, *pods):
        kubernetes_validate.validate(each, VERSION, strict=True)
    assert all(each["metadata"]["name"] for each in documents(name))


def test_a_wrong_field_is_found() -> None:
    """Otherwise the test above could not fail."""
    service, *_ = documents("historyserver.yaml")
    service["spec"]["portz"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="portz"):
        kubernetes_validate.validate(service, VERSION, strict=True)


@pytest.mark.parametrize("name", [name for name in MANIFESTS if "${" in manifest(name).read_text()])
def test_envsubst_fills_in_all_that_the_file_asks_for(name: str) -> None:
    """The real one: with the variables that the file's comment names, nothing is left open."""
    envsubst = shutil.which("envsubst")
    if envsubst is None:
        pytest.skip("envsubst is not installed")
    text = manifest(name).read_text()
    comment = text.partition("apiVersion")[0]
    named = {variable: value for variable, value in VARIABLES.items() if variable in comment}
    done = subprocess.run([envsubst], input=text, env=named, capture_output=True, text=True, check=True)
    assert list(yaml.safe_load_all(done.stdout)) == documents(name)
    assert '""' not in done.stdout


@pytest.mark.parametrize("name", WITH_COLLECTOR)
def test_ray_exports_what_a_collector_takes(name: str) -> None:
    for template in pod_templates(name):
        if "collector" not in (inside := containers(template)):
            continue
        ray = next(inside[each] for each in ("ray-head", "ray-worker") if each in inside)
        version = ray["image"].partition(":")[2]
        expected = export_environment("http://127.0.0.1:8084/v1/events", version)
        assert environment_of(ray) == expected
        shared = {mount["name"]: mount["mountPath"] for mount in inside["collector"]["volumeMounts"]}
        assert shared["historyserver"] == "/tmp/ray"
        assert {"name": "historyserver", "mountPath": "/tmp/ray"} in ray["volumeMounts"]


@pytest.mark.parametrize("name", WITH_COLLECTOR)
def test_a_collector_understands_its_settings(name: str) -> None:
    roles = []
    for collector in collectors(name):
        environment = environment_of(collector, **OF_THE_POD)
        (role,) = collector["args"]
        settings, warnings = resolve(COLLECTOR, {"setting_role": role.removeprefix("--role=")}, environment)
        assert warnings == []
        assert (settings.ray_cluster_name, settings.ray_cluster_namespace) == ("a-cluster", "a-namespace")
        assert settings.storage_backend == environment["STORAGE_BACKEND"]
        roles.append(settings.role)
    assert roles in (["Head", "Worker"], ["Head"])


@pytest.mark.parametrize("name", [*WITH_COLLECTOR, *BY_THE_OPERATOR])
def test_a_collector_has_as_long_as_its_pod(name: str) -> None:
    """Also one that is not in the pod's template, because KubeRay's operator puts it in."""
    specs = [each["spec"] for each in documents(name) if "historyServerOptions" in each.get("spec", {})]
    put_in = specs[0]["historyServerOptions"]["collectorOptions"] if specs else None
    with_collector = [
        (template, collector)
        for template in pod_templates(name)
        if (collector := put_in or containers(template).get("collector"))
    ]
    assert with_collector
    for template, collector in with_collector:
        told = environment_of(collector, **OF_THE_POD)["RAYHISTORY_GRACE_PERIOD"]
        assert told == f"{template['spec']['terminationGracePeriodSeconds']}s"


def our_containers() -> list[Any]:
    of_servers = [
        each["spec"]["template"]["spec"]["containers"][0]
        for name in SERVERS for each in documents(name) if each["kind"] == "Deployment"
    ]  # fmt: skip
    return [*of_servers, *itertools.chain.from_iterable(collectors(name) for name in WITH_COLLECTOR)]


def test_our_containers_run_as_nobody_on_a_tree_that_cannot_be_written() -> None:
    for container in our_containers():
        context = container["securityContext"]
        assert (context["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
        assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
        assert container["livenessProbe"]
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", [name for name in SERVERS if "samples" not in name])
def test_the_service_is_where_people_look_for_it(name: str) -> None:
    service, deployment = documents(name)
    assert (service["metadata"]["name"], service["spec"]["ports"][0]["port"]) == ("historyserver", 30080)
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 8080, "name": service["spec"]["ports"][0]["targetPort"]}]
    environment = environment_of(container)
    settings, warnings = resolve(SERVER, {}, environment)
    assert warnings == []
    assert settings.storage_backend == environment["STORAGE_BACKEND"]
    assert settings.port == 8080


def test_aliyun_finds_its_bucket_in_the_configmap(tmp_path: Path) -> None:
    """As mounted: the file is where both programs look when they are not told."""
    (config,) = documents("samples/aliyuncs/configmap.yaml")
    path = tmp_path / "data"
    path.write_text(config["data"]["data"])
    settings, _ = resolve(SERVER, {"setting_storage_backend_config_path": str(path)}, {"STORAGE_BACKEND": "aliyunoss"})
    assert open_store(settings).url.startswith("oss://my-bucket")
    ports = [port["port"] for port in documents("samples/aliyuncs/svc.yaml")[0]["spec"]["ports"]]
    assert ports == [30080, 30088]
    for name in ("samples/aliyuncs/raycluster.yaml", "samples/aliyuncs/historyserver.yaml"):
        assert "mountPath: /var/collector-config," in manifest(name).read_text()


def test_every_setting_of_ours_in_a_file_exists() -> None:
    known = {own_variable(name) for name, _, _ in declared()}
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in (".yaml", ".tpl"):
            named = set(re.findall(r"\bRAYHISTORY_[A-Z_]+\b", path.read_text()))
            assert named <= known, path


def test_the_programs_that_come_with_jobs_are_python() -> None:
    (job,) = documents("rayjob.yaml")
    program = re.fullmatch(r'python -c "(.*)"', job["spec"]["entrypoint"])
    assert program
    compile(program[1], "entrypoint", "exec")
    for name, key in (("rayjob-own-cluster.yaml", "sample.py"), ("rayservice.yaml", "hello.py")):
        compile(documents(name)[1]["data"][key], key, "exec")


def test_the_alerts_are_the_same_for_both_ways_of_prometheus() -> None:
    (rule,) = documents("alerts.yaml")
    assert rule["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text())
    assert (DEPLOY / "prometheus/alerts.yaml").samefile(CHART / "alerts.yaml")


def expressions() -> dict[str, str]:
    rules = documents("alerts.yaml")[0]["spec"]["groups"][0]["rules"]
    panels = json.loads((CHART / "dashboards/operations.json").read_text())["panels"]
    shown = {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]}
    return {rule["alert"]: rule["expr"] for rule in rules} | shown


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All names that our two programs give to Prometheus."""
    directory = tmp_path_factory.mktemp("metrics")
    settings = settings_for(directory)
    Path(settings.local_storage_dir).mkdir()
    collected = resolve(COLLECTOR, {}, {"RAY_TMP_ROOT": str(directory), "LOCAL_STORAGE_DIR": str(directory)})[0]

    async def asked() -> str:
        collector = Collector(collected, "a-cluster", open_store(collected, writable=True))
        transport = httpx.ASGITransport(collector.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://collector") as client:
            return (await client.get("/metrics")).text

    text = asyncio.run(asked()) + generate_latest(create_app(settings).state.registry).decode()
    names = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}[family.type]
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize("name", expressions())
def test_what_prometheus_is_asked_for_exists(name: str, metrics: set[str]) -> None:
    expression = expressions()[name].replace("$namespace", ".*")
    promql_parser.parse(expression)
    asked = set(re.findall(r"\b(rayhistory_\w+)\b", expression))
    assert asked
    assert asked <= metrics
