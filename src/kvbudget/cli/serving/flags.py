"""Decides which flags `kvbudget serve` has, and what holds where none is given."""

import argparse

# What holds where neither a flag nor [gate] of the file says anything else: flags before file before these.
DEFAULTS = {
    "backend": None,
    "embedded_engine": False,
    "tokenizer": "engine",
    "chat_template": None,
    "default_chat_template_kwargs": None,
    "segment_cache": "64MiB",
    "image_tokens": None,
    "forward_token_ids": False,
    "pool_blocks": None,
    "block_size": None,
    "max_context": None,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "policy": "learned",
    "prefix_credit": "auto",
    "learned_state": None,
    "margin_blocks": 0,
    "queue_requests": 1024,
    "queue_tokens": None,
    "queue_seconds": 30.0,
    "slo_ttft": 5.0,
    "default_max_tokens": "2048",
    "max_prompt_logprobs_tokens": "0",
    "overload_status": 429,
    "shadow": False,
    "ledger": "memory",
    "lease_seconds": 5.0,
    "ledger_lost": "refuse",
    "host": "127.0.0.1",
    "port": 8800,
    "workers": 1,
    "admin_host": "127.0.0.1",
    "admin_port": 8801,
    "tls_cert": None,
    "tls_key": None,
    "backend_ca": None,
    "backend_api_key_file": None,
    "proxy_protocol": None,
    "max_body": "16MiB",
    "access_log": None,
    "otlp_endpoint": None,
    "drain_seconds": 30.0,
    "json": False,
    "config": None,
}


