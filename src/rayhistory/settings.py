"""All settings of the three programs, declared once.

The fields of `Settings` are the table: flags, environment variables, `--help` and `docs/configuration.md` are made
from it. `collector` and `historyserver` take KubeRay's names of both generations, and in them the environment wins
over flags, as it does there; in `rayhistory` flags win. Every setting can also be given as `RAYHISTORY_<NAME>`.
"""

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from rayhistory.errors import Misconfigured, UsageError

COLLECTOR, SERVER, STORE_COMMANDS = "collector", "historyserver", "rayhistory"
MOUNTED_CONFIG = Path("/var/collector-config/data")
MOUNTED_DASHBOARDS = Path("/dashboard")
ENVIRONMENT_WINS = {COLLECTOR, SERVER}

_EVERYWHERE = frozenset({COLLECTOR, SERVER, STORE_COMMANDS})
_BOTH = frozenset({COLLECTOR, SERVER})
_COLLECTOR = frozenset({COLLECTOR})
_SERVER = frozenset({SERVER})
_ASKING = frozenset({COLLECTOR, STORE_COMMANDS})
_SERVING = frozenset({SERVER, STORE_COMMANDS})


def parse_bool(text: str) -> bool:
    if text in {"1", "t", "T", "TRUE", "true", "True"}:
        return True
    if text in {"0", "f", "F", "FALSE", "false", "False"}:
        return False
    raise ValueError("use true or false")


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds from a Go duration such as 30s, 5m or 1h30m."""
    parts = re.findall(r"([0-9.]+)(ns|us|ms|s|m|h)", text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError("use a duration such as 30s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


_SIZES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_size(text: str) -> int:
    """Bytes from a Kubernetes quantity such as 512Mi, 2Gi or 2e9."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)", text)
    if not match:
        raise ValueError("use a size such as 512Mi or 2Gi")
    return int(float(match[1]) * _SIZES[match[2]])


def parse_port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise ValueError("use a port number from 0 to 65535")
    return int(text)


def parse_positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise ValueError("use a whole number above 0")
    return int(text)


def parse_list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def parse_http_url(text: str) -> str:
    url = text.strip().rstrip("/")
    if not re.fullmatch(r"https?://[^/?#\s\\]+(/[^?#\s\\]*)?", url):
        raise ValueError("use an address such as https://grafana.example.com, without ? and #")
    return url


def parse_role(text: str) -> str:
    role = text.strip().capitalize()
    if role not in {"Head", "Worker"}:
        raise ValueError("use Head or Worker")
    return role


_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\Z")


def parse_name(text: str) -> str:
    """A DNS-1123 name, as Kubernetes has them: KubeRay's keys are joined with `_` and depend on that."""
    name = text.strip()
    if len(name) > 253 or not _DNS_NAME.match(name):
        raise ValueError("use lower-case letters, digits, '-' and '.'")
    return name


def parse_log_layout(text: str) -> str:
    layout = text.strip().lower()
    if layout not in {"both", "packs", "plain"}:
        raise ValueError("use both, packs or plain")
    return layout


def parse_storage_layout(text: str) -> str:
    release = text.strip().lower()
    if release not in {"v1.6", "v1.7"}:
        raise ValueError("use v1.6 or v1.7")
    return release


def parse_owner_kind(text: str) -> str:
    kind = text.strip().lower()
    if kind not in {"rayjob", "rayservice"}:
        raise ValueError("use rayjob or rayservice")
    return kind


BACKEND_OF_SCHEME = {"file": "local", "s3": "s3", "gs": "gcs", "az": "azureblob", "oss": "aliyunoss"}
"""A scheme that is not here is the name of its backend, so that others can add theirs."""


def parse_store(text: str) -> str:
    """A store's URL; a plain directory is made into one."""
    url = text.strip() if "://" in text else Path(text.strip()).expanduser().absolute().as_uri()
    scheme, _, rest = url.partition("://")
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError("use file:///directory, with three slashes")
    if not rest.strip("/"):
        raise ValueError(f"name a bucket: {scheme}://bucket/prefix")
    if "?" in rest or "@" in rest.partition("/")[0]:
        raise ValueError("give credentials and endpoints by the cloud's own variables, not in the URL")
    return url


