"""A double of all clouds' credential endpoints: metadata servers and token services.

One server plays them all, because their paths differ. The store doubles accept what it issues.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

ISSUED, ISSUED_SECRET, SESSION, BEARER = "issued-key", "issued-secret", "issued-session", "issued-bearer"
ASSERTION = "the pod's own token"
_EXPIRY = "2099-01-01T00:00:00Z"


class _Tokens(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "TokenServer"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        form = dict(parse_qsl(self.rfile.read(int(self.headers.get("content-length") or 0)).decode()))
        query = dict(parse_qsl(parts.query))
        self.server.requests.append(parts.path)
        body = self._response(parts.path, query, form)
        self.send_response(403 if body is None else 200)
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_POST = do_GET  # noqa: N815

    def _response(self, path: str, query: dict[str, str], form: dict[str, str]) -> object:
        aws = {"AccessKeyId": ISSUED, "SecretAccessKey": ISSUED_SECRET, "Token": SESSION, "Expiration": _EXPIRY}
        oss = {"AccessKeyId": ISSUED, "AccessKeySecret": ISSUED_SECRET, "SecurityToken": SESSION, "Expiration": _EXPIRY}
        bearer = {"access_token": BEARER, "token_type": "Bearer", "expires_in": 3600, "expires_on": "4000000000"}
        token = self.headers.get("x-aws-ec2-metadata-token") or self.headers.get("x-aliyun-ecs-metadata-token")
        match path:
            case "/latest/api/token":
                return "metadata-token"
            case "/latest/meta-data/iam/security-credentials/" | "/latest/meta-data/ram/security-credentials/":
                return "a-role" if token == "metadata-token" else None
            case "/latest/meta-data/iam/security-credentials/a-role":
                return {**aws, "Code": "Success"} if token == "metadata-token" else None
            case "/latest/meta-data/ram/security-credentials/a-role":
                return {**oss, "Code": "Success"} if token == "metadata-token" else None
            case "/v1/credentials":  # EKS pod identity
                return aws if self.headers.get("authorization") == ASSERTION else None
            case "/a-tenant/oauth2/v2.0/token":
                return bearer if form.get("client_assertion") == ASSERTION else None
            case "/msi/token":
                return bearer
            case "/" if query.get("Action") == "AssumeRoleWithOIDC":
                return {"Credentials": oss} if form.get("OIDCToken") == ASSERTION else None
        return None

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass


class TokenServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tokens)
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def token_server() -> Iterator[TokenServer]:
    server = TokenServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
