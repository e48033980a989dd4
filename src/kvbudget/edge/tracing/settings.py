"""Decides where traces go and which are recorded: by the flag, and by OpenTelemetry's own environment variables."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from kvbudget.edge.http.address import address_of
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.tracing.context import RECORD_ALL, Sampler
from kvbudget.errors import BadValueError, InputError, printable
from kvbudget.units import decimal_number

log = logging.getLogger("kvbudget.tracing")

_PATH = "v1/traces"
_FLAG = "--otlp-endpoint"
_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")
_SAMPLERS = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """`url`: of the collector, with the path of traces. `headers` may hold keys. `resource`: what its spans are of.

    `authorities`: PEM file that the certificate of an https collector is checked by; None: the system's.
    """

    url: str
    sampler: Sampler = RECORD_ALL
    headers: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    resource: Mapping[str, str] = field(default_factory=dict)
    authorities: str | None = None


def tracing_settings(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> TracingSettings | None:
    """None: no traces are wanted. `endpoint`: of the flag, which stands before the environment's.

    Raises BadValueError for a flag that cannot be used; what cannot be used in the environment, which may have been
    written for others as well, is said in the log and stops no gate.
    """
    told = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_") and value.strip()}
    if endpoint is not None:
        return _settings(f"{endpoint.rstrip('/')}/{_PATH}", _FLAG, told)
    if told.get("OTEL_SDK_DISABLED", "").lower() == "true" or told.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    url, where = told.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    if url is None and (base := told.get("OTEL_EXPORTER_OTLP_ENDPOINT")) is not None:
        url, where = f"{base.rstrip('/')}/{_PATH}", "OTEL_EXPORTER_OTLP_ENDPOINT"
    if url is None:
        return None
    protocol = told.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", told.get("OTEL_EXPORTER_OTLP_PROTOCOL", ""))
    if protocol not in ("", "http/protobuf"):
        log.warning(
            "no traces: OTEL_EXPORTER_OTLP_PROTOCOL is %s, and the gate speaks http/protobuf; name the collector's "
            "port for that (4318) with %s", printable(protocol[:40]), _FLAG,
        )  # fmt: skip
        return None
    try:
        return _settings(url, where, told)
    except InputError as error:
        log.warning("no traces: %s", error)
        return None


def _settings(url: str, where: str, told: Mapping[str, str]) -> TracingSettings:
    shown = f"{where} {printable(url[:100])}"
    if not url.startswith(("http://", "https://")):
        raise BadValueError(f"{shown}: not a collector's address", fix="write http://HOST:4318 or https://HOST")
    try:
        address_of(url)
    except BadValueError:
        fix = "write http://HOST:4318 or https://HOST, keys in OTEL_EXPORTER_OTLP_HEADERS"
        raise BadValueError(f"{shown}: cannot be used", fix=fix) from None
    headers = told.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS", told.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    return TracingSettings(
        url, _sampler(told), tuple(_headers(headers)), _resource(told),
        told.get("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", told.get("OTEL_EXPORTER_OTLP_CERTIFICATE")),
    )  # fmt: skip


def _sampler(told: Mapping[str, str]) -> Sampler:
    """As the specification has it, what is not known is said, and the default holds."""
    name = told.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    if name not in _SAMPLERS:
        shown = printable(name[:40])
        log.warning("OTEL_TRACES_SAMPLER %s is not one of %s; all are recorded", shown, ", ".join(_SAMPLERS))
        return RECORD_ALL
    ratio, by_parent = _SAMPLERS[name]
    if ratio is not None:
        return Sampler(ratio, by_parent)
    argument = told.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        ratio = decimal_number(argument.strip())
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        log.warning("OTEL_TRACES_SAMPLER_ARG %s is not within 0 and 1; all are recorded", printable(argument[:40]))
        ratio = 1.0
    return Sampler(ratio, by_parent)


def _headers(text: str) -> Headers:
    """`name=value,name=value`, values percent-encoded. Nothing of a value is told: it may be a key."""
    found: Headers = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = entry.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        if not sign or not name or not _NAME.issuperset(name) or not value.isascii() or not value.isprintable():
            raise BadValueError(
                f"OTEL_EXPORTER_OTLP_HEADERS: {printable(name[:40])!r} is no header with a value",
                fix="write name=value, with commas between and values percent-encoded",
            )
        found.append((name.encode(), value.encode()))
    return found


def _resource(told: Mapping[str, str]) -> dict[str, str]:
    resource = {"service.name": "kvbudget"}
    for entry in filter(None, told.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")):
        name, sign, value = entry.partition("=")
        if sign and name.strip():
            resource[name.strip()] = unquote(value.strip())
    if "OTEL_SERVICE_NAME" in told:
        resource["service.name"] = told["OTEL_SERVICE_NAME"]
    return resource