def parse_auth(text: str) -> str:
    mode = text.strip().lower()
    if mode not in {"none", "token", "kubernetes", "proxy"}:
        raise ValueError("use none, token, kubernetes or proxy")
    return mode


def parse_number(text: str) -> int:
    if not text.isdigit():
        raise ValueError("use a whole number")
    return int(text)


def parse_level(text: str) -> str:
    if text.lower() not in {"debug", "info", "warning", "error"}:
        raise ValueError("use debug, info, warning or error")
    return text.lower()


def default_data_dir() -> str:
    base = os.environ.get("XDG_DATA_HOME") or str(Path("~/.local/share").expanduser())
    return str(Path(base) / "rayhistory")


def default_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return str(Path(base) / "rayhistory")


@dataclasses.dataclass(frozen=True)
class Declared:
    """What the table knows of one setting besides its name, type and default."""

    text: str
    programs: frozenset[str]
    parse: Callable[[str], Any]
    env: tuple[str, ...]
    flags: tuple[str, ...]
    metavar: str
    unused: bool


def _setting(
    default: Any,
    text: str,
    programs: frozenset[str],
    *,
    parse: Callable[[str], Any] = str,
    env: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    flag: bool = True,
    metavar: str = "VALUE",
    unused: bool = False,
) -> Any:
    declared = Declared(text, programs, parse, env, also if flag else ("-",), metavar, unused)
    return dataclasses.field(default=default, metadata={"declared": declared})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The values in force. Defaults are written as a user would type them, already parsed."""

    # Where things are kept
    store: str = _setting(
        "", "where sessions are kept, as one URL: s3://bucket/prefix, gs://…, az://container/…, oss://…, file:///dir",
        _EVERYWHERE, parse=parse_store, metavar="URL",
    )  # fmt: skip
    storage_backend: str = _setting(
        "local", "kind of store: local, s3, gcs, azureblob, aliyunoss, or another installed backend", _EVERYWHERE,
        env=("STORAGE_BACKEND", "RUNTIME_CLASS_NAME"), also=("runtime-class-name",),
        parse=lambda text: text.strip().lower(), metavar="NAME",
    )  # fmt: skip
    local_storage_dir: str = _setting(
        "", "directory of the local store (default: $XDG_DATA_HOME/rayhistory)", _EVERYWHERE,
        env=("LOCAL_STORAGE_DIR",), metavar="DIR",
    )  # fmt: skip
    storage_root_dir: str = _setting(
        "", "prefix of every key in the store", _EVERYWHERE, env=("STORAGE_ROOT_DIR", "RAY_ROOT_DIR"),
        also=("ray-root-dir", "ray-root"), metavar="PREFIX",
    )  # fmt: skip
    storage_backend_config_path: str = _setting(
        "", "JSON file with the backend's settings", _EVERYWHERE,
        env=("STORAGE_BACKEND_CONFIG_PATH", "RUNTIME_CLASS_CONFIG_PATH"), also=("runtime-class-config-path",),
        metavar="FILE",
    )  # fmt: skip

    log_level: str = _setting(
        "info", "how much is said on standard error: debug, info, warning or error", _BOTH, parse=parse_level,
        metavar="LEVEL",
    )  # fmt: skip

    # What the collector collects
    role: str = _setting(
        "Worker", "Head or Worker: the head's collector also keeps the session's record and the dashboard's answers",
        _COLLECTOR, env=("RAY_ROLE",), parse=parse_role, metavar="ROLE",
    )  # fmt: skip
    ray_head: bool = _setting(
        False, "the same as --role=Head, as early versions of the collector had it", _COLLECTOR, parse=parse_bool,
        metavar="BOOL",
    )  # fmt: skip
    ray_cluster_name: str = _setting(
        "", "name of the cluster (default: this host's name)", _COLLECTOR, env=("RAY_CLUSTER_NAME",),
        parse=parse_name, metavar="NAME",
    )  # fmt: skip
    ray_cluster_namespace: str = _setting(
        "default", "namespace of the cluster", _COLLECTOR, env=("RAY_CLUSTER_NAMESPACE",), also=("ray-cluster-id",),
        parse=parse_name, metavar="NAME",
    )  # fmt: skip
    owner_kind: str = _setting(
        "", "what created the cluster: rayjob or rayservice", _COLLECTOR, env=("OWNER_KIND",), parse=parse_owner_kind,
        metavar="KIND",
    )  # fmt: skip
    owner_name: str = _setting(
        "",
        "name of what created the cluster",
        _COLLECTOR,
        env=("OWNER_NAME",),
        parse=parse_name,
        metavar="NAME",
    )
    ray_tmp_root: str = _setting(
        "/tmp/ray", "Ray's temporary directory, which holds session_latest", _COLLECTOR,  # noqa: S108
        env=("RAY_TMP_ROOT",), metavar="DIR",
    )  # fmt: skip
    enable_event_collector: bool = _setting(
        True, "take events", _COLLECTOR, env=("ENABLE_EVENT_COLLECTOR",), parse=parse_bool, metavar="BOOL"
    )
    enable_log_collector: bool = _setting(
        True, "keep logs, the session's record and the dashboard's answers", _COLLECTOR,
        env=("ENABLE_LOG_COLLECTOR",), parse=parse_bool, metavar="BOOL",
    )  # fmt: skip

    # How the collector takes events
    events_port: int = _setting(
        8084, "port of POST /v1/events, /livez, /readyz and /metrics", _COLLECTOR, env=("EVENTS_PORT",),
        parse=parse_port, metavar="PORT",
    )  # fmt: skip
    events_host: str = _setting("0.0.0.0", "address to listen on", _COLLECTOR, metavar="ADDRESS")  # noqa: S104
    events_allow_remote: bool = _setting(
        False, "take events from other machines too, not from loopback only", _COLLECTOR, parse=parse_bool,
        metavar="BOOL",
    )  # fmt: skip
    events_token: str = _setting(
        "", "take only POSTs of events that carry this as Authorization: Bearer", _COLLECTOR, metavar="TOKEN"
    )
    events_max_body: int = _setting(
        64 * 2**20, "largest body of one POST", _COLLECTOR, parse=parse_size, metavar="SIZE"
    )
    event_data_dir: str = _setting(
        "", "local spool (default: <ray-tmp-root>/event-data)", _COLLECTOR,
        env=("RAY_COLLECTOR_EVENT_DATA_DIR",), metavar="DIR",
    )  # fmt: skip
    event_rotation_interval: float = _setting(
        300.0, "age at which a spool file becomes objects", _COLLECTOR, env=("RAY_COLLECTOR_EVENT_ROTATION_INTERVAL",),
        parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    event_max_file_size_mb: int = _setting(
        100, "size at which a spool file becomes objects", _COLLECTOR, env=("RAY_COLLECTOR_EVENT_MAX_FILE_SIZE_MB",),
        parse=parse_positive, metavar="MB",
    )  # fmt: skip
    event_max_disk_mb: int = _setting(
        200, "disk budget of the spool; when it is spent, events are refused with 503", _COLLECTOR,
        env=("RAY_COLLECTOR_EVENT_MAX_DISK_MB",), parse=parse_positive, metavar="MB",
    )  # fmt: skip
    event_compression_enabled: bool = _setting(
        True, "gzip events on upload", _COLLECTOR, env=("RAY_COLLECTOR_EVENT_COMPRESSION_ENABLED",),
        parse=parse_bool, metavar="BOOL",
    )  # fmt: skip

    # What the head's collector asks of the dashboard
    ray_dashboard_address: str = _setting(
        "http://localhost:8265", "the dashboard that is asked for what events do not carry", _COLLECTOR,
        env=("RAY_DASHBOARD_ADDRESS",), metavar="URL",
    )  # fmt: skip
    ray_dashboard_port: int = _setting(
        8265, "port of the head's dashboard, tried at FQ_RAY_IP when no dashboard is at its address", _COLLECTOR,
        env=("RAY_DASHBOARD_PORT",), parse=parse_port, flag=False,
    )  # fmt: skip
    fq_ray_ip: str = _setting(
        "", "the head's address as KubeRay's operator sets it, with or without scheme and port", _COLLECTOR,
        env=("FQ_RAY_IP",), flag=False,
    )  # fmt: skip
    pod_ip: str = _setting(
        "", "this pod's address as KubeRay's operator sets it: the head is asked for the node that has it, once, when "
        "nothing on the node tells its id", _COLLECTOR, env=("POD_IP",), flag=False,
    )  # fmt: skip
    additional_endpoints: tuple[str, ...] = _setting(
        (), "more request URIs of the dashboard to keep, separated by commas", _COLLECTOR,
        env=("RAY_COLLECTOR_ADDITIONAL_ENDPOINTS",), parse=parse_list, metavar="URIS",
    )  # fmt: skip
    poll_interval: float = _setting(
        30.0, "how often slow-changing answers of the dashboard are kept", _COLLECTOR,
        env=("RAY_COLLECTOR_POLL_INTERVAL",), parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    storage_layout: str = _setting(
        "v1.7", "the release of KubeRay whose server should be able to read the store: v1.6 or v1.7", _COLLECTOR,
        parse=parse_storage_layout, metavar="RELEASE",
    )  # fmt: skip
    log_interval: float = _setting(
        5.0, "how often new events and what was appended to log files are uploaded", _COLLECTOR, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip
    log_layout: str = _setting(
        "both", "how logs are kept: packs (of what was appended, all files in one object, while the session runs), "
        "plain (whole files, as KubeRay's), or both (packs, and at the end whole files too); with plain, events leave "
        "the node only when their spool file is rotated", _COLLECTOR,
        parse=parse_log_layout, metavar="LAYOUT",
    )  # fmt: skip
    log_plain_limit: int = _setting(
        64 * 2**20, "with both: larger files are kept in packs only", _COLLECTOR, parse=parse_size, metavar="SIZE"
    )
    metrics_interval: float = _setting(
        15.0, "how often the node's metrics are sampled; 0 switches it off", _COLLECTOR, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip
    metrics_skip: tuple[str, ...] = _setting(
        ("python_", "process_", "target_info", "ray_grpc_", "ray_operation_", "ray_io_context_", "ray_internal_",
         "ray_gcs_storage_", "ray_aggregator_agent_", "ray_component_rss_mb", "ray_component_uss_mb"),
        "beginnings of names of metrics that are not sampled, separated by commas", _COLLECTOR, parse=parse_list,
        metavar="NAMES",
    )  # fmt: skip
    heartbeat_interval: float = _setting(
        30.0, "how often the head's collector says that the session is alive", _COLLECTOR, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip
    grace_period: float = _setting(
        30.0, "time between SIGTERM and SIGKILL; the collector is done before", _COLLECTOR, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip
    ray_auth_mode: str = _setting("", "Ray's authentication mode", _ASKING, env=("RAY_AUTH_MODE",), flag=False)
    ray_auth_token: str = _setting("", "token for the dashboard", _ASKING, env=("RAY_AUTH_TOKEN",), flag=False)
    ray_enable_k8s_token_auth: bool = _setting(
        False, "use the projected service account token for the dashboard", _ASKING,
        env=("RAY_ENABLE_K8S_TOKEN_AUTH",), parse=parse_bool, flag=False,
    )  # fmt: skip
    log_batching: int = _setting(1000, "", _COLLECTOR, env=("LOG_BATCHING",), parse=parse_positive, unused=True)
    push_interval: float = _setting(60.0, "", _COLLECTOR, env=("PUSH_INTERVAL",), parse=parse_duration, unused=True)

    # How the server serves
    port: int = _setting(8080, "port to listen on", _SERVING, parse=parse_port, metavar="PORT")
    host: str = _setting(
        "", "address to listen on (default: all for historyserver, 127.0.0.1 for rayhistory)", _SERVING,
        metavar="ADDRESS",
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = _setting(
        (), "accept only these Host headers, separated by commas (default: any)", _SERVING, parse=parse_list,
        metavar="HOSTS",
    )  # fmt: skip
    cors_origins: tuple[str, ...] = _setting(
        (), "origins whose pages may read the API, as https://grafana.example.com, separated by commas; * is any "
        "(default: none)", _SERVING, parse=parse_list, metavar="ORIGINS",
    )  # fmt: skip
    dashboard_dir: str = _setting(
        "", "directory of Ray Dashboard frontends, one per version, or of a single one for all sessions; that of an "
        "installed Ray is there too (default: /dashboard if it exists, else dashboards in the cache directory)",
        _SERVING, metavar="DIR",
    )  # fmt: skip
    grafana_url: str = _setting(
        "", "address of a Grafana with the metrics of the clusters, as browsers reach it (default: none)", _SERVING,
        parse=parse_http_url, metavar="URL",
    )  # fmt: skip
    cache_dir: str = _setting(
        "", "local copies of indexes (default: $XDG_CACHE_HOME/rayhistory)", _SERVING, metavar="DIR"
    )
    cache_size: int = _setting(
        10 * 2**30, "how much of the disk local copies of indexes may take, "
        "and half as much again the indexes of a store that refuses writes", _SERVING, parse=parse_size, metavar="SIZE",
    )  # fmt: skip
    fold_memory: int = _setting(2**30, "memory for folding one session", _SERVING, parse=parse_size, metavar="SIZE")
    index_ahead: bool = _setting(
        True,
        "index sessions as they grow and end, before anybody opens them",
        _SERVING,
        parse=parse_bool,
        metavar="BOOL",
    )
    folds: int = _setting(2, "sessions folded at the same time", _SERVING, parse=parse_positive, metavar="N")
    vanished_after: float = _setting(
        120.0, "a session without a sign of life for this long has vanished", _SERVING, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip

    # Who may see what
    auth: str = _setting(
        "none", "how visitors are known: none (everybody sees everything), token, kubernetes or proxy", _SERVING,
        parse=parse_auth, metavar="MODE",
    )  # fmt: skip
    access_file: str = _setting(
        "", "who may see which namespaces, for --auth=token and --auth=proxy (docs/access.md)", _SERVING, metavar="FILE"
    )
    auth_audiences: tuple[str, ...] = _setting(
        (), "with --auth=kubernetes: tokens must be meant for one of these audiences (default: the API server's)",
        _SERVER, parse=parse_list, metavar="NAMES",
    )  # fmt: skip
    trusted_proxies: tuple[str, ...] = _setting(
        (), "addresses and networks of proxies whose X-Forwarded-… headers count (default: none)", _SERVING,
        parse=parse_list, metavar="ADDRESSES",
    )  # fmt: skip
    user_header: str = _setting(
        "X-Forwarded-User", "with --auth=proxy: the header that names the visitor", _SERVING, metavar="NAME"
    )
    groups_header: str = _setting(
        "X-Forwarded-Groups", "with --auth=proxy: the header with the visitor's groups, separated by commas", _SERVING,
        metavar="NAME",
    )  # fmt: skip
    tls_cert: str = _setting(
        "", "certificate chain to serve HTTPS with; it is loaded again when it changes", _SERVING, metavar="FILE"
    )
    tls_key: str = _setting("", "private key of --tls-cert", _SERVING, metavar="FILE")
    audit_log: str = _setting(
        "", "file for the lines that say who opened what (default: with the other lines)", _SERVING, metavar="FILE"
    )
    expensive_calls: int = _setting(
        3000, "how many expensive calls one visitor may make in a minute; 0 is no limit", _SERVING, parse=parse_number,
        metavar="N",
    )  # fmt: skip

    # Clusters that are alive
    discover: bool = _setting(
        True, "watch RayClusters, RayJobs and RayServices where there is Kubernetes", _SERVING, parse=parse_bool,
        metavar="BOOL",
    )  # fmt: skip
    live: bool = _setting(
        False, "let /s/…/live/ read from the dashboards of running clusters, not only from the store", _SERVING,
        parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    kubeconfigs: str = _setting(
        "", "kubeconfig file for the Kubernetes API (default: the pod's service account, if there is one)", _SERVER,
        metavar="FILE",
    )  # fmt: skip
    kubernetes_namespaces: tuple[str, ...] = _setting(
        (), "watch Ray's resources in these namespaces only (default: in all)", _SERVER, parse=parse_list,
        metavar="NAMES",
    )  # fmt: skip
    use_kubernetes_proxy: bool = _setting(
        False, "with --live: reach dashboards through the Kubernetes API, not by the names of their services", _SERVER,
        parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    use_auth_token_mode: bool = _setting(
        False, "with --live: pass the token with which visitors are signed in here on to the clusters they open",
        _SERVER, parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    kube_api_qps: str = _setting("100", "", _SERVER, unused=True)
    kube_api_burst: str = _setting("200", "", _SERVER, unused=True)
    session_process_timeout: float = _setting(120.0, "", _SERVER, parse=parse_duration, unused=True)
    session_cache_size: str = _setting("100", "", _SERVER, unused=True)
    session_cache_max_memory: str = _setting("2Gi", "", _SERVER, unused=True)
    session_cache_ttl: str = _setting("0", "", _SERVER, unused=True)


def declared() -> list[tuple[str, Any, Declared]]:
    """The table: name, default, and the rest."""
    return [(field.name, field.default, field.metadata["declared"]) for field in dataclasses.fields(Settings)]


def own_variable(name: str) -> str:
    return f"RAYHISTORY_{name.upper()}"


def flag_names(name: str, setting: Declared) -> list[str]:
    """Every spelling of the flag, ours first; Go's single dash included."""
    if setting.flags == ("-",):
        return []
    names = [name.replace("_", "-"), *setting.flags]
    return [dashes + spelling for spelling in names for dashes in ("--", "-")]


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and without abbreviations."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        message = message.replace("unrecognized arguments:", "unknown flag or argument:")
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(2)


