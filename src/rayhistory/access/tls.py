"""HTTPS with a certificate that is loaded again when its file changes, as those of Kubernetes do."""

import logging
import ssl
import threading
from pathlib import Path

from rayhistory.errors import Misconfigured

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0


class Certificate:
    """`context` serves new connections with what was loaded last."""

    def __init__(self, chain: str, key: str) -> None:
        if not (chain and key):
            raise Misconfigured("give both --tls-cert and --tls-key, or neither")
        self._chain, self._key = Path(chain), Path(key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamp = self._look()
        try:
            self._load(self.context)
        except OSError as error:
            raise Misconfigured(f"--tls-cert={chain}, --tls-key={key}: {error.strerror or error}") from None

    def watch(self, every: float = _LOOK_EVERY) -> None:
        """From now on, in a thread of its own."""
        pause = threading.Event()

        def look() -> None:
            while not pause.wait(every):
                self.load_if_changed()

        threading.Thread(target=look, name="certificate", daemon=True).start()

    def load_if_changed(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # what does not fit must not be half loaded
            self._load(self.context)
        except OSError as error:
            log.error("the new certificate is not used", extra={"reason": str(error)})  # noqa: TRY400
        else:
            log.info("a new certificate is used", extra={"file": str(self._chain)})
        self._stamp = stamp

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._chain, self._key)

    def _look(self) -> tuple[int, ...]:
        try:
            found = [path.stat() for path in (self._chain, self._key)]
        except OSError:
            return ()
        return tuple(fact for stat in found for fact in (stat.st_mtime_ns, stat.st_size, stat.st_ino))
