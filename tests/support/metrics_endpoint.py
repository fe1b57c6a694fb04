"""A local port that serves prepared HTTP responses, in place of a node's metrics agent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serve_responses(*responses: bytes) -> Iterator[int]:
    """Yield a port where each connection gets the next response; the last one is repeated."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        remaining = list(responses)

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    try:
                        peer.sendall(remaining.pop(0) if len(remaining) > 1 else remaining[0])
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join()


def http_response(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body) if length is None else length, body)
