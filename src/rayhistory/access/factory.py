"""Create the access mode that `--auth` names."""

import logging
from pathlib import Path

from rayhistory.access.modes.kubernetes import KubernetesAccess
from rayhistory.access.modes.none import OpenAccess
from rayhistory.access.modes.proxy import ProxyAccess
from rayhistory.access.modes.token import TokenAccess
from rayhistory.access.rules_file import RulesFile
from rayhistory.access.trusted_proxies import TrustedProxies
from rayhistory.access.visitor import Access
from rayhistory.errors import InvalidSetting
from rayhistory.kubernetes_api import KubernetesApi
from rayhistory.settings.table import Settings

log = logging.getLogger(__name__)


def open_access(settings: Settings, kubernetes: KubernetesApi | None) -> Access:
    if settings.auth == "token":
        return TokenAccess(_rules_file(settings))
    if settings.auth == "proxy":
        if not settings.trusted_proxies:
            raise InvalidSetting(
                "--auth=proxy needs --trusted-proxies (the addresses of the proxy that signs users in)"
            )
        proxies = TrustedProxies(settings.trusted_proxies)
        if (ranges := proxies.networks.ranges()) and not settings.proxy_secret:
            log.warning(
                "every address in a range of --trusted-proxies can sign in as any user; list exact addresses, or set "
                "--proxy-secret",
                extra={"ranges": ranges},
            )
        return ProxyAccess(
            _rules_file(settings), proxies, settings.user_header, settings.groups_header, settings.proxy_secret
        )
    if settings.auth == "kubernetes":
        if kubernetes is None:
            raise InvalidSetting("--auth=kubernetes needs a Kubernetes API: run in a pod, or set --kubeconfigs")
        return KubernetesAccess(kubernetes, settings.auth_audiences)
    if settings.auth == "none":
        return OpenAccess()
    raise InvalidSetting(f"--auth={settings.auth}: no such mode")


def _rules_file(settings: Settings) -> RulesFile:
    if not settings.access_file:
        raise InvalidSetting(f"--auth={settings.auth} needs --access-file (which visitors see which namespaces)")
    return RulesFile(Path(settings.access_file).expanduser())