def add_flags(parser: argparse.ArgumentParser, without: frozenset[str] = frozenset()) -> None:
    """Flags of the contract, plus bounds of the edge. What is not given stays out of the namespace: see DEFAULTS.
    `without`: those of the edge that another data plane has not."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read [gate] of this kvbudget.toml; flags given here win; SIGHUP reads it again",
    )
    where = parser.add_argument_group("engine")
    where.add_argument(
        "--backend",
        action="append",
        metavar="URL",
        help="an engine: http(s)://HOST:PORT or unix:/path; or where engines are found: dns://NAME:PORT, "
        "k8s://NAMESPACE/SERVICE[:PORT], http-sd+http://HOST:PORT/PATH; may be given several times",
    )
    where.add_argument("--backend-ca", metavar="FILE", help="authorities (PEM) of https engines; default: the system's")
    where.add_argument(
        "--backend-api-key-file",
        metavar="FILE",
        help="the engines' own API key (or KVBUDGET_BACKEND_API_KEY): sent with the gate's own calls, and in place of "
        "the clients' keys where [gate.keys] asks for those; SIGHUP reads it anew",
    )
    where.add_argument("--embedded-engine", action="store_true", help="start the embedded paged engine as the backend")
    where.add_argument(
        "--tokenizer",
        metavar="PATH|engine|bound",
        help="count prompts by a folder's tokenizer.json and chat template, by the engine's /tokenize (default), "
        "or by the proved upper bound from bytes",
    )
    where.add_argument(
        "--chat-template", metavar="FILE", help="with a tokenizer folder: the template that the engine was started with"
    )
    where.add_argument(
        "--default-chat-template-kwargs",
        metavar="JSON",
        help="with a tokenizer folder: the template arguments that the engine was started with",
    )
    where.add_argument(
        "--segment-cache",
        metavar="SIZE",
        help="with a tokenizer folder: memory for texts that come again, 0 for none (default 64MiB)",
    )
    where.add_argument(
        "--image-tokens",
        type=int,
        metavar="N",
        help="the most tokens that an image takes (default: by the rule of the model in the tokenizer folder)",
    )
    where.add_argument(
        "--forward-token-ids",
        action="store_true",
        help="send prompts of /v1/completions on as the ids that they were counted by, once the engine agreed with "
        "the tokenizer folder: it need not tokenize them again",
    )
    where.add_argument(
        "--pool-blocks", type=int, metavar="N", help="blocks that requests can use (default: ask the engine)"
    )
    where.add_argument("--block-size", type=int, metavar="N", help="tokens per block (default: ask the engine)")
    where.add_argument("--max-context", metavar="N", help="most tokens of one request (default: ask the engine)")
    where.add_argument("--max-num-seqs", type=int, metavar="N", help="the engine's own setting (default 256)")
    where.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="the engine's own setting, bounds the prefill delay (default 2048, vLLM's smallest)",
    )
    admission = parser.add_argument_group("admission")
    admission.add_argument(
        "--policy",
        help="learned (default): by the output lengths that it sees, with a small risk of preemption; trajectory and "
        "worst-case: by what clients declare, without any",
    )
    admission.add_argument(
        "--prefix-credit",
        metavar="auto|off|computed|scheduled",
        help="charge what prompts share once: from when it is computed, or scheduled (vLLM without "
        "long_prefill_token_threshold); auto (default): computed, if the engine tells of a prefix cache",
    )
    admission.add_argument(
        "--learned-state", metavar="FILE", help="where policy learned keeps what it has seen (default: nowhere)"
    )
    admission.add_argument("--margin-blocks", type=int, metavar="N", help="blocks kept back on purpose (default 0)")
    admission.add_argument("--queue-requests", type=int, metavar="N", help="most requests that wait (default 1024)")
    admission.add_argument("--queue-tokens", metavar="N", help="most tokens that wait (default: twice the pool)")
    admission.add_argument("--queue-seconds", type=float, metavar="S", help="longest wait (default 30)")
    admission.add_argument(
        "--slo-ttft",
        type=float,
        metavar="S",
        help="first tokens are worth having within S seconds: learned refuses on arrival who would come later, unless "
        "the request brings a deadline (default 5)",
    )
    admission.add_argument(
        "--default-max-tokens",
        metavar="N",
        help="promised when a request names no max_tokens (default 2048)",
    )
    admission.add_argument(
        "--max-prompt-logprobs-tokens",
        metavar="N",
        help="prompt tokens whose logprobs may be computed at once, outside of the KV pool: N x vocabulary x 6 bytes "
        "of GPU memory that must be free (default 0: such requests are refused)",
    )
    admission.add_argument("--overload-status", type=int, metavar="CODE", help="instead of 429: 503 or 529")
    admission.add_argument(
        "--shadow",
        action="store_true",
        help="decide and count, but forward everything at once and unchanged; kvbudget_shadow_refusals_total tells "
        "what would have been refused",
    )
    admission.add_argument(
        "--ledger",
        metavar="memory|URL",
        help="memory (default): this gate alone has the pools; redis://HOST:PORT/DB or valkey://...: the ledger that "
        "several gates before the same engines share",
    )
    admission.add_argument(
        "--lease-seconds",
        type=float,
        metavar="S",
        help="with a shared ledger: what a gate holds is free for the others when it was not heard of for S seconds "
        "(default 5)",
    )
    admission.add_argument(
        "--ledger-lost",
        metavar="refuse|slice",
        help="when the shared ledger has not answered for that long: refuse with 503 (default), or go on with an equal "
        "part of the pool, which may promise too much",
    )
    edge = parser.add_argument_group("edge")
    edge.add_argument("--host", help="address of the data plane, or unix:/path (default 127.0.0.1)")
    edge.add_argument(
        "--tls-cert", metavar="FILE", help="speak TLS to clients with this chain (PEM); SIGHUP reads it anew"
    )
    edge.add_argument("--tls-key", metavar="FILE", help="its key, where it is not in the same file")
    if "--proxy-protocol" not in without:
        edge.add_argument(
            "--proxy-protocol",
            metavar="ADDRESSES",
            help="balancers, as addresses and networks with commas between, whose connections begin with a PROXY "
            "header (v1 or v2) that names the client; `unix`: those of a Unix socket (default: none)",
        )
    if "--port" not in without:
        edge.add_argument("--port", type=int, help="default 8800; 0 takes a free one")
    if "--workers" not in without:
        edge.add_argument(
            "--workers",
            type=int,
            metavar="N",
            help="N processes serve the port and share the pools, for more than one core (default 1); "
            "one admin port tells of all",
        )
    edge.add_argument("--admin-host", help="address of metrics and state (default 127.0.0.1)")
    edge.add_argument("--admin-port", type=int, help="default 8801; 0 takes a free one")
    edge.add_argument("--max-body", metavar="SIZE", help="largest request body (default 16MiB)")
    edge.add_argument(
        "--access-log",
        metavar="FILE|-",
        help="a JSON line for each request: lengths, times, what was promised, how it ended; no prompts, no keys",
    )
    edge.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send OpenTelemetry traces to this collector over OTLP/HTTP, such as http://HOST:4318; sampler, headers "
        "and names by the OTEL_ environment variables (default: OTEL_EXPORTER_OTLP_ENDPOINT, else none)",
    )
    edge.add_argument("--drain-seconds", type=float, metavar="S", help="on SIGTERM, wait so long (default 30)")
    edge.add_argument("--json", action="store_true", help="the ready line as JSON")
