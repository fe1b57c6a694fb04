"""All kinds of credentials of each cloud, against doubles of the endpoints that issue them.

Not tested: IRSA (obstore needs https for STS), GKE's metadata server (its address is fixed) and the Azure CLI.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from rayhistory.errors import InvalidSetting, StoreDenied, StoreUnavailable
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
from rayhistory.storage.azure_container import container_creator
from support.store_servers import oss_double
from support.store_servers.bucket_double import Bucket, Double, ErrorReply, StoredObject, serving
from support.store_servers.tokens import ASSERTION, BEARER, ISSUED, ISSUED_SECRET, SESSION, TokenServer, token_server


class S3Bucket(Bucket):
    """Accepts only the key and session that the token server issues, or those of the profile."""

    meta_prefix = "x-amz-meta-"

    def check(self) -> None:
        signed_by = self.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        if (signed_by, self.headers.get("x-amz-security-token")) not in {(ISSUED, SESSION), ("profile-key", None)}:
            raise ErrorReply(403, "InvalidAccessKeyId")


class AzureContainer(Bucket):
    meta_prefix = "x-ms-meta-"

    def check(self) -> None:
        if self.headers.get("authorization") != f"Bearer {BEARER}":
            raise ErrorReply(403, "AuthenticationFailed")
        self.bucket, _, self.key = self.key.partition("/")
        if self.command == "PUT" and self.query.get("restype") == "container":
            self.server.buckets[self.bucket] = {}
            raise ErrorReply(201, "Created")

    def extra_headers(self, stored: StoredObject) -> dict[str, str]:
        return {"content-type": "application/octet-stream"}


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(ASSERTION)
    return str(path)


@pytest.fixture
def round_trip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write and read one object with these environment variables."""

    def write_and_read(url: str, **environment: str) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

        async def work() -> None:
            store = open_store(resolve(SERVER, {"setting_store": url})[0], writable=True)
            await store.put("a/b", b"1")
            assert await store.get("a/b") == b"1"
            await store.close()

        asyncio.run(work())

    return write_and_read


@pytest.fixture
def s3() -> Iterator[Double]:
    with serving(Double(S3Bucket, ("bucket",))) as double:
        yield double


def test_s3_with_pod_identity(round_trip: Callable[..., None], s3: Double, tokens: TokenServer, tmp_path: Path) -> None:
    token = tmp_path / "eks-token"
    token.write_text(ASSERTION)
    round_trip(
        "s3://bucket", S3_ENDPOINT=s3.url, AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{tokens.url}/v1/credentials",
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token),
    )  # fmt: skip
    assert tokens.requests == ["/v1/credentials"]


def test_s3_with_instance_role(round_trip: Callable[..., None], s3: Double, tokens: TokenServer) -> None:
    round_trip("s3://bucket", S3_ENDPOINT=s3.url, AWS_METADATA_ENDPOINT=tokens.url)
    assert tokens.requests[0] == "/latest/api/token"


def test_s3_with_profile(round_trip: Callable[..., None], s3: Double, tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = other\naws_secret_access_key = x\n"
                    "[team]\naws_access_key_id = profile-key\naws_secret_access_key = s%cret\n")  # fmt: skip
    round_trip("s3://bucket", S3_ENDPOINT=s3.url, AWS_SHARED_CREDENTIALS_FILE=str(path), AWS_PROFILE="team")
    path.write_text("[team]\nsso_session = corp\n")
    with pytest.raises(InvalidSetting, match=r"AWS_PROFILE=team: the profile has no static keys"):
        round_trip("s3://bucket")


