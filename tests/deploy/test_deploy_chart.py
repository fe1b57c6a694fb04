"""The Helm chart renders valid Kubernetes objects, and refuses invalid values by name."""

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.files import CHART, CI_VALUES, HELM, ROOT, documents
from deploy.guides import commands
from promql import promqltest
from promql.promqltest import Script
from rayhistory.settings import COLLECTOR, SERVER, resolve
from rayhistory.settings.parsers import parse_size

CUSTOM_APIS = {"monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"}
S3 = ["--set=store.backend=s3", "--set=store.s3.bucket=a-bucket"]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def rendered(*arguments: str | Path) -> list[dict[str, Any]]:
    done = helm("template", "history", CHART, "--namespace=somewhere", *arguments)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def environment(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Return the server's environment, with the ConfigMap that it shares with collectors."""
    store = next(each["data"] for each in of_kind(objects, "ConfigMap") if each["metadata"]["name"] == "history-store")
    (deployment,) = of_kind(objects, "Deployment")
    container, *_ = deployment["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "historyserver"
    assert {"configMapRef": {"name": "history-store"}} in container["envFrom"]
    return {**store, **{each["name"]: each["value"] for each in container["env"] or []}}


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_rendered_objects_and_settings_are_valid(values: Path) -> None:
    linted = helm("lint", "--strict", CHART, f"--values={values}")
    assert linted.returncode == 0, linted.stdout
    objects = rendered(f"--values={values}")
    for each in objects:
        if each["apiVersion"] not in CUSTOM_APIS:
            kubernetes_validate.validate(each, "1.37", strict=True)
    variables = environment(objects)
    settings, warnings = resolve(SERVER, {}, variables)
    assert warnings == []
    chosen = yaml.safe_load(values.read_text())
    assert settings.storage_backend == chosen["store"]["backend"]
    assert settings.storage_root_dir == chosen["store"].get("rootDir", "")
    assert settings.auth == chosen.get("auth", "none")
    assert settings.live == chosen.get("live", {}).get("enabled", False)
    assert settings.use_kubernetes_proxy == chosen.get("live", {}).get("throughApiServer", False)
    shared = {name: value for name, value in variables.items() if not name.startswith("RAYHISTORY_")}
    assert resolve(COLLECTOR, {}, shared)[0].storage_backend == chosen["store"]["backend"]


def test_chart_settings_reach_the_server() -> None:
    variables = environment(rendered(*S3, "--set=settings.index_memory=2Gi", "--set=settings.index_ahead=false"))
    settings, _ = resolve(SERVER, {}, variables)
    assert (settings.index_memory, settings.index_ahead) == (2 * 2**30, False)


def test_default_values_render_only_required_kinds() -> None:
    kinds = sorted(each["kind"] for each in rendered(*S3))
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "Service", "ServiceAccount"]
    without = {each["kind"] for each in rendered(*S3, "--set=discovery.enabled=false")}
    assert without == {"ConfigMap", "Deployment", "Service", "ServiceAccount"}


def test_selectors_match_the_server_pods() -> None:
    objects = rendered(f"--values={CHART / 'ci/everything.yaml'}")
    (deployment,) = of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    (policy, retention), (budget,) = of_kind(objects, "NetworkPolicy"), of_kind(objects, "PodDisruptionBudget")
    (service,), (monitor,) = of_kind(objects, "Service"), of_kind(objects, "ServiceMonitor")
    for selector in (
        policy["spec"]["podSelector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
    ):
        assert selector.items() <= labels
    for job in of_kind(objects, "CronJob"):
        jobs = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
        assert retention["spec"]["podSelector"]["matchLabels"].items() <= jobs.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    monitoring = [each["metadata"]["labels"] for each in objects if each["apiVersion"] in CUSTOM_APIS]
    assert [labels["release"] for labels in monitoring] == ["prometheus"] * 5
    configs = of_kind(objects, "ConfigMap")
    (dashboards,) = [each for each in configs if "grafana_dashboard" in each["metadata"]["labels"]]
    assert dashboards["data"] == {path.name: path.read_text() for path in (CHART / "dashboards").iterdir()}


def test_proxy_signs_visitors_in_and_only_the_proxy_is_trusted() -> None:
    objects = rendered(f"--values={CHART / 'ci/production.yaml'}")
    settings, _ = resolve(SERVER, {}, environment(objects))
    assert (settings.auth, settings.trusted_proxies) == ("proxy", ("127.0.0.1",))
    (service,), (deployment,) = of_kind(objects, "Service"), of_kind(objects, "Deployment")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for each in containers for port in each["ports"]}
    assert {port["name"]: ports[port["targetPort"]] for port in service["spec"]["ports"]} == {
        "http": 4180,
        "metrics": 8080,
    }
    (ingress,), (monitor,) = of_kind(objects, "Ingress"), of_kind(objects, "ServiceMonitor")
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (service["metadata"]["name"], "http")
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"


def test_only_the_retention_job_has_the_retention_identity() -> None:
    objects = rendered(f"--values={CHART / 'ci/everything.yaml'}")
    roles = {
        each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in of_kind(objects, "ServiceAccount")
    }
    server, retention = accounts(objects)
    assert "eks.amazonaws.com/role-arn" not in roles[server]
    assert roles[retention]["eks.amazonaws.com/role-arn"].endswith("/ray-history-retention")


def accounts(objects: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the service accounts of the server and of retention."""
    (deployment,), (job, *_) = of_kind(objects, "Deployment"), of_kind(objects, "CronJob")
    server = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    return server, retention_pod(job)["serviceAccountName"]


def retention_pod(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


EKS_VALUES = [CHART / f"ci/{name}.yaml" for name in ("production", "gateway")]


@pytest.mark.parametrize("values", EKS_VALUES, ids=lambda path: path.stem)
def test_production_uses_the_accounts_that_the_guide_creates(values: Path) -> None:
    objects = rendered(f"--values={values}")
    lines = [line for line in commands(ROOT / "docs/how-to/kubernetes/eks-s3.md") if "iamserviceaccount" in line]
    created = {
        (found[1], found[2]) for line in lines if (found := re.search(r"--namespace=\$(\w+) .*--name=(\S+)", line))
    }
    assert {("HISTORY_NAMESPACE", name) for name in accounts(objects)} <= created
    assert ("NAMESPACE", "ray-collector") in created
    assert of_kind(objects, "ServiceAccount") == []
    (binding,) = of_kind(objects, "ClusterRoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == [accounts(objects)[0]]


def test_release_for_programs_adds_no_second_retention_and_no_identity() -> None:
    objects = rendered(f"--values={CHART / 'ci/token.yaml'}")
    assert {each["kind"] for each in objects} == {"ConfigMap", "Deployment", "Ingress", "NetworkPolicy", "Service"}
    first, second = (yaml.safe_load((CHART / f"ci/{name}.yaml").read_text()) for name in ("production", "token"))
    assert [second[key] for key in ("store", "image", "serviceAccount")] == [
        first[key] for key in ("store", "image", "serviceAccount")
    ]


def test_release_for_programs_trusts_the_load_balancer() -> None:
    """Without it, the cookie of /login is not Secure behind the load balancer, which ends TLS."""
    values = yaml.safe_load((CHART / "ci/token.yaml").read_text())
    settings, _ = resolve(SERVER, {}, environment(rendered(f"--values={CHART / 'ci/token.yaml'}")))
    assert list(settings.trusted_proxies) == values["networkPolicy"]["cidrs"]


def test_teams_have_retention_jobs_of_their_own() -> None:
    *jobs, _ = of_kind(rendered(f"--values={CHART / 'ci/everything.yaml'}"), "CronJob")
    found = {
        job["metadata"]["name"]: (job["spec"]["schedule"], retention_pod(job)["containers"][0]["args"]) for job in jobs
    }
    assert found == {
        "history-retention-team-a": ("17 3 * * *", ["--namespace=team-a", "--max-age=7d"]),
        "history-retention-team-b": ("47 3 * * *", ["--namespace=team-b", "--max-age=365d"]),
    }


def test_compaction_runs_its_command_with_the_identity_of_retention(tmp_path: Path) -> None:
    first, *_, job = of_kind(rendered(f"--values={CHART / 'ci/everything.yaml'}"), "CronJob")
    pod = retention_pod(job)
    (container,) = pod["containers"]
    assert (job["metadata"]["name"], job["spec"]["schedule"]) == ("history-retention-compact", "37 * * * *")
    assert pod["serviceAccountName"] == retention_pod(first)["serviceAccountName"]
    program, *arguments = container["command"] + container["args"]
    argv: list[str | Path] = [HELM.with_name(program), *arguments, f"--store={tmp_path}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 sessions compacted\n"), done.stderr


def test_settings_and_variables_reach_the_retention_job() -> None:
    objects = rendered(f"--values={CHART / 'ci/everything.yaml'}")
    (job, *_) = of_kind(objects, "CronJob")
    (container,) = retention_pod(job)["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert resolve(SERVER, {}, variables)[0].keep_runs is True
    assert variables["RAYHISTORY_LOG_LEVEL"] == "debug"
    assert job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["annotations"] == {"example.com/team": "history"}


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_volumes_are_writable_for_the_user_of_the_image(kind: str) -> None:
    (found,) = of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}"), kind)
    pod = found["spec"]["template"]["spec"] if kind == "Deployment" else retention_pod(found)
    users = {each["securityContext"]["runAsUser"] for each in pod["containers"]}
    assert users == {pod["securityContext"]["fsGroup"]}


def test_network_policy_admits_load_balancers_and_pod_identity() -> None:
    values = yaml.safe_load((CHART / "ci/production.yaml").read_text())
    policy, retention = of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}"), "NetworkPolicy")
    networks = values["networkPolicy"]["cidrs"]
    assert len(networks) == 2
    for network in networks:
        assert {"ipBlock": {"cidr": network}} in policy["spec"]["ingress"][0]["from"]
        assert f"--trusted-proxy-ip={network}" in values["oauth2Proxy"]["args"]
    for each in (policy, retention, *documents("networkpolicy.yaml")):
        *_, credentials = each["spec"]["egress"]
        addresses = {peer["ipBlock"]["cidr"] for peer in credentials["to"]}
        assert {"169.254.170.23/32", "fd00:ec2::23/128"} <= addresses
        assert {"port": 80} in credentials["ports"]
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert 9000 in ports


def test_memory_request_covers_what_the_settings_allow() -> None:
    """500 MB, and `index_memory` for each of `index_workers`."""
    objects = rendered(*S3)
    settings, _ = resolve(SERVER, {}, environment(objects))
    (deployment,) = of_kind(objects, "Deployment")
    resources = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert parse_size(resources["requests"]["memory"]) >= 500e6 + settings.index_memory * settings.index_workers


def test_cache_fits_its_volume() -> None:
    for path in (*EKS_VALUES, CHART / "ci/token.yaml"):
        objects = rendered(f"--values={path}")
        settings, _ = resolve(SERVER, {}, environment(objects))
        (deployment,) = of_kind(objects, "Deployment")
        volume = next(each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "cache")
        claim = volume.get("ephemeral", {}).get("volumeClaimTemplate")
        size = claim["spec"]["resources"]["requests"]["storage"] if claim else volume["emptyDir"]["sizeLimit"]
        assert settings.cache_size < parse_size(size)


def test_pod_serves_until_load_balancers_know_that_it_ends() -> None:
    values = f"--values={CHART / 'ci/production.yaml'}"
    (deployment,) = of_kind(rendered(values, "--set=shutdownDelaySeconds=25"), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    server, proxy = (each["lifecycle"]["preStop"] for each in pod["containers"])
    assert server["exec"]["command"] == ["sleep", "25"]
    assert proxy == {"sleep": {"seconds": 25}}
    assert pod["terminationGracePeriodSeconds"] > 25


@pytest.mark.parametrize(
    "flags", [["--set=shutdownDelaySeconds=0"], ["--kube-version=1.29.0"]], ids=["no delay", "Kubernetes 1.29"]
)
def test_proxy_has_no_sleep_that_kubernetes_would_refuse(flags: list[str]) -> None:
    """Sleeping without a program is on by default since Kubernetes 1.30, for more than zero seconds."""
    (deployment,) = of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}", *flags), "Deployment")
    assert "lifecycle" not in deployment["spec"]["template"]["spec"]["containers"][1]


def test_proxy_reads_a_private_ca() -> None:
    flags = [
        '--set-json=extraVolumes=[{"name": "ca", "configMap": {"name": "private-ca"}}]',
        '--set-json=oauth2Proxy.extraVolumeMounts=[{"name": "ca", "mountPath": "/etc/ca", "readOnly": true}]',
        '--set-json=oauth2Proxy.extraEnv=[{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}]',
    ]
    (deployment,) = of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}", *flags), "Deployment")
    kubernetes_validate.validate(deployment, "1.37", strict=True)
    pod = deployment["spec"]["template"]["spec"]
    assert {"name": "ca", "configMap": {"name": "private-ca"}} in pod["volumes"]
    proxy = pod["containers"][1]
    assert proxy["volumeMounts"] == [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}]
    assert [each["name"] for each in proxy["env"]] == ["HTTPS_PROXY"]


RETENTION_RUNS = """
load 1h
  kube_cronjob_status_last_schedule_time{namespace="somewhere", cronjob="history-retention"}       _ 1 1 5 5 9 9
  kube_cronjob_status_last_successful_time{namespace="somewhere", cronjob="history-retention"}     _ _ 2 2 2 2 10
  kube_cronjob_status_last_schedule_time{namespace="somewhere", cronjob="history-retention-team-a"} _ 1 1 5 5 9 9
  kube_cronjob_status_last_schedule_time{namespace="somewhere", cronjob="another"}                 _ 1 1 5 5 9 9

eval range from 0 to 6h step 1h EXPRESSION
  kube_cronjob_status_last_schedule_time{namespace="somewhere", cronjob="history-retention"}       _ 1 _ 5 5 9 _
  kube_cronjob_status_last_schedule_time{namespace="somewhere", cronjob="history-retention-team-a"} _ 1 1 5 5 9 9
"""


HEADS = """
load 1m
  kube_pod_container_info{namespace="team-a", pod="recorded", container="ray-head"}            1 1 1
  kube_pod_container_info{namespace="team-a", pod="recorded", container="collector"}           _ 1 1
  kube_pod_container_info{namespace="team-a", pod="operator", container="ray-head"}            1 1 1
  kube_pod_container_info{namespace="team-a", pod="operator", container="ray-history-collector"} 1 1 1
  kube_pod_container_info{namespace="team-a", pod="native", container="ray-head"}              1 1 1
  kube_pod_init_container_info{namespace="team-a", pod="native", container="collector"}        1 1 1
  kube_pod_container_info{namespace="team-b", pod="recorded", container="ray-head"}            1 1 1

eval range from 0 to 2m step 1m EXPRESSION
  {namespace="team-a", pod="recorded"} 1 _ _
  {namespace="team-b", pod="recorded"} 1 1 1
"""
UPLOADS = """
load 1m
  rayhistory_collector_upload_retries_total{namespace="team-a", pod="denied", kind="logs"}    1 2 3 4
  rayhistory_collector_upload_retries_total{namespace="team-a", pod="slow", kind="logs"}      1 2 3 4
  rayhistory_collector_uploads_total{namespace="team-a", pod="slow", kind="events"}           1 1 2 3
  rayhistory_collector_uploads_total{namespace="team-a", pod="well", kind="events"}           1 2 3 4

eval instant at 3m count by (namespace, pod) (EXPRESSION)
  {namespace="team-a", pod="denied"} 1
"""


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("RayHistoryRetentionFailed", RETENTION_RUNS),
        ("RayHistoryCollectorMissing", HEADS),
        ("RayHistoryCollectorCannotUpload", UPLOADS),
    ],
)
def test_alert_fires_while_its_problem_lasts(alert: str, series: str, tmp_path: Path) -> None:
    """Of retention, the first job's second run fails, and its third succeeds. The second job never succeeds."""
    rules = [
        rule
        for each in of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}"), "PrometheusRule")
        for rule in each["spec"]["groups"][0]["rules"]
    ]
    (expression,) = [rule["expr"] for rule in rules if rule["alert"] == alert]
    script = tmp_path / "alert.test"
    script.write_text(series.replace("EXPRESSION", expression))
    ((case, source),) = Script(script).cases()
    promqltest.run(case, source)


def test_users_are_named_by_their_address() -> None:
    assert {"--prefer-email-to-user=true", "--pass-user-headers=true"} <= set(sign_in_proxy("production")["args"])


def sign_in_proxy(values: str) -> dict[str, Any]:
    (deployment,) = of_kind(rendered(f"--values={CHART / f'ci/{values}.yaml'}"), "Deployment")
    proxy: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][1]
    return proxy


