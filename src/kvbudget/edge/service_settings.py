"""Decides what a gate can be told, and what holds for an engine that says nothing of it itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvbudget.edge.discovery.sources import KubernetesAccess, Sought
from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.request.keys import ApiKey
from kvbudget.edge.tokens.counting import CountingSettings
from kvbudget.edge.tracing.settings import TracingSettings
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.gate import GateConfig
from kvbudget.pool.groups import Layout


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Everything that `kvbudget serve` can be told. `pool_blocks`: blocks that requests can use (no null block).

    `layout`: the groups of a reviewed budget, for models whose layers do not all keep every token; then `block_size` is
    not used. None: one group that does. `prefix_cache_assumed`: `gate.sharing` holds even if the engine does not tell
    whether it has a prefix cache. `learned_state`: the file in which policy `learned` keeps what it has seen.
    `instances`: several engines, each by itself; else the one at `backend_url`. `sources`: where engines are found
    beside them (`kubernetes`: how its API server is asked); then there may be none else. `max_prompt_logprobs_tokens`:
    see `edge.request.prompt_logprobs`. `keys`: API keys that are asked for, by name; none: nobody is asked.
    `access_log`: a file, or `-` for stdout. `tracing`: where spans of requests go; None: there are none. `shadow`:
    decide and count only. `host`: also `unix:/path` (then `port` is not used). `tls_cert`, `tls_key`: PEM files with
    which clients are spoken to in TLS. `backend_ca`: PEM file of authorities for https backends. `backend_api_key`:
    that of the engines, if they ask for one. `proxy_protocol`: addresses from which connections begin with a PROXY
    header. `ledger`: `memory`, or the address of the one that all gates before the same engines share, with slices that
    last `lease_seconds`; `ledger_lost`: what to do when it does not answer for so long: `refuse`, or go by an equal
    part of the pool (`slice`). `workers`: processes that serve the port, each with a service of its own.
    """

    backend_url: str
    instances: tuple[InstanceSettings, ...] = ()
    fleet: FleetConfig = field(default_factory=FleetConfig)
    tokenizer: str = "engine"
    counting: CountingSettings = field(default_factory=CountingSettings)
    pool_blocks: int | None = None
    block_size: int | None = None
    layout: Layout | None = None
    gate: GateConfig = field(default_factory=GateConfig)
    default_max_tokens: int = 2048
    max_prompt_logprobs_tokens: int = 0
    host: str = "127.0.0.1"
    port: int = 8800
    workers: int = 1
    admin_host: str = "127.0.0.1"
    admin_port: int = 8801
    overload_status: int = 429
    prefix_cache_assumed: bool = False
    learned_state: str | None = None
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    access_log: str | None = None
    tracing: TracingSettings | None = None
    shadow: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    backend_ca: str | None = None
    backend_api_key: str | None = field(default=None, repr=False)
    proxy_protocol: tuple[str, ...] = ()
    admin_token: str | None = field(default=None, repr=False)
    ledger: str = field(default="memory", repr=False)  # it may have a password in it
    lease_seconds: float = 5.0
    ledger_lost: str = "refuse"
    server_limits: ServerLimits = field(default_factory=ServerLimits)
    upstream_limits: UpstreamLimits = field(default_factory=UpstreamLimits)
    sources: tuple[Sought, ...] = ()
    kubernetes: KubernetesAccess | None = None

    def each(self) -> tuple[InstanceSettings, ...]:
        """Every instance that is named, with what holds for all of them where it says nothing itself."""
        if not self.instances and not self.sources:
            return (InstanceSettings(self.backend_url, "", self.pool_blocks, self.block_size, self.layout),)
        return tuple([self.completed(one) for one in self.instances])

    def completed(self, one: InstanceSettings) -> InstanceSettings:
        """With what holds for all where it says nothing itself."""
        layout = self.layout if one.block_size is None else one.layout
        blocks = self.pool_blocks if one.pool_blocks is None else one.pool_blocks
        size = self.block_size if one.block_size is None else one.block_size
        return replace(one, pool_blocks=blocks, block_size=size, layout=layout)