def test_s3_without_credentials_raises_store_denied(
    round_trip: Callable[..., None], s3: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayhistory.storage.s3.retry_config", lambda: {"max_retries": 0})
    with pytest.raises(StoreDenied, match="no credentials available"):
        round_trip("s3://bucket", S3_ENDPOINT=s3.url, AWS_METADATA_ENDPOINT="http://127.0.0.1:9")


@pytest.mark.parametrize("mode", ["workload_identity", "default"])
def test_azure_with_workload_identity(
    round_trip: Callable[..., None], tokens: TokenServer, token_file: str, mode: str
) -> None:
    """The same identity creates the missing container."""
    with serving(Double(AzureContainer)) as double:
        round_trip(
            "az://container", AZURE_STORAGE_ACCOUNT_URL=f"{double.url}/account", AZURE_STORAGE_AUTH_MODE=mode,
            AZURE_CLIENT_ID="c", AZURE_TENANT_ID="a-tenant", AZURE_FEDERATED_TOKEN_FILE=token_file,
            AZURE_AUTHORITY_HOST=tokens.url,
        )  # fmt: skip
    assert tokens.requests == ["/a-tenant/oauth2/v2.0/token"] * 2


def test_azure_without_token_file_raises_store_unavailable(tmp_path: Path) -> None:
    """The container and the token file are both missing."""
    variables = {
        "AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "a-tenant", "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token")
    }  # fmt: skip
    create = container_creator({}, "container", lambda name: variables.get(name, ""))
    with pytest.raises(StoreUnavailable, match=r"AZURE_FEDERATED_TOKEN_FILE: .*No such file"):
        asyncio.run(create())  # type: ignore[arg-type]


def test_azure_with_managed_identity(round_trip: Callable[..., None], tokens: TokenServer) -> None:
    with serving(Double(AzureContainer, ("container",))) as double:
        account = f"{double.url}/account"
        round_trip("az://container", AZURE_STORAGE_ACCOUNT_URL=account, AZURE_MSI_ENDPOINT=f"{tokens.url}/msi/token")
    assert tokens.requests == ["/msi/token"]


def test_gcs_with_service_account_key(round_trip: Callable[..., None], tmp_path: Path) -> None:
    """The client signs a token, which the double verifies with the public key."""
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    path = tmp_path / "key.json"
    account = {"type": "service_account", "private_key": pem, "private_key_id": "id", "client_email": "me@project"}
    path.write_text(json.dumps(account))

    class GcsBucket(Bucket):
        meta_prefix = "x-goog-meta-"

        def check(self) -> None:
            head, claims, signature = self.headers["authorization"].removeprefix("Bearer ").split(".")
            raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
            key.public_key().verify(raw, f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())

    with serving(Double(GcsBucket, ("bucket",))) as double:
        round_trip("gs://bucket", GOOGLE_APPLICATION_CREDENTIALS=str(path), GOOGLE_BASE_URL=double.url)


@pytest.fixture
def oss(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    monkeypatch.setattr(oss_double.OssBucket, "secrets", {ISSUED: ISSUED_SECRET})
    monkeypatch.setattr(oss_double.OssBucket, "tokens", {ISSUED: SESSION})
    with serving(Double(oss_double.OssBucket, ("bucket",))) as double:
        yield double


def test_oss_with_oidc_role(round_trip: Callable[..., None], oss: Double, tokens: TokenServer, token_file: str) -> None:
    """RRSA, as in KubeRay. Keys are cached until they expire."""
    round_trip(
        "oss://bucket", OSS_REGION=oss_double.REGION, OSS_ENDPOINT=oss.url, ALIBABA_CLOUD_STS_ENDPOINT=tokens.url,
        ALIBABA_CLOUD_ROLE_ARN="role", ALIBABA_CLOUD_OIDC_PROVIDER_ARN="p", ALIBABA_CLOUD_OIDC_TOKEN_FILE=token_file,
    )  # fmt: skip
    assert tokens.requests == ["/"]


def test_oss_with_instance_role(round_trip: Callable[..., None], oss: Double, tokens: TokenServer) -> None:
    round_trip(
        "oss://bucket", OSS_REGION=oss_double.REGION, OSS_ENDPOINT=oss.url,
        ALIBABA_CLOUD_ECS_METADATA_ENDPOINT=tokens.url,
    )  # fmt: skip
    assert tokens.requests[-1].endswith("/ram/security-credentials/a-role")
