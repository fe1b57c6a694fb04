"""The manifests are valid for Kubernetes and for our programs, and have the documented names."""

import asyncio
import itertools
import json
import re
import shutil
import string
import subprocess
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from deploy.files import (
    CHART,
    DEPLOY,
    HELM,
    MANIFESTS,
    ROOT,
    VARIABLES,
    collectors,
    containers,
    documents,
    environment_of,
    manifest,
    pod_templates,
)
from rayhistory.collector.service import Collector
from rayhistory.collector.spool.spool_location import VOLUME
from rayhistory.ray_env import export_environment
from rayhistory.server.app import create_app
from rayhistory.settings import COLLECTOR, SERVER, resolve, setting_specs
from rayhistory.storage import open_store
from support.recorded_sample import settings_for

CUSTOM_APIS = {"ray.io/v1", "monitoring.coreos.com/v1"}
VERSION = "1.37"
DOCUMENTED = {
    "minio.yaml", "azurite.yaml", "raycluster.yaml", "raycluster-azureblob.yaml", "raycluster-gcs.yaml",
    "historyserver.yaml", "historyserver-gcs.yaml", "rayjob.yaml", "service_account.yaml",
    *(f"samples/aliyuncs/{name}.yaml" for name in ("configmap", "raycluster", "historyserver", "svc")),
}  # fmt: skip
WITH_COLLECTOR = [name for name in MANIFESTS if collectors(name)]
WITH_OPERATOR_COLLECTOR = [name for name in MANIFESTS if "historyServerOptions" in manifest(name).read_text()]
SERVERS = [name for name in MANIFESTS if "historyserver" in name]
POD_FIELDS = {"RAY_CLUSTER_NAME": "a-cluster", "RAY_CLUSTER_NAMESPACE": "a-namespace"}


def test_documented_manifests_exist() -> None:
    assert set(MANIFESTS) >= DOCUMENTED


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_is_valid(name: str) -> None:
    builtin = [each for each in documents(name) if each["apiVersion"] not in CUSTOM_APIS]
    pods = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
        for template in pod_templates(name)
    ]
    for each in (*builtin, *pods):
        kubernetes_validate.validate(each, VERSION, strict=True)
    assert all(each["metadata"]["name"] for each in documents(name))


def test_validation_finds_an_unknown_field() -> None:
    service, *_ = documents("historyserver.yaml")
    service["spec"]["portz"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="portz"):
        kubernetes_validate.validate(service, VERSION, strict=True)


@pytest.mark.parametrize("name", [name for name in MANIFESTS if "${" in manifest(name).read_text()])
def test_envsubst_fills_in_all_variables(name: str) -> None:
    """The comment at the top of the file names all variables."""
    envsubst = shutil.which("envsubst")
    if envsubst is None:
        pytest.skip("envsubst is not installed")
    text = manifest(name).read_text()
    comment = text.partition("apiVersion")[0]
    variables = {variable: value for variable, value in VARIABLES.items() if variable in comment}
    done = subprocess.run([envsubst], input=text, env=variables, capture_output=True, text=True, check=True)
    assert list(yaml.safe_load_all(done.stdout)) == documents(name)
    assert ': ""' not in done.stdout


@pytest.mark.parametrize("name", WITH_COLLECTOR)
def test_ray_exports_events_to_the_collector(name: str) -> None:
    """KubeRay mounts the volume `ray-logs` into its autoscaler, whose logs are then shared as well."""
    for template in pod_templates(name):
        if "collector" not in (by_name := containers(template)):
            continue
        ray = next(by_name[each] for each in ("ray-head", "ray-worker") if each in by_name)
        version = ray["image"].partition(":")[2]
        expected = export_environment("http://127.0.0.1:8084/v1/events", version)
        assert environment_of(ray) == expected
        shared = {mount["name"]: mount["mountPath"] for mount in by_name["collector"]["volumeMounts"]}
        assert shared["ray-logs"] == "/tmp/ray"
        assert {"name": "ray-logs", "mountPath": "/tmp/ray"} in ray["volumeMounts"]


@pytest.mark.parametrize("name", WITH_COLLECTOR)
def test_spool_is_on_a_volume_that_ray_does_not_have(name: str) -> None:
    for template in pod_templates(name):
        if "collector" not in (by_name := containers(template)):
            continue
        (volume,) = [
            mount["name"] for mount in by_name["collector"]["volumeMounts"] if mount["mountPath"] == str(VOLUME)
        ]
        assert {"name": volume, "emptyDir": {}} in template["spec"]["volumes"]
        others = [container for each, container in by_name.items() if each != "collector"]
        assert all(volume != mount["name"] for other in others for mount in other.get("volumeMounts", []))