def add_flags(parser: argparse.ArgumentParser, program: str, names: frozenset[str] | None = None) -> None:
    """Gives the parser the flags of a program, or only those of the named settings."""
    for name, default, setting in declared():
        flags = flag_names(name, setting)
        if program not in setting.programs or not flags or (names is not None and name not in names):
            continue
        shown, *spellings = flags
        text = argparse.SUPPRESS if setting.unused else _help_line(name, default, setting)
        for group, description in (([shown], text), (spellings, argparse.SUPPRESS)):
            parser.add_argument(
                *group,
                dest=f"setting_{name}",
                metavar=setting.metavar,
                default=argparse.SUPPRESS,
                help=description,
                **_optional_value(setting),
            )


def _optional_value(setting: Declared) -> dict[str, Any]:
    """A flag that is true or false may stand alone, as in Go."""
    return {"nargs": "?", "const": "true"} if setting.parse is parse_bool else {}


def _help_line(name: str, default: Any, setting: Declared) -> str:
    variables = ", ".join((*setting.env, own_variable(name)))
    shown = "" if default in ("", ()) or "(default" in setting.text else f" (default: {show(default)})"
    return f"{setting.text}{shown} [{variables}]".replace("%", "%%")


def show(value: Any) -> str:
    """A default, as a user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}s"
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value // 2**20}Mi"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def resolve(
    program: str, arguments: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> tuple[Settings, list[str]]:
    """Settings from parsed arguments and the environment, with warnings about what was not taken.

    A variable of KubeRay's with a value that cannot be read is not taken, as there: a sidecar must not crash-loop.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for name, _, setting in declared():
        if program not in setting.programs:
            continue
        from_flag = _from_flag(name, setting, arguments)
        from_env = _from_environment(name, setting, environ, warnings)
        order = [from_flag, from_env] if program in ENVIRONMENT_WINS else [from_env, from_flag]
        for found in order:
            if found is not None:
                values[name] = found
        if setting.unused and from_flag is not None:
            warnings.append(f"--{name.replace('_', '-')} is accepted for compatibility and has no effect")
    return _checked(Settings(**_from_store_url(values))), warnings


