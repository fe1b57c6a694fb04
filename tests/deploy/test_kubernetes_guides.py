"""The commands of the guides work, and the names in the others exist."""

import json
import os
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from _pytest.mark.structures import ParameterSet

from deploy.files import CHART, DEPLOY, MANIFESTS, ROOT, clean_environment, documents
from deploy.guides import GUIDES, OVERVIEW, commands, commands_of, exports
from rayhistory.cli.setup.identity_checks import Identity
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.permissions import permissions_of
from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.server_process import running_server

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_have_targets(guide: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", guide.read_text())
    assert [link for link in links if "://" not in link and not (guide.parent / link).exists()] == []


def test_every_manifest_is_in_the_overview() -> None:
    text = OVERVIEW.read_text()
    assert [name for name in MANIFESTS if f"`{name}`" not in text and "samples/aliyuncs/" not in name] == []


def test_files_and_targets_in_the_guides_exist() -> None:
    lines = [line for guide in GUIDES for line in commands(guide)]
    files = {file for line in lines for file in re.findall(r"deploy/[\w./-]+", line)}
    assert len(files) > 15
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
    targets = set(re.findall(r"^([a-z- ]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    existing = {target for names in targets for target in names.split()}
    assert {shlex.split(line)[1] for line in commands_of("make")} <= existing


def test_forwarded_services_have_the_port() -> None:
    services: dict[str, set[int]] = {}
    for name in MANIFESTS:
        for each in documents(name):
            if each["kind"] == "Service":
                services.setdefault(each["metadata"]["name"], set()).update(p["port"] for p in each["spec"]["ports"])
    services["history"] = {yaml.safe_load((CHART / "values.yaml").read_text())["service"]["port"]}
    forwarded = [re.search(r"port-forward svc/(\S+) \d+:(\d+)", line) for line in commands_of("kubectl")]
    found = [(match[1], int(match[2])) for match in forwarded if match]
    assert len(found) >= 5
    assert all(port in services[name] for name, port in found)


def helm_commands() -> list[ParameterSet]:
    return [
        pytest.param(guide, line, id=f"{guide.name}-{number}")
        for guide in GUIDES
        for number, line in enumerate(commands(guide))
        if line.startswith("helm ") and "deploy/helm" in line
    ]


@pytest.mark.parametrize(("guide", "command"), helm_commands())
def test_chart_renders_with_the_values_of_the_guides(guide: Path, command: str) -> None:
    rendering = re.sub(r"helm (install|upgrade --install|upgrade)", "helm template", command)
    flag = "--reset-then-reuse-values"
    if flag in rendering:
        rendering = rendering.replace(flag, "--set store.backend=s3 --set store.s3.bucket=my-bucket")
    environment = clean_environment() | exports(guide) | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", rendering], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout) if each]
    assert "Deployment" in kinds


RUN_BY_TESTS = {
    "kubectl",
    "helm",
    "curl",
    "rayhistory",
    "make",
    "export",
    "envsubst",
    "python",
    "sed",
    "echo",
    "bash",
    ":",
}
"""Programs whose commands are run by tests, here or by `make test-kubernetes`."""
ON_YOUR_MACHINE = {"ray", "eval", "kind", "docker"}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_programs_that_need_a_cloud_are_named(guide: Path) -> None:
    used = {shlex.split(line)[0] for line in commands(guide)} - RUN_BY_TESTS - ON_YOUR_MACHINE
    marked = " ".join(re.findall(r"^Tests run .*? except (?:.+\n)+", guide.read_text(), re.MULTILINE))
    assert [program for program in sorted(used) if f"`{program}`" not in marked] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_policies_are_filled_in(guide: Path, tmp_path: Path) -> None:
    files = re.compile(r"envsubst < deploy/(policies|lifecycle)/")
    lines = [line for line in commands(guide) if files.match(line)]
    environment = clean_environment() | exports(guide) | {"PATH": os.environ["PATH"], "TARGET": str(tmp_path)}
    for line in [*(line for line in commands(guide) if line.startswith(": ")), *lines]:
        command = line.replace("> ", '> "$TARGET"/')
        subprocess.run(["bash", "-ec", command], cwd=ROOT, env=environment, check=True, timeout=60)
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert len(written) == len(lines)
    assert not [text for text in written if "${" in text]
    assert all(yaml.safe_load(text) for text in written if not text.startswith("("))


def test_cluster_of_the_guide_enforces_network_policies_and_creates_volumes() -> None:
    """The class of volumes in production.yaml is the one that the guide creates."""
    variables = clean_environment() | exports(OVERVIEW.with_name("eks-s3.md"))
    text = string.Template((DEPLOY / "eks/cluster.yaml").read_text()).substitute(variables)
    addons = {addon["name"]: addon for addon in yaml.safe_load(text)["addons"]}
    assert json.loads(addons["vpc-cni"]["configurationValues"]) == {"enableNetworkPolicy": "true"}
    assert {"aws-ebs-csi-driver", "eks-pod-identity-agent"} <= addons.keys()
    assert all(group["privateNetworking"] for group in yaml.safe_load(text)["managedNodeGroups"])
    (storage_class,) = documents("storageclass-eks.yaml")
    assert storage_class["parameters"]["encrypted"] == "true"
    values = yaml.safe_load((CHART / "ci/production.yaml").read_text())
    assert values["cache"]["volumeClaim"]["storageClassName"] == storage_class["metadata"]["name"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_operator_is_not_installed_beside_ray_clusters(guide: Path) -> None:
    """Whoever may create a RayCluster beside the operator can use its service account, which creates pods anywhere."""
    installs = [line for line in commands(guide) if "kuberay/kuberay-operator" in line]
    in_the_cloud = [line for line in installs if guide.name != "kind-minio.md"]
    assert [line for line in in_the_cloud if "--namespace kuberay-system" not in line] == []


@pytest.mark.parametrize("cloud", ["s3", "oss"])
def test_policies_name_the_permissions_of_the_doctor(cloud: str) -> None:
    """The policies of S3 are also tested on a server: tests/contract/test_least_privilege.py."""
    names = permissions_of({"s3": "s3", "oss": "aliyunoss"}[cloud])
    policies = {
        name: json.loads((ROOT / f"deploy/policies/{cloud}/{name}.json").read_text())["Statement"] for name in Identity
    }
    actions = {name: {action for rule in rules for action in rule["Action"]} for name, rules in policies.items()}
    assert names.delete not in actions[Identity.COLLECTOR]
    for found in actions.values():
        assert {names.list, names.read, *names.write.split(" and ")} <= found


def test_custom_role_names_the_permissions_of_the_doctor() -> None:
    """Cloud Storage grants uploads in parts separately."""
    role = yaml.safe_load((ROOT / "deploy/policies/gcs/writer.yaml").read_text())
    needed = permissions_of("gcs").write.partition(" (")[0].split(" and ")
    assert {*needed, permissions_of("gcs").delete} <= set(role["includedPermissions"])


@pytest.mark.parametrize(
    ("directory", "collector", "server"),
    [
        ("azure", "collector-condition.txt", "server-condition.txt"),
        ("gcs", "collector-condition.yaml", "server-condition.yaml"),
        ("s3", "collector.json", "server.json"),
        ("oss", "collector.json", "server.json"),
    ],
)
def test_policies_name_every_prefix_without_patterns_across_folders(
    directory: str, collector: str, server: str
) -> None:
    """A `*` also matches slashes: `cluster-history/*/logs/*` would be the logs of every namespace."""
    texts = {name: (ROOT / "deploy/policies" / directory / name).read_text() for name in (collector, server)}
    layout, ref = Layout(), SessionRef("${NAMESPACE}", "c", "s")
    refs = [ref, *(SessionRef(*ref.identity, kind, "owner") for kind in ("rayjob", "rayservice"))]
    keys = [*(key for each in refs for key in (layout.history_prefix(each), layout.metadata_key(each)))]
    keys += [layout.packs_prefix(ref), layout.node_seals_prefix(ref), layout.metrics_prefix(ref)]
    keys += [layout.records_prefix(ref), layout.dashboard_responses_prefix(ref)]
    for key in keys:
        end = key.index(ref.namespace) + len(ref.namespace) + 1
        assert "${PREFIX}" + key[:end] in texts[collector]
    for key in (layout.index_prefix(ref), layout.runs_prefix(), layout.notifications_prefix()):
        assert "${PREFIX}" + "/".join(key.split("/")[:2]) + "/" in texts[server]
    assert not re.search(r"\*[^'\"]*\$\{NAMESPACE\}", texts[collector].replace("acs:oss:*:*:", ""))


def test_manifests_write_below_the_prefix_of_the_policies() -> None:
    """A policy with PREFIX denies everything to a program that writes elsewhere."""
    for name in MANIFESTS:
        text = (DEPLOY / "manifests" / name).read_text()
        for backend, variables in re.findall(r"STORAGE_BACKEND, value: (\w+)}((?:\n *- {name: .*)*)", text):
            if "${" in variables:
                assert "{name: STORAGE_ROOT_DIR, value: " + '"${PREFIX}"}' in variables, (name, backend)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_chart_has_the_prefix_and_the_tag_that_the_guide_exports(guide: Path) -> None:
    installs = [line for line in commands(guide) if re.match(r"helm (upgrade --)?install .*deploy/helm", line)]
    for name, flag in (("PREFIX", "--set store.rootDir=$PREFIX"), ("TAG", "--set image.tag=$TAG")):
        missing = [line for line in installs if flag not in line and "--values" not in line]
        assert name not in exports(guide) or guide.name == "ack-oss.md" or missing == []


def test_azure_condition_restricts_reading_and_listing() -> None:
    text = (ROOT / "deploy/policies/azure/collector-condition.txt").read_text()
    assert text.count("(") == text.count(")")
    paths, prefixes = (re.findall(rf"blobs:{each}\] StringLike '(.*)'", text) for each in ("path", "prefix"))
    assert paths == prefixes
    role = json.loads((ROOT / "deploy/policies/azure/collector.json").read_text())
    assert [action for action in role["DataActions"] if f"ActionMatches{{'{action}'}}" not in text] == []


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guides")
    store_indexed_sample(settings_for(directory))
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with running_server(Path(settings_for(directory).local_storage_dir), directory / "server") as address:
        yield address


def test_curl_commands_succeed(server: str, directory: Path) -> None:
    """In order, because some send the cookies that earlier ones got."""
    curl_commands = commands_of("curl")
    assert len(curl_commands) > 10
    for command in curl_commands:
        local = command.replace("http://localhost:8080", server).replace("raycluster-historyserver", REF.cluster)
        argv = ["curl", "--fail-with-body", "--silent", "--show-error", "--noproxy", "*", *shlex.split(local)[1:]]
        done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert done.stdout, command


@pytest.mark.parametrize("command", commands_of("rayhistory"))
def test_rayhistory_commands_succeed(command: str, directory: Path) -> None:
    environment = clean_environment() | {"LOCAL_STORAGE_DIR": str(directory / "store"), "HOME": str(directory)}
    argv: list[str | Path] = [BIN / "rayhistory", *shlex.split(command)[1:]]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout
    assert "usage:" not in done.stderr, done.stderr
