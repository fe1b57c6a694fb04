"""Hostile input (path traversal, header injection, malformed requests), and clients that send it unchanged."""

import http.client
import re
import socket
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

import rayhistory.server

CANARY = "canary-7f3a-secret"
INJECTED = "X-Injected"
_IDLE_TIMEOUT_S = 1.0

UP = "../" * 12
NAMES = {
    "up": "../secret.txt",
    "far up": f"{UP}etc/passwd",
    "encoded slash": "..%2fsecret.txt",
    "encoded dots": "%2e%2e/secret.txt",
    "all encoded": "%2e%2e%2fsecret.txt",
    "encoded twice": "..%252fsecret.txt",
    "all encoded twice": "%252e%252e%252fsecret.txt",
    "encoded three times": "%25252e%25252e%25252fsecret.txt",
    "overlong dots": "%c0%ae%c0%ae%c0%afsecret.txt",
    "utf-16 escapes": "%u002e%u002e%u2215secret.txt",
    "full-width dots": "%ef%bc%8e%ef%bc%8e%ef%bc%8fsecret.txt",
    "two dot leader": "%e2%80%a5/secret.txt",
    "fraction slash": "..%e2%81%84secret.txt",
    "backslash": "..%5csecret.txt",
    "backslash encoded twice": "..%255csecret.txt",
    "doubled": "....//....//secret.txt",
    "semicolon": "..;/secret.txt",
    "semicolon before": ";/../secret.txt",
    "semicolon encoded": "..%3b%2fsecret.txt",
    "fragment": "%23/../../secret.txt",
    "question": "%3f/../../secret.txt",
    "absolute": "/etc/passwd",
    "absolute, encoded": "%2fetc%2fpasswd",
    "two slashes": "//etc/passwd",
    "file address": "file:///etc/passwd",
    "link-local address": "http://169.254.169.254/latest/meta-data/",
    "nul": "%00",
    "nul inside": "secret.txt%00.log",
    "nul after up": "..%00/secret.txt",
    "header": f"x%0d%0a{INJECTED}:%201",
    "header, only newline": f"x%0a{INJECTED}:%201",
    "header, encoded twice": f"x%250d%250a{INJECTED}:%201",
    "header, unicode newlines": f"x%e5%98%8a%e5%98%8d{INJECTED}:%201",
    "control": "%01%1b%5b2J%7f",
    "not utf-8": "%ff%fe%80",
    "half a surrogate": "%ed%a0%80",
    "right to left": "%e2%80%aetxt.terces",
    "combining": "e%cc%81" * 40,
    "percent": "%25",
    "broken percent": "%zz%",
    "long": "a" * 4_000,
    "long path": "a/" * 2_000,
    "dots only": "..",
    "dot": ".",
    "empty": "",
    "blank": "%20",
    "sql": "x'%20OR%201=1%20--",
    "script": quote("<script>alert(1)</script>", safe=""),
    "template": "%7b%7b7*7%7d%7d%24%7bjndi:ldap://127.0.0.1:9/x%7d",
    "number": "-1",
    "huge number": "9" * 400,
    "float": "nan",
    "json": quote('{"a":[[[[]]]]}', safe=""),
    "glob": "**/*",
    "many stars": "*a" * 60,
    "brackets": "[[[!a",
}
"""Names as they are written in a request."""


class RawResponse(msgspec.Struct):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def assert_safe(self, request: str) -> None:
        """Check that the response has no secret, no injected header and no stack trace."""
        assert CANARY.encode() not in self.body, request
        assert b"root:x:0:0" not in self.body, request
        assert b"Traceback" not in self.body, request
        assert self.body != b"Internal Server Error", request
        assert not [name for name, _ in self.headers if name.lower() == INJECTED.lower()], request


class RawClient:
    """Send requests to a real server over one connection, without normalizing paths."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)

    def get(self, path: str, **headers: str) -> RawResponse:
        connection = self._connection
        connection.putrequest("GET", path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return RawResponse(response.status, response.getheaders(), response.read())

    def close(self) -> None:
        self._connection.close()


def send_raw(address: str, request: bytes) -> bytes:
    """Send these bytes and return everything received until the server closes or is idle."""
    url = urlsplit(address)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=10) as connection:
        received = b""
        try:
            connection.sendall(request)
            connection.settimeout(_IDLE_TIMEOUT_S)
            while block := connection.recv(1 << 16):
                received += block
                connection.settimeout(_IDLE_TIMEOUT_S / 3)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return received


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


def query_parameters(module: Path | None = None) -> list[str]:
    """List the query parameters that the server, or one of its modules, reads."""
    files = [module] if module else Path(rayhistory.server.__file__).parent.rglob("*.py")
    names = {name for file in files for name in re.findall(r'(?:query|params)\S*\(?"([a-z_]+)"', file.read_text())}
    return sorted(names)
