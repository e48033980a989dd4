"""Decides what flags and the reviewed budget file mean together: the settings of a gate. Flags beat the file."""

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kvbudget.cli.serving.backends import divided, instances_of, kubernetes_access
from kvbudget.cli.serving.flags import DEFAULTS, add_flags
from kvbudget.errors import BadConfigError, BadValueError, UnsupportedError, printable
from kvbudget.gate.config import GateConfig, worthwhile_wait_ns
from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Tokens, parse_length, parse_size

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from kvbudget.edge.instances.settings import InstanceSettings
    from kvbudget.edge.request.keys import ApiKey
    from kvbudget.edge.service_settings import ServiceSettings
    from kvbudget.edge.tokens.counting import CountingSettings
    from kvbudget.edge.tracing.settings import TracingSettings
    from kvbudget.planner.budget.record import Document
    from kvbudget.pool.groups import Layout

_LOWEST: dict[str, float] = {"pool_blocks": 1, "block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}
_LOWEST |= {
    "image_tokens": 1,
    "margin_blocks": 0,
    "queue_requests": 0,
    "queue_seconds": 0,
    "drain_seconds": 0,
    "slo_ttft": 0.001,
    "lease_seconds": 1,
    "workers": 1,
}
_HIGHEST = 10**12
_MOST_WORKERS = 256
_LONGEST_API_KEY = 4096
_LARGEST_BLOCK = 1 << 20  # tokens; the gate keeps a row as long as a block


def budget_given(given: argparse.Namespace) -> "Document | None":
    """The file of --config, judged whole; a table that nothing reads is named, as it may be a slip."""
    path = getattr(given, "config", None)
    if path is None:
        return None
    from kvbudget.edge.budget.file import read_budget
    from kvbudget.planner.budget.schema import unknown_tables

    budget = read_budget(path)
    if own := unknown_tables(budget):
        told = ", ".join(own)[:200]
        logging.getLogger("kvbudget").warning("%s: no table of a budget has this name, it is not read: %s", path, told)
    return budget


def completed(given: argparse.Namespace, budget: "Document | None") -> argparse.Namespace:
    """Every flag with its value: what was given, else what [gate] of --config says, else the default.

    `budget`: that file. Raises BadConfigError for a value of [gate] that its flag does not take.
    """
    flags = vars(given)
    from_file = _flags_of(budget, given.config) if budget is not None else {}
    if "backend" in flags or "embedded_engine" in flags:  # the one given here stands before another engine
        from_file = {name: value for name, value in from_file.items() if name not in ("backend", "embedded_engine")}
    return argparse.Namespace(**{**DEFAULTS, **from_file, **flags})


def settings_from(given: argparse.Namespace) -> "ServiceSettings":
    """The settings that flags and file ask for at this moment. Raises InputError."""
    budget = budget_given(given)
    return settings_of(completed(given, budget), budget)


def settings_of(args: argparse.Namespace, budget: "Document | None") -> "ServiceSettings":
    """Parse, don't validate twice: flags become settings here and nowhere else. Raises InputError.

    `args` as `completed` gives them, from the same reading of the file as `budget`: it may be edited in between.
    """
    from kvbudget.edge.bank.urls import address_of
    from kvbudget.edge.http.limits import ServerLimits
    from kvbudget.edge.service_settings import ServiceSettings

    instances = instances_of(args.backend or [], [] if args.embedded_engine else budget)
    if args.embedded_engine == bool(instances):
        raise BadValueError("give either --backend URL or --embedded-engine", fix="see kvbudget serve --help")
    if args.ledger_lost not in ("refuse", "slice"):
        raise BadValueError(f"--ledger-lost: {args.ledger_lost[:40]!r}", fix="use refuse or slice")
    if args.ledger != "memory":
        address_of(args.ledger, os.environ)
    for flag, low in _LOWEST.items():
        value = getattr(args, flag)
        high = _LARGEST_BLOCK if flag == "block_size" else _HIGHEST
        if value is not None and not low <= value <= high:  # nan is neither
            shown = flag.replace("_", "-")
            raise BadValueError(f"--{shown}: {value} is not within {low} and {high}", fix=f"give at least {low}")
    if args.tls_key is not None and args.tls_cert is None:
        raise BadValueError("--tls-key without --tls-cert", fix="give the certificate of that key")
    if args.proxy_protocol is not None and args.tls_cert is not None:
        raise BadValueError(
            "--proxy-protocol with --tls-cert: the header would come before the TLS handshake",
            fix="let the balancer speak TLS, or leave one of them away",
        )
    if args.overload_status not in (429, 503, 529):
        raise BadValueError(f"--overload-status: {args.overload_status}", fix="use 429, 503 or 529 (never 408)")
    credit = _prefix_credit(args.prefix_credit)
    named, sources = divided(instances)
    return ServiceSettings(
        backend_url=named[0].url if named else "",
        instances=() if _plain(named) and not sources else tuple(named),
        sources=sources,
        kubernetes=kubernetes_access() if sources else None,
        tokenizer=args.tokenizer,
        counting=_counting(args),
        pool_blocks=args.pool_blocks,
        block_size=args.block_size,
        layout=_layout(budget, args),
        gate=GateConfig(
            policy=_policy(args.policy),
            max_num_seqs=args.max_num_seqs,
            max_context=None if args.max_context is None else _tokens(args.max_context, "--max-context"),
            margin_blocks=args.margin_blocks,
            queue_requests=args.queue_requests,
            queue_tokens=None if args.queue_tokens is None else parse_length(args.queue_tokens, "--queue-tokens"),
            queue_ns=int(args.queue_seconds * 1e9),
            worthwhile_wait_ns=worthwhile_wait_ns(int(args.slo_ttft * 1e9)),
            prefill_tokens_per_step=prefill_tokens(args.max_num_batched_tokens, args.max_num_seqs),
            sharing=Sharing.COMPUTED if credit is None else credit,
            tenants={} if budget is None else _tenants(budget),
            classes={} if budget is None else _classes(budget),
        ),
        prefix_cache_assumed=credit is not None,
        learned_state=args.learned_state,
        keys={} if budget is None else _keys(budget),
        access_log=args.access_log,
        tracing=_tracing(args.otlp_endpoint),
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        backend_ca=args.backend_ca,
        backend_api_key=_backend_api_key(args.backend_api_key_file),
        proxy_protocol=_proxy_protocol(args.proxy_protocol),
        shadow=args.shadow,
        ledger=args.ledger,
        lease_seconds=args.lease_seconds,
        ledger_lost=args.ledger_lost,
        admin_token=os.environ.get("KVBUDGET_ADMIN_TOKEN") or None,
        default_max_tokens=_tokens(args.default_max_tokens, "--default-max-tokens"),
        max_prompt_logprobs_tokens=parse_length(args.max_prompt_logprobs_tokens, "--max-prompt-logprobs-tokens"),
        host=args.host,
        port=args.port,
        workers=_workers(args),
        admin_host=args.admin_host,
        admin_port=args.admin_port,
        overload_status=args.overload_status,
        server_limits=ServerLimits(body_bytes=parse_size(args.max_body, "--max-body")),
    )


def _tracing(endpoint: str | None) -> "TracingSettings | None":
    """Raises BadValueError."""
    from kvbudget.edge.tracing.settings import tracing_settings

    return tracing_settings(endpoint)


def _backend_api_key(path: str | None) -> str | None:
    """Raises BadConfigError, BadValueError, which tell nothing of the key."""
    key, where = os.environ.get("KVBUDGET_BACKEND_API_KEY", ""), "KVBUDGET_BACKEND_API_KEY"
    if path is not None:
        from kvbudget.edge.given_file import open_given

        where = f"--backend-api-key-file {printable(path[-200:])}"
        try:
            with open_given(path, fix="give a file that holds the key") as file:
                key = file.read(2 * _LONGEST_API_KEY).decode("ascii", "replace")
        except OSError as error:
            raise BadConfigError(
                f"{where}: {error.strerror or error}", fix="give a file that the gate may read"
            ) from None
    key = key.strip()
    if not key and path is None:
        return None
    if not 0 < len(key) <= _LONGEST_API_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadValueError(
            f"{where} is no API key",
            fix=f"one line of 1 to {_LONGEST_API_KEY} printable ASCII characters, without blanks and without `Bearer`",
        )
    return key


def _workers(args: argparse.Namespace) -> int:
    """How many processes. Raises BadValueError."""
    workers: int = args.workers
    if workers > _MOST_WORKERS:
        raise BadValueError(
            f"--workers: {workers} is above {_MOST_WORKERS}", fix="give as many as there are cores for the gate"
        )
    if workers > 1 and args.host.startswith("unix:"):
        raise BadValueError(
            f"--workers {workers} with --host {args.host[:100]}: the kernel spreads connections over several processes "
            "for TCP only",
            fix="give a TCP address, or one worker",
        )
    return workers


def _proxy_protocol(listed: str | None) -> tuple[str, ...]:
    """Addresses with commas between. Raises BadValueError."""
    if listed is None:
        return ()
    from kvbudget.edge.http.peers import Trusted

    addresses = tuple(address.strip() for address in listed.split(","))
    Trusted(addresses)
    return addresses


def _counting(args: argparse.Namespace) -> "CountingSettings":
    """How prompts are counted. Raises BadValueError for what no engine would take."""
    from kvbudget.edge.tokens.counting import CountingSettings, template_kwargs_of
    from kvbudget.edge.tokens.folder import text_of

    kwargs = args.default_chat_template_kwargs
    return CountingSettings(
        chat_template=None if args.chat_template is None else text_of(Path(args.chat_template)),
        template_kwargs={} if kwargs is None else template_kwargs_of(kwargs),
        segment_cache_bytes=parse_size(args.segment_cache, "--segment-cache"),
        image_tokens=args.image_tokens,
        forward_token_ids=args.forward_token_ids,
    )


def _layout(budget: "Document | None", args: argparse.Namespace) -> "Layout | None":
    """The groups of the budget; None where a block size says it all, or there is no budget.

    Raises BadValueError for a --block-size beside groups that do not all keep every token: requests would be charged a
    fraction of what they take.
    """
    if budget is None:
        return None
    from kvbudget.planner.budget.record import layout_of, plain_groups

    layout = layout_of(budget)
    if layout is None:
        return None
    if args.block_size is not None:
        if not plain_groups(budget):
            raise BadValueError(
                f"--block-size: {args.config} has {len(layout.groups)} groups of caches, which one block size does not "
                "tell",
                fix="leave --block-size away, or --config",
            )
        return None
    largest = max((group.block_size for group in layout.growing), default=1)
    if largest > _LARGEST_BLOCK:
        raise BadConfigError(
            f"{args.config}: kv.groups has a block of {largest:,} tokens, the gate takes at most {_LARGEST_BLOCK:,}",
            fix="write the file anew: kvbudget plan ... --write",
        )
    return layout


def _flags_of(budget: "Document", path: str) -> dict[str, object]:
    """[gate] as flags, judged by the same parser as the command line."""
    from kvbudget.planner.budget.record import gate_settings

    def refuse(message: str) -> NoReturn:
        raise BadConfigError(f"{path[-200:]}: [gate]: {message}", fix="kvbudget serve --help names the flags")

    parser = argparse.ArgumentParser(prog="[gate]", add_help=False, allow_abbrev=False)
    add_flags(parser)
    parser.error = refuse  # type: ignore[method-assign]
    arguments = []
    for name, value in gate_settings(budget).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            arguments += [flag] if value else []
        else:
            arguments += [f"{flag}={entry}" for entry in (value if isinstance(value, list) else [value])]
    return vars(parser.parse_args(arguments))


def _policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError:
        known = ", ".join(policy.value for policy in Policy)
        raise UnsupportedError(f"--policy {name[:40]}: this version knows {known}", fix="choose one of them") from None


def _prefix_credit(name: str) -> Sharing | None:
    """None: if the engine tells of a prefix cache."""
    if name == "auto":
        return None
    try:
        return Sharing(name)
    except ValueError:
        known = ", ".join(("auto", *Sharing))
        raise UnsupportedError(f"--prefix-credit {name[:40]}: this version knows {known}", fix="choose one") from None


def _tenants(budget: "Document") -> dict[str, TenantLimits]:
    """[gate.tenants], which the file's reader has judged."""
    from kvbudget.planner.budget.record import gate_tables

    return {name: TenantLimits(**table) for name, table in gate_tables(budget, "tenants").items()}


def _classes(budget: "Document") -> dict[int, ClassLimits]:
    """[gate.classes], by priority."""
    from kvbudget.planner.budget.record import gate_tables

    return {int(name): ClassLimits(**table) for name, table in gate_tables(budget, "classes").items()}


def _keys(budget: "Document") -> "dict[str, ApiKey]":
    """[gate.keys], by name."""
    from kvbudget.edge.request.keys import ApiKey
    from kvbudget.planner.budget.record import gate_tables

    found = {}
    for name, table in gate_tables(budget, "keys").items():
        found[name] = ApiKey(name, **{"tenant": name} | table)
    return found


def prefill_tokens(max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """What a step leaves for prefill when every other sequence decodes one token."""
    return max(1, max_num_batched_tokens - max_num_seqs)


def _tokens(text: str, flag: str) -> Tokens:
    tokens = parse_length(text, flag)
    if tokens < 1:
        raise BadValueError(f"{flag}: {tokens} is below 1", fix="give at least 1")
    return tokens


def _plain(instances: "list[InstanceSettings]") -> bool:
    """Whether one engine, or none, is meant of which nothing is said."""
    from kvbudget.edge.instances.settings import InstanceSettings

    return not instances or instances == [InstanceSettings(instances[0].url)]