@pytest.mark.parametrize("name", WITH_COLLECTOR)
def test_collector_settings_are_valid(name: str) -> None:
    roles = []
    for collector in collectors(name):
        environment = environment_of(collector, **POD_FIELDS)
        (role,) = collector["args"]
        settings, warnings = resolve(COLLECTOR, {"setting_role": role.removeprefix("--role=")}, environment)
        assert warnings == []
        assert (settings.ray_cluster_name, settings.ray_cluster_namespace) == ("a-cluster", "a-namespace")
        assert settings.storage_backend == environment["STORAGE_BACKEND"]
        roles.append(settings.role)
    assert roles in (["Head", "Worker"], ["Head"])


@pytest.mark.parametrize("name", [*WITH_COLLECTOR, *WITH_OPERATOR_COLLECTOR])
def test_grace_period_of_the_collector_is_that_of_its_pod(name: str) -> None:
    """This includes collectors that KubeRay's operator adds to the pods."""
    specs = [each["spec"] for each in documents(name) if "historyServerOptions" in each.get("spec", {})]
    added = specs[0]["historyServerOptions"]["collectorOptions"] if specs else None
    with_collector = [
        (template, collector)
        for template in pod_templates(name)
        if (collector := added or containers(template).get("collector"))
    ]
    assert with_collector
    for template, collector in with_collector:
        grace_period = environment_of(collector, **POD_FIELDS)["RAYHISTORY_GRACE_PERIOD"]
        assert grace_period == f"{template['spec']['terminationGracePeriodSeconds']}s"


def our_containers() -> list[Any]:
    servers = [
        each["spec"]["template"]["spec"]["containers"][0]
        for name in SERVERS for each in documents(name) if each["kind"] == "Deployment"
    ]  # fmt: skip
    return [*servers, *itertools.chain.from_iterable(collectors(name) for name in WITH_COLLECTOR)]


