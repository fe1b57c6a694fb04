"""Our programs start with the environments and arguments of KubeRay's images."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import httpx
import pytest

from deploy.files import collectors, documents, environment_of
from deploy.pods import BIN, EVENT, NODE, SESSION, fake_ray, program
from support.store_servers.moto import moto
from support.store_servers.processes import free_port

BUCKET = "ray-historyserver"
CLUSTER = "raycluster-historyserver"

MINIO_1_7 = {
    "STORAGE_BACKEND": "s3",
    "S3DISABLE_SSL": "true",
    "AWS_ACCESS_KEY_ID": "minioadmin",
    "AWS_SECRET_ACCESS_KEY": "minioadmin",
    "AWS_SESSION_TOKEN": "",
    "S3_BUCKET": BUCKET,
    "S3_ENDPOINT": "minio-service.minio-dev:9000",
    "S3_REGION": "test",
    "S3FORCE_PATH_STYLE": "true",
}
MINIO_1_6 = {
    "S3DISABLE_SSL": "true",
    "AWS_S3ID": "minioadmin",
    "AWS_S3SECRET": "minioadmin",
    "AWS_S3TOKEN": "",
    "S3_BUCKET": BUCKET,
    "S3_ENDPOINT": "minio-service.minio-dev:9000",
    "S3_REGION": "test",
    "S3FORCE_PATH_STYLE": "true",
}
POD = {"POD_IP": "10.244.0.9", "RAY_CLUSTER_NAME": CLUSTER, "RAY_CLUSTER_NAMESPACE": "default"}
HEAD_SERVICE = f"{CLUSTER}-head-svc.default.svc.cluster.local"

# Collectors of KubeRay's samples and operator: arguments, environment, and prefix of the stored keys.
COLLECTORS = {
    "1.6 sample": (
        ["collector", "--role=Head", "--runtime-class-name=s3", f"--ray-cluster-name={CLUSTER}", "--ray-root-dir=log",
         "--events-port=8084"],
        MINIO_1_6,
        "log/",
    ),
    "1.7 sample": (
        [],
        {**MINIO_1_7, **POD, "FQ_RAY_IP": HEAD_SERVICE, "RAY_TMP_ROOT": "/tmp/ray", "RAY_ROLE": "Head"},
        "",
    ),
    "1.7 sample of a job": (
        [],
        {**MINIO_1_7, **POD, "FQ_RAY_IP": "localhost", "RAY_TMP_ROOT": "/tmp/ray", "RAY_ROLE": "Head",
         "OWNER_KIND": "rayjob", "OWNER_NAME": "rayjob"},
        "",
    ),
    "1.7 operator": (
        [],
        {**POD, "RAY_ROLE": "Head", "EVENTS_PORT": "8084", "FQ_RAY_IP": HEAD_SERVICE,
         "RAY_DASHBOARD_ADDRESS": "http://localhost:8265", **MINIO_1_7},
        "",
    ),
    "1.7 operator, with a job and a token": (
        [],
        {**POD, "RAY_ROLE": "Head", "EVENTS_PORT": "8084", "FQ_RAY_IP": HEAD_SERVICE, "OWNER_KIND": "RayJob",
         "OWNER_NAME": "rayjob", "RAY_DASHBOARD_ADDRESS": "http://localhost:8265", "RAY_AUTH_MODE": "token",
         "RAY_AUTH_TOKEN": "a-token", **MINIO_1_7},
        "",
    ),
}  # fmt: skip
OUR_MANIFESTS = {
    name: (collectors(name)[0]["args"], environment_of(collectors(name)[0], **POD), "")
    for name in ("raycluster.yaml", "rayjob-own-cluster.yaml")
}

# Variables that Kubernetes sets in a pod for every Service of its namespace.
SERVICE_LINKS = {
    f"{name}_{suffix}": value
    for name in ("HISTORYSERVER", "RAYHISTORY", "COLLECTOR", "EVENTS", "S3")
    for suffix, value in {
        "SERVICE_HOST": "10.96.0.7",
        "SERVICE_PORT": "30080",
        "SERVICE_PORT_HTTP": "30080",
        "PORT": "tcp://10.96.0.7:30080",
        "PORT_30080_TCP": "tcp://10.96.0.7:30080",
        "PORT_30080_TCP_PROTO": "tcp",
        "PORT_30080_TCP_PORT": "30080",
        "PORT_30080_TCP_ADDR": "10.96.0.7",
    }.items()
}


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server in place of MinIO."""
    with moto(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture
def bucket(minio: str) -> Iterator[Any]:
    """A plain client of the bucket, which the collector creates."""
    key = MINIO_1_7["AWS_ACCESS_KEY_ID"]
    client = boto3.client(
        "s3", endpoint_url=minio, aws_access_key_id=key, aws_secret_access_key=key, region_name="us-east-1"
    )
    httpx.post(f"{minio}/moto-api/reset", trust_env=False).raise_for_status()
    yield client
    client.close()


class Ray(NamedTuple):
    root: Path
    raylet: socket.socket


@pytest.fixture
def ray() -> Iterator[Ray]:
    """A session directory with a short path, because it holds a socket."""
    root = Path(tempfile.mkdtemp(prefix="pod-"))
    with fake_ray(root) as raylet:
        yield Ray(root, raylet)
    shutil.rmtree(root)


def with_local_endpoint(environment: dict[str, str], minio: str) -> dict[str, str]:
    """Replace the address of MinIO, which is all that differs on this machine."""
    return environment | {"S3_ENDPOINT": minio.removeprefix("http://")}


def keys(bucket: Any) -> list[str]:
    return [each["Key"] for each in bucket.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


@pytest.mark.parametrize("name", [*COLLECTORS, *OUR_MANIFESTS])
def test_collector_starts_and_stores_the_session(name: str, minio: str, bucket: Any, ray: Ray, tmp_path: Path) -> None:
    arguments, environment, prefix = (COLLECTORS | OUR_MANIFESTS)[name]
    port = str(free_port())
    command = [BIN / "collector", *(word.replace("8084", port) for word in arguments if word != "collector")]
    variables = with_local_endpoint(environment, minio) | {
        "RAY_TMP_ROOT": str(ray.root),
        "RAY_COLLECTOR_EVENT_DATA_DIR": str(tmp_path / "spool"),
        "RAYHISTORY_EVENTS_HOST": "127.0.0.1",
    }
    if not any(word.startswith("--events-port") for word in arguments):
        variables["EVENTS_PORT"] = port
    with program(command, variables, tmp_path) as collector:
        listening = collector.wait_for_log("listening")
        assert (listening["cluster"], listening["namespace"], listening["role"]) == (CLUSTER, "default", "Head")
        assert (listening["store"], listening["prefix"]) == (f"s3://{BUCKET}", prefix.rstrip("/"))
        address = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200
        assert httpx.post(f"{address}/v1/events", json=[EVENT], trust_env=False).status_code == 200
        ray.raylet.close()
        assert collector.end() == 0
        assert "is ignored" not in collector.text
    kind, owner = environment.get("OWNER_KIND", "raycluster").lower(), environment.get("OWNER_NAME")
    found = keys(bucket)
    flat, deep = (f"{owner}_", f"{owner}/") if owner else ("", "")
    assert f"{prefix}cluster-metadata/{kind}/default_{flat}{CLUSTER}/{SESSION}" in found
    data = f"{prefix}cluster-history/{kind}/default/{deep}{CLUSTER}/{SESSION}/{NODE}/"
    assert {key.removeprefix(data).partition("/")[0] for key in found if key.startswith(data)} == {
        "logs",
        "node_events",
    }


SERVERS = {
    "1.6 sample": (["historyserver", "--runtime-class-name=s3", "--ray-root-dir=log"], MINIO_1_6),
    "1.7 sample": (["--session-cache-max-memory=8Gi"], MINIO_1_7),
    "ours": (
        [],
        environment_of(documents("historyserver.yaml")[1]["spec"]["template"]["spec"]["containers"][0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_server_starts_and_lists_the_session(name: str, minio: str, bucket: Any, tmp_path: Path) -> None:
    """Variables of Services that share our names do no harm."""
    arguments, environment = SERVERS[name]
    prefix = "log/" if "--ray-root-dir=log" in arguments else ""
    bucket.create_bucket(Bucket=BUCKET)
    bucket.put_object(Bucket=BUCKET, Key=f"{prefix}cluster-metadata/raycluster/default_{CLUSTER}/{SESSION}", Body=b"")
    port = free_port()
    command: list[str | Path] = [BIN / "historyserver", *(word for word in arguments if word != "historyserver")]
    variables = with_local_endpoint(environment, minio) | SERVICE_LINKS | {"RAYHISTORY_HOST": "127.0.0.1"}
    with program([*command, f"--port={port}"], variables, tmp_path) as server:
        assert server.wait_for_log("serving")["address"] == f"http://127.0.0.1:{port}/"
        listed = server.wait_for_log("listed the sessions in the store")
        assert (listed["backend"], listed["store"].rstrip("/"), listed["prefix"]) == (
            "s3", f"s3://{BUCKET}", prefix.rstrip("/"),
        )  # fmt: skip
        assert listed["sessions"] == 1
        assert httpx.get(f"http://127.0.0.1:{port}/readz", trust_env=False).text == "ok"
        (cluster,) = httpx.get(f"http://127.0.0.1:{port}/clusters", trust_env=False).json()
        assert (cluster["name"], cluster["namespace"], cluster["sessionName"]) == (CLUSTER, "default", SESSION)
        assert "is ignored" not in server.text
        server.end()


def test_service_variable_is_not_taken_for_a_port(ray: Ray, tmp_path: Path) -> None:
    """A Service named `events` sets EVENTS_PORT=tcp://…, which is logged and ignored."""
    variables = SERVICE_LINKS | {"RAY_TMP_ROOT": str(ray.root), "LOCAL_STORAGE_DIR": str(tmp_path / "store")}
    port = free_port()
    with program(
        [
            BIN / "collector",
            f"--events-port={port}",
            "--events-host=127.0.0.1",
            f"--event-data-dir={tmp_path / 'spool'}",
        ],
        variables,
        tmp_path,
    ) as collector:
        assert collector.wait_for_log("listening")["port"] == port
        assert "EVENTS_PORT=tcp://10.96.0.7:30080 is ignored" in collector.text
        ray.raylet.close()
        assert collector.end() == 0


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"STORAGE_BACKEND": "s4"}, "s4"),
        ({"STORAGE_BACKEND": "gcs"}, "GCS_BUCKET"),
        ({"STORAGE_BACKEND": "azureblob"}, "AZURE_STORAGE_CONNECTION_STRING"),
        ({"STORAGE_BACKEND": "aliyunoss", "OSS_BUCKET": "a-bucket"}, "OSS_REGION"),
        ({"STORAGE_BACKEND": "gcs", "GCS_BUCKET": "b", "RAYHISTORY_STORE": "s3://other"}, "contradict"),
        ({"STORAGE_BACKEND": "s3", "STORAGE_BACKEND_CONFIG_PATH": "/nowhere.json"}, "/nowhere.json"),
    ],
    ids=["unknown", "gcs without bucket", "azure without account", "oss without region", "two stores", "no file"],
)
@pytest.mark.parametrize("name", ["collector", "historyserver"])
def test_invalid_store_is_an_error_that_names_it(
    name: str, environment: dict[str, str], error: str, tmp_path: Path
) -> None:
    with program([BIN / name], environment | {"RAY_TMP_ROOT": str(tmp_path)}, tmp_path) as started:
        assert started.process.wait(60) == 2
        (line,) = [line for line in started.text.splitlines() if line.startswith(f"{name}: ")]
        assert error in line