def test_proxy_listens_on_ipv4_and_ipv6() -> None:
    assert "--http-address=:4180" in sign_in_proxy("production")["args"]


def test_proxy_has_the_fixes_of_known_bypasses() -> None:
    """CVE-2026-40575 is fixed in 7.15.2, which added --trusted-proxy-ip; CVE-2026-76835 affects up to 7.15.4."""
    found = re.search(r":v(\d+)\.(\d+)\.(\d+)$", sign_in_proxy("production")["image"])
    assert found
    assert tuple(map(int, found.groups())) >= (7, 15, 5)


@pytest.mark.parametrize("values", ["production", "gateway"])
def test_sign_in_cookie_fits_into_headers(values: str) -> None:
    """Tokens in the cookie exceed nginx's header buffers."""
    assert "--session-cookie-minimal=true" in sign_in_proxy(values)["args"]


def test_retention_job_runs_a_valid_command(tmp_path: Path) -> None:
    """On an empty store it removes nothing."""
    (job,) = of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}"), "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command: list[str] = container["command"] + container["args"]
    done = subprocess.run(
        [HELM.with_name(command[0]), *command[1:], f"--store={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_replicas_are_spread_and_each_has_a_cache() -> None:
    (deployment,) = of_kind(rendered(f"--values={CHART / 'ci/production.yaml'}"), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    keys = [each["topologyKey"] for each in pod["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    claim = next(each for each in pod["volumes"] if each["name"] == "cache")["ephemeral"]["volumeClaimTemplate"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "50Gi"}}
    (single,) = of_kind(rendered(*S3), "Deployment")
    assert "topologySpreadConstraints" not in single["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([], "backend is required"),
        (["--set=store.backend="], "store.backend"),
        (["--set=store.backend=s4"], "store.backend"),
        (["--set=store.backend=s3"], "s3 is required"),
        (["--set=store.backend=s3", "--set=store.s3.region=x"], "bucket is required"),
        (["--set=store.backend=s3", "--set=store.s3.bucket="], "store.s3.bucket"),
        (["--set=store.backend=gcs", "--set=store.s3.bucket=b"], "gcs is required"),
        ([*S3, "--set=store.gcs.bucket=b"], "store.gcs"),
        (["--set=store.backend=aliyunoss", "--set=store.aliyunoss.bucket=b"], "region is required"),
        (["--set=store.backend=azureblob", "--set=store.azureblob.accountUrl=x"], "container is required"),
        ([*S3, "--set=store.s3.bukcet=b"], "bukcet"),
        ([*S3, "--set=replica=2"], "replica"),
        ([*S3, "--set=replicas=two"], "replicas"),
        ([*S3, "--set=auth=password"], "auth"),
        ([*S3, "--set=auth=token"], "accessSecret"),
        ([*S3, "--set=service.port=0"], "service.port"),
        ([*S3, "--set=settings.Index-Memory=1"], "settings"),
        ([*S3, "--set=image.repository="], "image.repository"),
        ([*S3, "--set=ingress.enabled=true"], "ingress.host"),
        ([*S3, "--set=gateway.enabled=true,gateway.host=h"], "gateway.parentRefs"),
        ([*S3, "--set=oauth2Proxy.enabled=true,oauth2Proxy.secret=s"], "auth"),
        ([*S3, "--set=auth=proxy,accessSecret=a,oauth2Proxy.enabled=true"], "oauth2Proxy.secret"),
        ([*S3, "--set=retention.enabled=true,retention.args=null"], "args is required"),
        ([*S3, "--set=retention.arguments=x"], "arguments"),
        ([*S3, "--set=shutdownDelaySeconds=-1"], "shutdownDelaySeconds"),
        ([*S3, "--set=oauth2Proxy.extraVolumeMounts[0].name=ca"], "mountPath is required"),
        ([*S3, "--set=retention.jobs[0].name=team-a"], "args is required"),
        ([*S3, "--set=retention.jobs[0].name=Team_A,retention.jobs[0].args={--max-age=7d}"], "retention.jobs.0.name"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(each.removeprefix("--set=") for each in value),
)
def test_invalid_value_is_refused_by_name(flags: list[str], error: str) -> None:
    done = helm("template", "history", CHART, *flags)
    assert done.returncode != 0
    assert error in done.stderr
