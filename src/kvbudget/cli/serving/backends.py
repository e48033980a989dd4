"""Decides which engines are behind the gate: those of --backend, else those of [[backend]] in the file.

Either names engines, or sources that tell of some.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.units import parse_length

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from collections.abc import Sequence

    from kvbudget.edge.discovery.sources import KubernetesAccess, Sought
    from kvbudget.edge.instances.settings import InstanceSettings
    from kvbudget.planner.budget.record import Document

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # as every pod has it
_LONGEST_NAME = 64
_PORTS = {"http": 80, "https": 443}
_SIGNS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:[]")


def instances_of(given: "Sequence[str]", budget: "Document | Sequence[object] | None") -> "list[InstanceSettings]":
    """Raises BadValueError for an address or a name that cannot be, or that two have."""
    from kvbudget.edge.instances.settings import InstanceSettings
    from kvbudget.planner.budget.record import tables

    if given or not isinstance(budget, dict):
        instances = [InstanceSettings(backend_url(url)) for url in given]
    else:
        instances = [_instance(table) for table in tables(budget, "backend")]
    for what in ("shown_name", "url"):
        seen: set[str] = set()
        for instance in instances:
            value = getattr(instance, what)
            if value in seen:
                fix = "give each its own name and address"
                raise BadValueError(f"two backends have the {what.removeprefix('shown_')} {value[:80]}", fix=fix)
            seen.add(value)
    return instances


def _instance(table: "Document") -> "InstanceSettings":
    """A table that the file's reader has judged."""
    from kvbudget.edge.instances.settings import InstanceSettings
    from kvbudget.units import Tokens

    told: dict[str, Any] = dict(table)
    name = told.get("name", "")
    if name and not (len(name) <= _LONGEST_NAME and _SIGNS.issuperset(name)):
        raise BadConfigError(
            f"backend.name {name[:80]!r} cannot be a label", fix="use 1 to 64 letters, digits, '.', '_', '-' or ':'"
        )
    for listed in ("models", "fallback"):
        told[listed] = tuple(told.get(listed, ()))
    if "max_context" in told:
        told["max_context"] = Tokens(parse_length(str(told["max_context"]), "backend.max_context"))
    told |= _counted_by(told)
    return InstanceSettings(**{**told, "url": backend_url(told["url"])})


def _counted_by(told: dict[str, Any]) -> dict[str, Any]:
    """What it says of its tokenizer. Raises BadConfigError for a template without the tokenizer that it belongs to."""
    from kvbudget.edge.tokens.counting import template_kwargs_of
    from kvbudget.edge.tokens.folder import text_of

    template, kwargs = told.pop("chat_template", None), told.pop("default_chat_template_kwargs", None)
    if "tokenizer" not in told and (template, kwargs) != (None, None):
        raise BadConfigError(
            "backend.chat_template or backend.default_chat_template_kwargs without backend.tokenizer",
            fix="give the folder of the model's tokenizer in the same table",
        )
    return {
        "chat_template": None if template is None else text_of(Path(template)),
        "template_kwargs": {} if kwargs is None else template_kwargs_of(kwargs),
    }


def backend_url(url: str) -> str:
    """`http://HOST:PORT`, https as well, `unix:/path`, or a source. Raises BadValueError for anything else."""
    if url.startswith("unix:"):
        return url  # judged where it is used
    from kvbudget.edge.discovery.sources import is_source, source_of

    if is_source(url):
        source_of(url)
        return url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadValueError(f"--backend {url[:80]}: {error}", fix="write http://HOST:PORT") from None
    host, _, digits = url.rpartition(":")
    if "//" not in url and "/" not in url and (digits.isdigit() or not host):  # localhost:8000 has no scheme, to people
        raise BadValueError(f"--backend {url[:80]}: the scheme is missing", fix=f"write http://{url[:80]}")
    standard = _PORTS.get(parts.scheme)
    if standard is not None and parts.hostname and parts.path.rstrip("/") == "/v1":  # as clients have it
        fix = f"write {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise BadValueError(f"--backend {url[:80]}: the gate adds the path itself", fix=fix)
    if standard is None or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise BadValueError(
            f"--backend {url[:80]}: not a plain http://HOST:PORT, https://HOST:PORT, unix:/path, dns://NAME:PORT, "
            "k8s://NAMESPACE/SERVICE[:PORT] or http-sd+http://HOST:PORT/PATH",
            fix="leave path and credentials away",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or standard}"


def divided(told: "Sequence[InstanceSettings]") -> "tuple[list[InstanceSettings], tuple[Sought, ...]]":
    """Engines that are named, and sources of others."""
    from kvbudget.edge.discovery.sources import Sought, is_source, source_of

    named = [one for one in told if not is_source(one.url)]
    return named, tuple([Sought(source_of(one.url), one) for one in told if is_source(one.url)])


def kubernetes_access() -> "KubernetesAccess | None":
    """As every pod has it; KVBUDGET_KUBERNETES_API names another way, without a token. None: neither."""
    from kvbudget.edge.discovery.sources import KubernetesAccess

    told = os.environ.get("KVBUDGET_KUBERNETES_API")
    if told:
        return KubernetesAccess(told.rstrip("/"))
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return KubernetesAccess(f"https://{shown}:{port}", f"{_ACCOUNT}/token", f"{_ACCOUNT}/ca.crt")
