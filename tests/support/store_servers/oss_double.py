"""A double of Aliyun OSS that checks V4 signatures and supports `x-oss-forbid-overwrite`.

Written from https://www.alibabacloud.com/help/en/oss/developer-reference/recommend-to-use-signature-version-4, not from
the client.
"""

import hashlib
import hmac
import xml.etree.ElementTree as ET
from base64 import b64encode
from email.utils import formatdate
from time import time
from urllib.parse import quote, urlsplit

from support.store_servers.bucket_double import Bucket, ErrorReply, StoredObject

KEY, SECRET, REGION = "oss-key", "oss-secret", "cn-hangzhou"
_ALWAYS_SIGNED = {"content-type", "content-md5"}


class OssBucket(Bucket):
    meta_prefix = "x-oss-meta-"
    secrets = {KEY: SECRET}  # noqa: RUF012 - tests add to it
    tokens: dict[str, str] = {}  # noqa: RUF012 - a key that must come with a token

    def check(self) -> None:
        header = self.headers.get("authorization", "")
        if not header.startswith("OSS4-HMAC-SHA256 "):
            raise ErrorReply(403, "InvalidArgument", "V1 signatures are refused")
        fields = dict(pair.split("=", 1) for pair in header.removeprefix("OSS4-HMAC-SHA256 ").split(","))
        key, day, region, product, kind = fields["Credential"].split("/")
        if (region, product, kind) != (REGION, "oss", "aliyun_v4_request"):
            raise ErrorReply(403, "InvalidArgument", "signed for another region")
        if key not in self.secrets:
            raise ErrorReply(403, "InvalidAccessKeyId")
        if key in self.tokens and self.headers.get("x-oss-security-token") != self.tokens[key]:
            raise ErrorReply(403, "InvalidSecurityToken")
        if not hmac.compare_digest(self._signature(self.secrets[key], day, fields), fields["Signature"]):
            raise ErrorReply(403, "SignatureDoesNotMatch")

    def _signature(self, secret: str, day: str, fields: dict[str, str]) -> str:
        additional = [name for name in fields.get("AdditionalHeaders", "").split(";") if name]
        headers = {name.lower(): value.strip() for name, value in self.headers.items()}
        signed = {n: v for n, v in headers.items() if n in _ALWAYS_SIGNED or n.startswith("x-oss-") or n in additional}
        pairs = sorted(pair.partition("=") for pair in urlsplit(self.path).query.split("&") if pair)
        request = "\n".join(
            (
                self.command,
                quote(f"/{self.bucket}/{self.key}", safe="/~"),
                "&".join(f"{name}={value}" if equals and value else name for name, equals, value in pairs),
                "".join(f"{name}:{signed[name]}\n" for name in sorted(signed)),
                ";".join(additional),
                headers["x-oss-content-sha256"],
            )
        )
        scope = f"{day}/{REGION}/oss/aliyun_v4_request"
        text = f"OSS4-HMAC-SHA256\n{headers['x-oss-date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signing_key = f"aliyun_v4{secret}".encode()
        for step in (day, REGION, "oss", "aliyun_v4_request"):
            signing_key = hmac.digest(signing_key, step.encode(), "sha256")
        return hmac.digest(signing_key, text.encode(), "sha256").hex()

    def check_write(self, existing: StoredObject | None) -> None:
        if existing and self.headers.get("x-oss-forbid-overwrite") == "true":
            raise ErrorReply(409, "FileAlreadyExists")

    def _read(self, objects: dict[str, StoredObject]) -> None:
        """Require standard range behavior: without it, OSS returns the whole object for an unsatisfiable range."""
        if "range" in self.headers and self.headers.get("x-oss-range-behavior") != "standard":
            raise ErrorReply(400, "InvalidArgument", "send x-oss-range-behavior: standard")
        super()._read(objects)

    def _dispatch(self, objects: dict[str, StoredObject]) -> None:
        if self.command == "POST" and not self.key and "delete" in self.query:
            self._delete_multiple(objects)
        else:
            super()._dispatch(objects)

    def _delete_multiple(self, objects: dict[str, StoredObject]) -> None:
        """Delete up to 1,000 keys (DeleteMultipleObjects). The request needs a digest of its body and quiet mode."""
        digest = b64encode(hashlib.md5(self.body, usedforsecurity=False).digest()).decode()
        if self.headers.get("content-md5") != digest:
            raise ErrorReply(400, "InvalidDigest")
        request = ET.fromstring(self.body)  # noqa: S314
        keys = [key.text or "" for key in request.iter("Key")]
        if len(keys) > 1000 or request.findtext("Quiet") != "true":
            raise ErrorReply(400, "MalformedXML")
        for key in keys:
            objects.pop(key, None)
        self._reply(200, b"", {"x-oss-request-id": "0" * 24})

    def extra_headers(self, stored: StoredObject) -> dict[str, str]:
        return {"date": formatdate(time(), usegmt=True), "x-oss-request-id": "0" * 24}
