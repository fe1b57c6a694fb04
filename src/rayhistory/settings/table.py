"""All settings of the three programs, declared once.

Flags, environment variables, `--help` and `docs/reference/configuration.md` are generated from the fields of
`Settings`. `collector` and `historyserver` also accept KubeRay's old and new names. Every setting can also be set as
`RAYHISTORY_<NAME>`.
"""

import dataclasses
from functools import cache

from rayhistory.names import parse_dns_name
from rayhistory.settings.parsers import (
    one_of,
    parse_bool,
    parse_duration,
    parse_http_url,
    parse_list,
    parse_number,
    parse_port,
    parse_positive,
    parse_prices,
    parse_role,
    parse_run_key,
    parse_size,
    parse_store,
)
from rayhistory.settings.setting_spec import CLI, COLLECTOR, SERVER, SettingSpec, setting

_ALL = frozenset({COLLECTOR, SERVER, CLI})
_DAEMONS = frozenset({COLLECTOR, SERVER})
_COLLECTOR = frozenset({COLLECTOR})
_SERVER = frozenset({SERVER})
_DASHBOARD_CLIENTS = frozenset({COLLECTOR, CLI})
_SERVER_AND_CLI = frozenset({SERVER, CLI})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The values of all settings."""

    # Store
    store: str = setting(
        "", "URL of the store: s3://bucket/prefix, gs://…, az://container/…, oss://…, file:///dir",
        _ALL, parse=parse_store, metavar="URL",
    )  # fmt: skip
    storage_backend: str = setting(
        "local", "type of the store: local, s3, gcs, azureblob, aliyunoss, or another installed backend", _ALL,
        env=("STORAGE_BACKEND", "RUNTIME_CLASS_NAME"), aliases=("runtime-class-name",),
        parse=lambda text: text.strip().lower(), metavar="NAME",
    )  # fmt: skip
    local_storage_dir: str = setting(
        "", "directory of the local store (default: $XDG_DATA_HOME/rayhistory)", _ALL,
        env=("LOCAL_STORAGE_DIR",), metavar="DIR",
    )  # fmt: skip
    storage_root_dir: str = setting(
        "", "prefix of all keys in the store", _ALL, env=("STORAGE_ROOT_DIR", "RAY_ROOT_DIR"),
        aliases=("ray-root-dir", "ray-root"), metavar="PREFIX",
    )  # fmt: skip
    storage_backend_config_path: str = setting(
        "", "JSON file with settings of the storage backend", _ALL,
        env=("STORAGE_BACKEND_CONFIG_PATH", "RUNTIME_CLASS_CONFIG_PATH"), aliases=("runtime-class-config-path",),
        metavar="FILE",
    )  # fmt: skip

    log_level: str = setting(
        "info", "minimum level of log messages: debug, info, warning or error", _DAEMONS,
        parse=one_of("debug", "info", "warning", "error"), metavar="LEVEL",
    )  # fmt: skip

    # Collector: identity of the node
    role: str = setting(
        "Worker", "role of the node: Head or Worker. The head's collector also stores session records and dashboard "
        "responses", _COLLECTOR, env=("RAY_ROLE",), parse=parse_role, metavar="ROLE", strict=True,
    )  # fmt: skip
    ray_head: bool = setting(
        False, "alias of --role=Head, from early versions of KubeRay's collector", _COLLECTOR, parse=parse_bool,
        metavar="BOOL",
    )  # fmt: skip
    ray_cluster_name: str = setting(
        "", "name of the cluster (default: the host name)", _COLLECTOR, env=("RAY_CLUSTER_NAME",),
        parse=parse_dns_name, metavar="NAME", strict=True,
    )  # fmt: skip
    ray_cluster_namespace: str = setting(
        "default", "namespace of the cluster", _COLLECTOR, env=("RAY_CLUSTER_NAMESPACE",), aliases=("ray-cluster-id",),
        parse=parse_dns_name, metavar="NAME", strict=True,
    )  # fmt: skip
    owner_kind: str = setting(
        "", "kind of the cluster's owner in KubeRay: rayjob or rayservice", _COLLECTOR, env=("OWNER_KIND",),
        parse=one_of("rayjob", "rayservice"), metavar="KIND", strict=True,
    )  # fmt: skip
    owner_name: str = setting(
        "", "name of the cluster's owner in KubeRay", _COLLECTOR, env=("OWNER_NAME",), parse=parse_dns_name,
        metavar="NAME", strict=True,
    )  # fmt: skip
    ray_tmp_root: str = setting(
        "/tmp/ray", "Ray's temporary directory, which contains session_latest", _COLLECTOR,  # noqa: S108
        env=("RAY_TMP_ROOT",), metavar="DIR",
    )  # fmt: skip
    enable_event_collector: bool = setting(
        True, "collect events", _COLLECTOR, env=("ENABLE_EVENT_COLLECTOR",), parse=parse_bool, metavar="BOOL"
    )
    enable_log_collector: bool = setting(
        True, "collect logs, session records and dashboard responses", _COLLECTOR,
        env=("ENABLE_LOG_COLLECTOR",), parse=parse_bool, metavar="BOOL",
    )  # fmt: skip

    # Collector: events
    events_port: int = setting(
        8084, "port for POST /v1/events, /livez, /readyz and /metrics", _COLLECTOR, env=("EVENTS_PORT",),
        parse=parse_port, metavar="PORT",
    )  # fmt: skip
    events_host: str = setting(
        "0.0.0.0", "address to listen on; `::` is IPv6 and IPv4", _COLLECTOR, metavar="ADDRESS",  # noqa: S104
    )  # fmt: skip
    events_allow_remote: bool = setting(
        False, "accept events from other hosts, not only from this host", _COLLECTOR, parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    events_token: str = setting(
        "", "token that Ray must send with events, as Authorization: Bearer", _COLLECTOR, metavar="TOKEN"
    )
    events_max_body: int = setting(
        64 * 2**20, "maximum size of a request with events", _COLLECTOR, parse=parse_size, metavar="SIZE"
    )
    event_data_dir: str = setting(
        "", "directory of the spool, where events are stored until they are uploaded (default: /var/lib/rayhistory if "
        "it exists, else below /var/tmp; in a container without a volume, <ray-tmp-root>/event-data)", _COLLECTOR,
        env=("RAY_COLLECTOR_EVENT_DATA_DIR",), metavar="DIR",
    )  # fmt: skip
    event_rotation_interval: float = setting(
        300.0, "upload a spool segment when it is this old", _COLLECTOR,
        env=("RAY_COLLECTOR_EVENT_ROTATION_INTERVAL",), parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    event_max_file_size_mb: int = setting(
        100, "upload a spool segment when it has this size", _COLLECTOR, env=("RAY_COLLECTOR_EVENT_MAX_FILE_SIZE_MB",),
        parse=parse_positive, metavar="MB",
    )  # fmt: skip
    event_max_disk_mb: int = setting(
        200, "maximum disk space of the spool. When it is full, events get 503 and Ray retries", _COLLECTOR,
        env=("RAY_COLLECTOR_EVENT_MAX_DISK_MB",), parse=parse_positive, metavar="MB",
    )  # fmt: skip
    event_compression_enabled: bool = setting(
        True, "compress events with gzip before the upload", _COLLECTOR,
        env=("RAY_COLLECTOR_EVENT_COMPRESSION_ENABLED",), parse=parse_bool, metavar="BOOL",
    )  # fmt: skip

    mask_env_vars: bool = setting(
        False, "replace the values of env_vars in runtime environments before they are stored. Log files are not "
        "changed", _COLLECTOR, parse=parse_bool, metavar="BOOL",
    )  # fmt: skip

    # Collector: the head's dashboard
    ray_dashboard_address: str = setting(
        "http://localhost:8265", "URL of the head's dashboard, which is polled for data that Ray does not export as "
        "events", _COLLECTOR, env=("RAY_DASHBOARD_ADDRESS",), metavar="URL",
    )  # fmt: skip
    ray_dashboard_port: int = setting(
        8265, "port of the head's dashboard at FQ_RAY_IP, used if RAY_DASHBOARD_ADDRESS does not respond", _COLLECTOR,
        env=("RAY_DASHBOARD_PORT",), parse=parse_port, flag=False,
    )  # fmt: skip
    fq_ray_ip: str = setting(
        "", "address of the head, with or without scheme and port. The KubeRay operator sets it", _COLLECTOR,
        env=("FQ_RAY_IP",), flag=False,
    )  # fmt: skip
    pod_ip: str = setting(
        "", "address of this pod. The KubeRay operator sets it. It is used to ask the head for the node id, if the id "
        "is not found on the node", _COLLECTOR, env=("POD_IP",), flag=False,
    )  # fmt: skip
    additional_endpoints: tuple[str, ...] = setting(
        (), "additional dashboard URIs to poll and store, separated by commas", _COLLECTOR,
        env=("RAY_COLLECTOR_ADDITIONAL_ENDPOINTS",), parse=parse_list, metavar="URIS",
    )  # fmt: skip
    poll_interval: float = setting(
        30.0, "poll interval for dashboard responses that change slowly", _COLLECTOR,
        env=("RAY_COLLECTOR_POLL_INTERVAL",), parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    storage_layout: str = setting(
        "v1.7", "KubeRay release whose history server must be able to read the store: v1.6 or v1.7", _COLLECTOR,
        parse=one_of("v1.6", "v1.7"), metavar="RELEASE",
    )  # fmt: skip

    # Collector: logs and metrics
    log_interval: float = setting(
        5.0, "upload interval for new events and log lines", _COLLECTOR, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip
    log_layout: str = setting(
        "both", "how to store logs. packs: while the session runs, new lines of all files in one object per upload. "
        "plain: whole files, as KubeRay does; events are then uploaded only when their spool segment is closed. both: "
        "packs, and whole files at the end", _COLLECTOR, parse=one_of("both", "packs", "plain"), metavar="LAYOUT",
    )  # fmt: skip
    log_plain_limit: int = setting(
        64 * 2**20, "with --log-layout=both: maximum size of log files that are also stored as whole files", _COLLECTOR,
        parse=parse_size, metavar="SIZE",
    )  # fmt: skip
    metrics_interval: float = setting(
        15.0, "scrape interval for the node's Prometheus metrics; 0 disables scraping", _COLLECTOR,
        parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    metrics_skip: tuple[str, ...] = setting(
        ("python_", "process_", "target_info", "ray_grpc_", "ray_operation_", "ray_io_context_", "ray_internal_",
         "ray_gcs_storage_", "ray_aggregator_agent_", "ray_component_rss_mb", "ray_component_uss_mb"),
        "prefixes of metrics that are not stored, separated by commas", _COLLECTOR, parse=parse_list,
        metavar="PREFIXES",
    )  # fmt: skip

    # Collector: lifetime
    heartbeat_interval: float = setting(
        30.0, "interval of the heartbeat that the head's collector writes to the store", _COLLECTOR,
        parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    grace_period: float = setting(
        30.0, "time between SIGTERM and SIGKILL. The collector exits before SIGKILL", _COLLECTOR, parse=parse_duration,
        metavar="DURATION",
    )  # fmt: skip
    ray_auth_mode: str = setting(
        "", "authentication mode of Ray, such as token", _DASHBOARD_CLIENTS, env=("RAY_AUTH_MODE",), flag=False
    )
    ray_auth_token: str = setting(
        "", "token for Ray's dashboard", _DASHBOARD_CLIENTS, env=("RAY_AUTH_TOKEN",), flag=False
    )
    ray_enable_k8s_token_auth: bool = setting(
        False, "use the pod's service account token for Ray's dashboard", _DASHBOARD_CLIENTS,
        env=("RAY_ENABLE_K8S_TOKEN_AUTH",), parse=parse_bool, flag=False,
    )  # fmt: skip
    log_batching: int = setting(1000, "", _COLLECTOR, env=("LOG_BATCHING",), parse=parse_positive, unused=True)
    push_interval: float = setting(60.0, "", _COLLECTOR, env=("PUSH_INTERVAL",), parse=parse_duration, unused=True)

    # Server
    port: int = setting(8080, "port to listen on", _SERVER_AND_CLI, parse=parse_port, metavar="PORT")
    host: str = setting(
        "",
        "address to listen on (default: 0.0.0.0 for historyserver, 127.0.0.1 for rayhistory); `::` is IPv6 and IPv4",
        _SERVER_AND_CLI, metavar="ADDRESS",
    )  # fmt: skip
    allowed_hosts: tuple[str, ...] = setting(
        (), "allowed Host headers, separated by commas (default: any)", _SERVER_AND_CLI, parse=parse_list,
        metavar="HOSTS",
    )  # fmt: skip
    cors_origins: tuple[str, ...] = setting(
        (), "origins whose pages may read the API, such as https://grafana.example.com, separated by commas; * allows "
        "all (default: none)", _SERVER_AND_CLI, parse=parse_list, metavar="ORIGINS",
    )  # fmt: skip
    dashboard_dir: str = setting(
        "", "directory of Ray Dashboard frontends: one subdirectory per Ray version, or a single frontend for all "
        "sessions. The frontend of an installed Ray is used, too (default: /dashboard if it exists, else dashboards in "
        "the cache directory)", _SERVER_AND_CLI, metavar="DIR",
    )  # fmt: skip
    sql: bool = setting(
        False, "allow SQL queries over HTTP (POST api/history/sql)", _SERVER_AND_CLI,
        parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    sql_memory: int = setting(
        512 * 2**20, "memory limit of an SQL query over HTTP", _SERVER_AND_CLI, parse=parse_size, metavar="SIZE"
    )
    sql_timeout: float = setting(
        30.0, "time limit of an SQL query over HTTP", _SERVER_AND_CLI, parse=parse_duration, metavar="DURATION"
    )
    grafana_url: str = setting(
        "", "URL of your Grafana for the Metrics page, as browsers see it (default: none)", _SERVER_AND_CLI,
        parse=parse_http_url, metavar="URL",
    )  # fmt: skip
    cache_dir: str = setting(
        "", "directory for cached index files (default: $XDG_CACHE_HOME/rayhistory)", _SERVER_AND_CLI, metavar="DIR"
    )
    cache_size: int = setting(
        10 * 2**30, "maximum disk space of cached index files. If the store is read-only, indexes that this program "
        "builds may use half as much in addition", _SERVER_AND_CLI, parse=parse_size, metavar="SIZE",
    )  # fmt: skip
    index_memory: int = setting(
        2**30, "memory limit for indexing one session", _SERVER_AND_CLI, parse=parse_size, metavar="SIZE"
    )
    index_workers: int = setting(
        2, "number of sessions indexed at the same time", _SERVER_AND_CLI, parse=parse_positive, metavar="N"
    )
    index_ahead: bool = setting(
        True, "index sessions in the background, so that they open fast; if false, a session is indexed when it is "
        "first opened", _SERVER_AND_CLI, parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    vanished_after: float = setting(
        120.0, "a running session counts as vanished if its heartbeat is older than this", _SERVER_AND_CLI,
        parse=parse_duration, metavar="DURATION",
    )  # fmt: skip
    read_legacy_layout: bool = setting(
        False, "also read sessions in the legacy layout (NAMESPACE/CLUSTER/SESSION/events.log). This costs up to "
        "10,000 listings per minute", _SERVER_AND_CLI, parse=parse_bool, metavar="BOOL",
    )  # fmt: skip

    # Runs
    run_key: str = setting(
        "auto", "how to find runs of the same job: by owner, name (from the job's metadata), entrypoint, cluster, or "
        "metadata.FIELD. auto uses the first of these that a job has", _SERVER_AND_CLI, parse=parse_run_key,
        metavar="KEY",
    )  # fmt: skip
    price: tuple[str, ...] = setting(
        (), "prices per hour of a CPU, a GPU and a GiB of memory, to show the cost of runs, such as "
        "gpu=2.5,memory=0.005", _SERVER_AND_CLI, parse=parse_prices, metavar="PRICES",
    )  # fmt: skip
    notify_rules: str = setting(
        "", "TOML file with rules for notifications about runs (docs/how-to/notifications.md)", _SERVER_AND_CLI,
        metavar="FILE",
    )  # fmt: skip
    keep_runs: bool = setting(
        False, "still list the runs of sessions that were removed", _SERVER_AND_CLI, parse=parse_bool,
        metavar="BOOL",
    )  # fmt: skip

    # Access
    auth: str = setting(
        "none", "how visitors sign in: none (everyone can read all sessions), token, kubernetes or proxy",
        _SERVER_AND_CLI, parse=one_of("none", "token", "kubernetes", "proxy"), metavar="MODE",
    )  # fmt: skip
    access_file: str = setting(
        "",
        "file with the namespaces that each visitor may see, for --auth=token and --auth=proxy (docs/how-to/access.md)",
        _SERVER_AND_CLI, metavar="FILE",
    )  # fmt: skip
    auth_audiences: tuple[str, ...] = setting(
        (), "with --auth=kubernetes: accepted token audiences (default: the API server's)",
        _SERVER, parse=parse_list, metavar="NAMES",
    )  # fmt: skip
    trusted_proxies: tuple[str, ...] = setting(
        (), "addresses and networks of reverse proxies whose X-Forwarded-* headers are trusted (default: none)",
        _SERVER_AND_CLI, parse=parse_list, metavar="ADDRESSES",
    )  # fmt: skip
    user_header: str = setting(
        "X-Forwarded-User", "with --auth=proxy: header that contains the user name", _SERVER_AND_CLI, metavar="NAME"
    )
    groups_header: str = setting(
        "X-Forwarded-Groups", "with --auth=proxy: header that contains the user's groups, separated by commas",
        _SERVER_AND_CLI, metavar="NAME",
    )  # fmt: skip
    proxy_secret: str = setting(
        "", "with --auth=proxy: secret that the proxy must send as X-Rayhistory-Proxy-Secret. Use the environment "
        "variable: other processes can read flags", _SERVER_AND_CLI, metavar="SECRET",
    )  # fmt: skip
    tls_cert: str = setting(
        "", "certificate chain file for HTTPS. It is reloaded when it changes", _SERVER_AND_CLI, metavar="FILE"
    )
    tls_key: str = setting("", "private key file for --tls-cert", _SERVER_AND_CLI, metavar="FILE")
    audit_log: str = setting(
        "", "file for the audit log (default: standard error, with other log lines)", _SERVER_AND_CLI, metavar="FILE"
    )
    rate_limit: int = setting(
        3000, "maximum number of expensive requests per visitor and minute; 0 is no limit", _SERVER_AND_CLI,
        parse=parse_number, metavar="N",
    )  # fmt: skip

    # Live clusters
    discover: bool = setting(
        True, "watch RayCluster, RayJob and RayService resources if a Kubernetes API is available", _SERVER_AND_CLI,
        parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    live: bool = setting(
        False, "serve /s/…/live/ from the dashboards of running clusters instead of the store", _SERVER_AND_CLI,
        parse=parse_bool, aliases=("enable-live-clusters",), metavar="BOOL",
    )  # fmt: skip
    live_networks: tuple[str, ...] = setting(
        ("127.0.0.0/8", "::1"), "with --live and without Kubernetes: networks, separated by commas, in which "
        "dashboards of clusters are read. Other addresses are ignored", _SERVER_AND_CLI, parse=parse_list,
        metavar="NETWORKS",
    )  # fmt: skip
    kubeconfigs: str = setting(
        "", "kubeconfig file for the Kubernetes API (default: the pod's service account)", _SERVER,
        metavar="FILE",
    )  # fmt: skip
    kubernetes_namespaces: tuple[str, ...] = setting(
        (), "namespaces in which Ray's resources are watched (default: all)", _SERVER, parse=parse_list,
        metavar="NAMES",
    )  # fmt: skip
    use_kubernetes_proxy: bool = setting(
        False, "with --live: connect to dashboards through the Kubernetes API server instead of their services",
        _SERVER, parse=parse_bool, metavar="BOOL",
    )  # fmt: skip
    use_auth_token_mode: bool = setting(
        False, "with --live: forward the visitor's token to the cluster's dashboard", _SERVER, parse=parse_bool,
        metavar="BOOL",
    )  # fmt: skip
    kube_api_qps: str = setting("100", "", _SERVER, unused=True)
    kube_api_burst: str = setting("200", "", _SERVER, unused=True)
    session_process_timeout: float = setting(120.0, "", _SERVER, parse=parse_duration, unused=True)
    session_cache_size: str = setting("100", "", _SERVER, unused=True)
    session_cache_max_memory: str = setting("2Gi", "", _SERVER, unused=True)
    session_cache_ttl: str = setting("0", "", _SERVER, unused=True)


@cache
def setting_specs() -> tuple[SettingSpec, ...]:
    """Return all declarations, in the order of the table."""
    return tuple(
        dataclasses.replace(field.metadata["spec"], name=field.name, default=field.default)
        for field in dataclasses.fields(Settings)
    )
