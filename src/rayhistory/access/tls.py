"""HTTPS with a certificate that is reloaded when its files change, as Kubernetes secrets do."""

import logging
import ssl
import threading
from pathlib import Path

from rayhistory.errors import InvalidSetting

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 5.0


class Certificate:
    """A certificate and its key. New connections of `context` use the files that were loaded last."""

    def __init__(self, chain: str, key: str) -> None:
        if not (chain and key):
            raise InvalidSetting("set both --tls-cert and --tls-key, or neither")
        self._chain, self._key = Path(chain), Path(key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._fingerprint = self._read_fingerprint()
        try:
            self._load(self.context)
        except OSError as error:
            raise InvalidSetting(f"--tls-cert={chain}, --tls-key={key}: {error.strerror or error}") from None

    def watch(self, interval: float = _POLL_INTERVAL_S) -> None:
        """Start a daemon thread that polls the files, and loads them when they have changed."""
        timer = threading.Event()

        def poll() -> None:
            while not timer.wait(interval):
                self.reload_if_changed()

        threading.Thread(target=poll, name="certificate", daemon=True).start()

    def reload_if_changed(self) -> None:
        fingerprint = self._read_fingerprint()
        if fingerprint == self._fingerprint:
            return
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a mismatch must not leave `context` half loaded
            self._load(self.context)
        except OSError as error:
            log.error("TLS certificate reload failed, using the previous certificate", extra={"reason": str(error)})  # noqa: TRY400
        else:
            log.info("TLS certificate reloaded", extra={"file": str(self._chain)})
        self._fingerprint = fingerprint

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._chain, self._key)

    def _read_fingerprint(self) -> tuple[int, ...]:
        try:
            stats = [path.stat() for path in (self._chain, self._key)]
        except OSError:
            return ()
        return tuple(value for stat in stats for value in (stat.st_mtime_ns, stat.st_size, stat.st_ino))