def _from_flag(name: str, setting: Declared, arguments: Mapping[str, Any]) -> Any:
    text = arguments.get(f"setting_{name}")
    if text is None:
        return None
    try:
        return setting.parse(text)
    except ValueError as error:
        raise Misconfigured(f"--{name.replace('_', '-')}={text}: {error}") from None


def _from_environment(name: str, setting: Declared, environ: Mapping[str, str], warnings: list[str]) -> Any:
    own = environ.get(own_variable(name), "")
    if own and "://" in own and setting.parse is parse_port:
        own = ""  # Kubernetes sets …_PORT=tcp://… for every Service: it is not meant for us
    if own:
        try:
            return setting.parse(own)
        except ValueError as error:
            raise Misconfigured(f"{own_variable(name)}={own}: {error}") from None
    for variable in setting.env:
        text = environ.get(variable, "")
        if not text:
            continue
        try:
            return setting.parse(text)
        except ValueError as error:
            if setting.parse in (parse_role, parse_name, parse_owner_kind):
                raise Misconfigured(f"{variable}={text}: {error}") from None
            warnings.append(f"{variable}={text} is ignored: {error}")
    return None


def _from_store_url(values: dict[str, Any]) -> dict[str, Any]:
    """What the store's URL says, as the settings that it stands for. Saying a thing twice is fine if it is the same."""
    url: str = values.get("store", "")
    if not url:
        return values
    scheme, _, rest = url.partition("://")
    said = {"storage_backend": BACKEND_OF_SCHEME.get(scheme, scheme)}
    if scheme == "file":
        said["local_storage_dir"] = unquote(rest)
    elif prefix := rest.partition("/")[2].strip("/"):
        said["storage_root_dir"] = prefix
    for name, value in said.items():
        other = values.get(name)
        if other and other.strip("/") != value.strip("/"):
            variable = name.upper()
            raise Misconfigured(f"--store={url} and {variable}={other} contradict each other: give one of them")
    return values | said


