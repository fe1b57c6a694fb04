"""DNS-1123 names, as Kubernetes uses them for namespaces and clusters.

KubeRay joins such names with `_` in bucket keys, so a name must never contain an underscore.
"""

import re

MAX_NAME_LENGTH = 253
MAX_CLUSTER_NAME_LENGTH = 63

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\Z")
_FALLBACK_CLUSTER_NAME = "local"


def parse_dns_name(text: str) -> str:
    """Return the name without surrounding whitespace; raise ValueError unless it is a DNS-1123 subdomain."""
    name = text.strip()
    if len(name) > MAX_NAME_LENGTH or not _DNS_NAME.match(name):
        raise ValueError("use lower-case letters, digits, '-' and '.'")
    return name


def cluster_name_from(text: str) -> str:
    """Return a cluster name for a host or a script: lower case, with `-` for characters that DNS-1123 forbids.

    A valid name of at most 63 characters is returned unchanged.
    """
    labels = (re.sub(r"[^a-z0-9-]+", "-", label.lower()).strip("-") for label in text.split("."))
    name = ".".join(label for label in labels if label)
    return name[:MAX_CLUSTER_NAME_LENGTH].strip("-.") or _FALLBACK_CLUSTER_NAME