def test_our_containers_run_unprivileged_on_a_read_only_root() -> None:
    for container in our_containers():
        context = container["securityContext"]
        assert (context["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
        assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
        assert container["livenessProbe"]
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", [name for name in SERVERS if "samples" not in name])
def test_service_has_the_name_and_port_of_kuberay(name: str) -> None:
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


RETENTION = [name for name in MANIFESTS if name.startswith("retention")]


@pytest.mark.parametrize("name", RETENTION)
def test_retention_reads_the_store_of_the_server_and_runs_its_command(name: str, tmp_path: Path) -> None:
    """On an empty store the command removes nothing."""
    account, job = documents(name)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["serviceAccountName"] == account["metadata"]["name"] == "history-retention"
    _, server = documents(name.replace("retention", "historyserver"))
    (serving,) = server["spec"]["template"]["spec"]["containers"]
    credentials = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    settings, warnings = resolve(SERVER, {}, environment_of(container))
    assert warnings == []
    assert {k: v for k, v in environment_of(container).items() if k not in credentials} == {
        k: v for k, v in environment_of(serving).items() if k not in credentials
    }
    assert settings.storage_backend == environment_of(container)["STORAGE_BACKEND"]
    _, policy = documents("networkpolicy.yaml")
    labels = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert (container["image"], container["securityContext"]) == (serving["image"], serving["securityContext"])
    command: list[str] = container["command"] + container["args"]
    argv: list[str | Path] = [HELM.with_name(command[0]), *command[1:], f"--store={tmp_path}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_index_job_runs_its_command_with_the_store_and_the_identity_of_the_server(tmp_path: Path) -> None:
    """Without a Ray cluster, the command says so: it accepted its arguments and its settings."""
    (job,) = documents("rayjob-index.yaml")
    _, server = documents("historyserver.yaml")
    expected = server["spec"]["template"]["spec"]
    pods = [each["spec"] for each in pod_templates("rayjob-index.yaml") if "submitter" not in containers(each)]
    for pod in pods:
        (container,) = pod["containers"]
        environment = environment_of(container)
        assert pod["serviceAccountName"] == expected["serviceAccountName"]
        assert environment_of(expected["containers"][0]).items() <= environment.items()
        assert resolve(SERVER, {}, environment)[1] == []
    program, *arguments = job["spec"]["entrypoint"].split()
    argv = [HELM.with_name(program), *arguments, "--address=127.0.0.1:1", f"--store={tmp_path}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "rayhistory: no Ray cluster at 127.0.0.1:1: [Errno 111] Connection refused\n",
    )


def test_users_of_minio_have_the_policies_of_s3() -> None:
    """tests/contract/test_least_privilege.py tests these policies on a server."""
    config, job = (
        next(each for each in documents("minio.yaml") if each["kind"] == kind) for kind in ("ConfigMap", "Job")
    )
    expected = {
        path.name: string.Template(path.read_text()).substitute(
            BUCKET="ray-historyserver", NAMESPACE="default", PREFIX=""
        )
        for path in (DEPLOY / "policies/s3").iterdir()
    }
    assert config["data"] == expected
    (script,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert "for name in collector server retention; do" in script


def test_only_minio_itself_has_its_root_user() -> None:
    users: dict[str, set[str]] = {}
    for name in MANIFESTS:
        for user in re.findall(r"AWS_ACCESS_KEY_ID, value: (\S+)}", manifest(name).read_text()):
            users.setdefault(user, set()).add(name)
    assert users.pop("ray-server") == {"historyserver.yaml", "rayjob-index.yaml"}
    assert users.pop("ray-retention") == {"retention.yaml"}
    assert users.keys() == {"ray-collector"}


def test_configmap_of_aliyun_names_the_bucket(tmp_path: Path) -> None:
    """It is mounted at the default path of the backend configuration."""
    (config,) = documents("samples/aliyuncs/configmap.yaml")
    path = tmp_path / "data"
    path.write_text(config["data"]["data"])
    settings, _ = resolve(SERVER, {"setting_storage_backend_config_path": str(path)}, {"STORAGE_BACKEND": "aliyunoss"})
    assert open_store(settings).url.startswith("oss://my-bucket")
    ports = [port["port"] for port in documents("samples/aliyuncs/svc.yaml")[0]["spec"]["ports"]]
    assert ports == [30080, 30088]
    for name in ("samples/aliyuncs/raycluster.yaml", "samples/aliyuncs/historyserver.yaml"):
        assert "mountPath: /var/collector-config," in manifest(name).read_text()


def test_settings_in_manifests_exist() -> None:
    known = {spec.own_variable for spec in setting_specs()}
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in (".yaml", ".tpl"):
            used = set(re.findall(r"\bRAYHISTORY_[A-Z_]+\b", path.read_text()))
            assert used <= known, path


def test_embedded_programs_compile() -> None:
    (job,) = documents("rayjob.yaml")
    program = re.fullmatch(r'python -c "(.*)"', job["spec"]["entrypoint"])
    assert program
    compile(program[1], "entrypoint", "exec")
    for name, key in (("rayjob-own-cluster.yaml", "sample.py"), ("rayservice.yaml", "hello.py")):
        compile(documents(name)[1]["data"][key], key, "exec")


def test_alerts_of_manifest_and_chart_are_equal() -> None:
    (rule,) = documents("alerts.yaml")
    assert rule["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text())
    assert (DEPLOY / "prometheus/alerts.yaml").samefile(CHART / "alerts.yaml")


def expressions() -> dict[str, str]:
    rules = documents("alerts.yaml")[0]["spec"]["groups"][0]["rules"]
    panels = json.loads((CHART / "dashboards/operations.json").read_text())["panels"]
    panel_expressions = {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]
    }
    return {rule["alert"]: rule["expr"] for rule in rules} | panel_expressions


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of both programs."""
    directory = tmp_path_factory.mktemp("metrics")
    settings = settings_for(directory)
    Path(settings.local_storage_dir).mkdir()
    collected = resolve(COLLECTOR, {}, {"RAY_TMP_ROOT": str(directory), "LOCAL_STORAGE_DIR": str(directory)})[0]

    async def scrape(app: ASGIApp) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://program") as client:
            return (await client.get("/metrics")).text

    async def scrape_both() -> str:
        collector = Collector(collected, "a-cluster", open_store(collected, writable=True))
        server = create_app(settings)
        async with server.router.lifespan_context(server):
            return await scrape(collector.app) + await scrape(server)

    text = asyncio.run(scrape_both())
    names = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}[family.type]
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize("name", expressions())
def test_metrics_in_alerts_and_dashboards_exist(name: str, metrics: set[str]) -> None:
    expression = expressions()[name].replace("$namespace", ".*")
    promql_parser.parse(expression)
    used = set(re.findall(r"\b(rayhistory_\w+)\b", expression))
    assert used
    assert used <= metrics


MONITORING = ROOT / "docs/how-to/kubernetes/monitoring.md"


def test_every_metric_is_documented(metrics: set[str]) -> None:
    server, _, collector = MONITORING.read_text().partition("## Metrics of a collector")
    named = set(re.findall(r"`(rayhistory_\w+)`", server))
    named |= {f"rayhistory_collector_{name}" for name in re.findall(r"`([a-z]+_\w+[a-z])`", collector)}
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metrics if not name.endswith("_created")}
    assert named == exported


def test_every_alert_is_on_the_page_of_monitoring() -> None:
    sources = [CHART / "alerts.yaml", CHART / "templates/monitoring.yaml"]
    alerts = {name for source in sources for name in re.findall(r"- alert: (\w+)", source.read_text())}
    assert len(alerts) > 10
    assert set(re.findall(r"`(RayHistory\w+)`", MONITORING.read_text())) == alerts


def test_scrape_configuration_selects_both_programs() -> None:
    """As Prometheus joins the two labels: container and port."""
    (block,) = re.findall(r"```yaml\n(.*?)```", MONITORING.read_text(), re.DOTALL)
    keep, *others = yaml.safe_load(block)["scrape_configs"][0]["relabel_configs"]
    assert [rule["target_label"] for rule in others] == ["namespace", "pod"]
    for container in our_containers():
        (port,) = container["ports"]
        assert re.fullmatch(keep["regex"], f"{container['name']};{port['name']}")
    assert not re.fullmatch(keep["regex"], "oauth2-proxy;oauth2-proxy")