def _checked(settings: Settings) -> Settings:
    if bool(settings.owner_kind) != bool(settings.owner_name):
        raise Misconfigured("give both OWNER_KIND and OWNER_NAME, or neither")
    if not (settings.enable_event_collector or settings.enable_log_collector):
        raise Misconfigured("ENABLE_EVENT_COLLECTOR and ENABLE_LOG_COLLECTOR are both off: nothing to collect")
    cache_dir = settings.cache_dir or default_cache_dir()
    return dataclasses.replace(
        settings,
        local_storage_dir=settings.local_storage_dir or default_data_dir(),
        cache_dir=cache_dir,
        dashboard_dir=settings.dashboard_dir or _dashboards(cache_dir),
        event_data_dir=settings.event_data_dir or str(Path(settings.ray_tmp_root) / "event-data"),
        role="Head" if settings.ray_head else settings.role,
        storage_backend_config_path=settings.storage_backend_config_path or _mounted_config(),
    )


def _mounted_config() -> str:
    """Where early versions of the collector looked when they were not told."""
    return str(MOUNTED_CONFIG) if MOUNTED_CONFIG.is_file() else ""


def _dashboards(cache_dir: str) -> str:
    """Where images have them, else where they can be written."""
    return str(MOUNTED_DASHBOARDS if MOUNTED_DASHBOARDS.is_dir() else Path(cache_dir) / "dashboards")


def parse_command_line(program: str, argv: Sequence[str], description: str) -> tuple[Settings, list[str]]:
    """For `collector` and `historyserver`, which have flags only."""
    parser = Parser(prog=program, description=description)
    add_flags(parser, program)
    try:
        return resolve(program, vars(parser.parse_args(argv)))
    except UsageError as error:
        parser.error(str(error))
