"""What each refusal of the gate looks like over HTTP: one table from `Refusal` to status and code."""

import math
import random
from dataclasses import dataclass
from typing import Final

from kvbudget.edge.http.exchange import ErrorForm
from kvbudget.edge.http.messages import Headers, OwnLines, end_to_end
from kvbudget.edge.http.server import Exchange
from kvbudget.edge.openai.errors import BadRequestError, context_length_message
from kvbudget.edge.request.standing import Standing, room_of, time_of_day
from kvbudget.edge.surfaces.dialects import ANTHROPIC, OPENAI
from kvbudget.gate.commands import Forward, Reject
from kvbudget.gate.gate import Gate
from kvbudget.gate.refusing.refusals import QueueBound, Refusal
from kvbudget.gate.refusing.rejections import LEDGER_LOST_RETRY_NS
from kvbudget.gate.waiting.why import Why

# The OpenAI SDKs do not jitter a time that a server tells, so refused clients would come back all at once.
_JITTER: Final = 0.25
_MAX_RETRY_S: Final = 120.0
UNREACHABLE_RETRY_NS: Final = 5_000_000_000
_BOUNDED: Final = (
    " The prompt was not counted exactly: its tokens are bounded from its bytes, and may be several times fewer; the "
    "gate counts exactly with --tokenizer PATH or engine."
)
_FULL_RETRY_NS: Final = 1_000_000_000  # of connections or bodies: they come and go
_HOPELESS: Final = (b"x-should-retry", b"false")
_NEVER_SERVED: Final = frozenset({501, 505})  # server errors by their number only: the same request fails again
_JSON: Final[Headers] = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and code of one refusal; `retry`: whether coming back later can help."""

    status: int
    code: str
    retry: bool


ANSWERS: Final[dict[Refusal, Answer]] = {
    Refusal.CONTEXT_EXCEEDED: Answer(400, "context_length_exceeded", retry=False),
    Refusal.NEVER_FITS: Answer(400, "context_length_exceeded", retry=False),
    Refusal.TOO_MANY_SEQUENCES: Answer(400, "too_many_sequences", retry=False),
    Refusal.UNKNOWN_MODEL: Answer(404, "model_not_found", retry=False),
    Refusal.BAD_REQUEST: Answer(400, "invalid_value", retry=False),
    Refusal.TENANT_TOO_LARGE: Answer(400, "tenant_limit_exceeded", retry=False),
    Refusal.TENANT_SHARE: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.TENANT_BLOCKS: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.TENANT_TOKENS: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.POOL_FULL: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.QUEUE_FULL: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.DEADLINE: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.ENGINE_BUSY: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.LOGPROBS_FULL: Answer(429, "rate_limit_exceeded", retry=True),
    Refusal.DRAINING: Answer(503, "server_is_overloaded", retry=True),
    Refusal.NO_BACKEND: Answer(503, "server_is_overloaded", retry=True),
    Refusal.LEDGER_LOST: Answer(503, "server_is_overloaded", retry=True),
    Refusal.COUNT_FAILED: Answer(503, "count_failed", retry=True),
}


_PARAMS = {Refusal.UNKNOWN_MODEL: "model"}


class Refuser:
    """Turns a Reject into (status, headers, body). `overload_status` replaces 429 where a client base wants another."""

    def __init__(self, pool_name: str, jitter: random.Random, *, overload_status: int = 429) -> None:
        self._pool_name = pool_name
        self.jitter = jitter
        self.standing = Standing(lambda: (0, 0))  # the gateway puts its own here
        self._overload_status = overload_status

    def answer(
        self,
        reject: Reject,
        *,
        exact: bool = True,
        errors: ErrorForm | None = None,
        field: str = "max_tokens",
        request_id: bytes = b"",
    ) -> tuple[int, Headers, bytes]:
        """The whole HTTP answer of a refusal. `exact` False: the prompt was not counted, only bounded, and that is
        said, because a shorter bound may be had by another way of counting. `errors`: their form, OpenAI's if None;
        `field`: what the client's API calls the cap, empty where nothing is generated."""
        answer = ANSWERS[reject.refusal]
        status = self._overload_status if answer.status == 429 else answer.status
        reset_s = told_s(reject.retry_after_ns, self.jitter) if answer.retry else 0.0
        reject = reject._replace(retry_after_ns=int(reset_s * 1e9))  # the text tells what the header does
        headers = [*_JSON, *self.standing.headers(errors, waited_ns=reject.waited_ns, reset_s=reset_s)]
        headers += retry_headers(reset_s) if answer.retry else [_HOPELESS]
        message = self._message(reject) if field else self._message_of_inputs(reject)
        if field and field != "max_tokens":
            message = message.replace("max_tokens", field)
        message += "" if exact or answer.status == 503 else _BOUNDED
        param = (field or None) if reject.refusal is Refusal.NEVER_FITS else _PARAMS.get(reject.refusal)
        form = OPENAI if errors is None else errors
        return status, headers, form.body(status, answer.code, message, param=param, request_id=request_id)

    def later(self, refusal: Refusal, told: str, exchange: Exchange, request_id: bytes, *, waited_ns: int = 0) -> None:
        """Answer a request that was counted or admitted already, and is refused for want of an engine, or by it.
        `waited_ns`: in the queue."""
        answer = ANSWERS[refusal]
        status = self._overload_status if answer.status == 429 else answer.status
        retry_ns = LEDGER_LOST_RETRY_NS if refusal is Refusal.LEDGER_LOST else UNREACHABLE_RETRY_NS
        reset_s = told_s(retry_ns, self.jitter)
        headers = [*_JSON, *self._own(exchange, request_id, waited_ns, reset_s), *retry_headers(reset_s)]
        exchange.respond(status, headers, _form(exchange).body(status, answer.code, told, request_id=request_id))

    def bad_request(self, exchange: Exchange, request_id: bytes, error: BadRequestError) -> None:
        """Answer a request that cannot be understood."""
        headers = [*_JSON, _HOPELESS, *self._own(exchange, request_id)]
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        told, form = error.message, _form(exchange)
        body = form.body(error.status, error.code, told, param=error.param, request_id=request_id)
        exchange.respond(error.status, headers, body)

    def plain_error(
        self, exchange: Exchange, status: int, message: str, request_id: bytes, code: str, *, waited_ns: int = 0
    ) -> None:
        """Answer with an error that is no refusal of the gate."""
        headers = [*_JSON, *self._own(exchange, request_id, waited_ns)]
        if status < 500:
            headers.append(_HOPELESS)
        if status == 405:
            headers.append((b"allow", b"POST, OPTIONS"))
        exchange.respond(status, headers, _form(exchange).body(status, code, message, request_id=request_id))

    def passed_on(
        self, exchange: Exchange, status: int, theirs: Headers, body: bytes, request_id: bytes, waited_ns: int
    ) -> None:
        """Answer with the engine's own error, which was held back and says what its client has to know."""
        own = self._own(exchange, request_id, waited_ns)
        exchange.respond(status, [*end_to_end(theirs, dict(own)), *own], body)

    def unread(
        self, status: int, code: str, message: str, errors: ErrorForm | None, request_id: bytes
    ) -> tuple[Headers, bytes]:
        """Headers and body of an error that the data plane answers by itself. `errors`: its form, OpenAI's if None."""
        reset_s = told_s(_FULL_RETRY_NS, self.jitter) if status == 503 else 0.0
        headers = [*_JSON, *_ids(errors, request_id), *self.standing.headers(errors, reset_s=reset_s)]
        if status == 503:
            headers += retry_headers(reset_s)
        elif status < 500 or status in _NEVER_SERVED:
            headers.append(_HOPELESS)
        form = OPENAI if errors is None else errors
        return headers, form.body(status, code, message, request_id=request_id)

    def _own(self, exchange: Exchange, request_id: bytes, waited_ns: int = 0, reset_s: float = 0.0) -> Headers:
        """Whose answer it is, and how the pool stands."""
        standing = self.standing.headers(exchange.errors, waited_ns=waited_ns, reset_s=reset_s)
        return identified(exchange, request_id) + standing

    def _message_of_inputs(self, reject: Reject) -> str:
        """Of a request that generates nothing: the token of each input that stands for an output counts as its own."""
        if reject.refusal not in (Refusal.CONTEXT_EXCEEDED, Refusal.NEVER_FITS):
            return self._message(reject).replace("max_tokens", "the number of inputs")
        return (
            f"This model's maximum context length is {reject.max_context} tokens. However, your inputs take "
            f"{reject.prompt_tokens + reject.sequences} tokens that must be held at once. Send shorter ones."
        )

    def _message(self, reject: Reject) -> str:
        match reject.refusal:
            case Refusal.CONTEXT_EXCEEDED:
                return _over_context(reject)
            case Refusal.NEVER_FITS | Refusal.TENANT_TOO_LARGE:
                return self._never_fits(reject)
            case Refusal.TOO_MANY_SEQUENCES:
                return (
                    f"The request asks for {reject.sequences} sequences (n times prompts), and the engine runs at most "
                    f"{reject.max_num_seqs} at once (--max-num-seqs); lower n."
                )
            case Refusal.UNKNOWN_MODEL:
                return "The model that the request names does not exist here; GET /v1/models lists those that do."
            case Refusal.BAD_REQUEST:
                return "The request cannot be understood."
            case (
                Refusal.POOL_FULL
                | Refusal.QUEUE_FULL
                | Refusal.DEADLINE
                | Refusal.TENANT_SHARE
                | Refusal.TENANT_BLOCKS
                | Refusal.TENANT_TOKENS
            ):
                return self._not_now(reject)
            case Refusal.ENGINE_BUSY | Refusal.LOGPROBS_FULL:
                return f"The engine behind pool {self._pool_name!r} has reached a limit of its own; please retry later."
            case Refusal.DRAINING:
                return "This gate is shutting down and takes no new requests; please try again or use another instance."
            case Refusal.COUNT_FAILED:
                return "The prompt's tokens could not be counted just now; please try again shortly."
            case Refusal.NO_BACKEND | Refusal.LEDGER_LOST:
                lost = reject.refusal is Refusal.LEDGER_LOST
                what = "ledger that the gates share for" if lost else "engine behind"
                return f"The {what} pool {self._pool_name!r} is not available now; please try again later."

    def _never_fits(self, reject: Reject) -> str:
        if reject.refusal is Refusal.TENANT_TOO_LARGE:
            return (
                f"The request needs {reject.needed_blocks} KV blocks of pool {self._pool_name!r}, more than its tenant "
                f"may reserve at all{_tenant_limit(reject)}; lower max_tokens or shorten the prompt."
            )
        pool = (
            f"needs {reject.needed_blocks} KV blocks and pool {self._pool_name!r} has {reject.capacity_blocks} in all, "
            "so it can never be served there."
        )
        if reject.sequences == 1:
            return f"{_over_context(reject)} The request {pool}"
        # The sentence about one sequence would contradict itself: it is their number that is too much.
        return (
            f"This model's maximum context length is {reject.max_context} tokens. The request's {reject.sequences} "
            f"sequences of up to {reject.max_new_tokens or 1} output tokens each, with {reject.prompt_tokens} prompt "
            f"tokens, are too much together: it {pool} Lower n, or max_tokens to {reject.largest_new_tokens}."
        )

    def _not_now(self, reject: Reject) -> str:
        if reject.refusal is Refusal.TENANT_TOKENS:
            return (
                "The tenant has taken its tokens of this minute (tenants.tokens_per_minute). "
                f"Please retry in about {math.ceil(reject.retry_after_ns / 1e9)} s."
            )
        why = {
            Refusal.POOL_FULL: "and queueing is off",
            Refusal.QUEUE_FULL: f"and {_met_bound(reject)}",
            Refusal.TENANT_SHARE: "and its tenant has more than its share of the pool beside others who asked lately",
            Refusal.TENANT_BLOCKS: f"and its tenant would have reserved more than it may{_tenant_limit(reject)}",
            Refusal.DEADLINE: f"and no room came free within {reject.waited_ns / 1e9:.1f} s of waiting",
        }[reject.refusal]
        return (
            f"KV pool {self._pool_name!r} has no room now: {_lacking(reject)}the request needs {reject.needed_blocks} "
            f"blocks, {reject.free_blocks} of {reject.capacity_blocks} are free, {why}; place in queue would be "
            f"{reject.position}. Please retry in about {math.ceil(reject.retry_after_ns / 1e9)} s."
        )


def _met_bound(reject: Reject) -> str:
    """Which bound of the queue is in the way."""
    match reject.bound:
        case QueueBound.REQUESTS:
            return f"the queue is full: {reject.limit} requests wait, the most that may (queue_requests)"
        case QueueBound.TOKENS:
            return f"the queue is full: it would hold more than {reject.limit} tokens (queue_tokens)"
        case QueueBound.SECONDS:
            return f"it would wait longer than the {max(0, reject.limit) / 1e9:.1f} s that are worth waiting (slo_ttft)"
        case None:
            return "the queue is full"


def _tenant_limit(reject: Reject) -> str:
    return f" (tenants.max_blocks: {reject.limit})" if reject.limit else " (tenants.max_blocks)"


_IN_THE_WAY: Final = {
    Why.TENANT_BLOCKS: "its tenant has reserved as many blocks as it may (tenants.max_blocks); ",
    Why.TENANT_SHARE: "what room there is stays free for other tenants or classes; ",
    Why.PROMPTS: "prompts that the engine has not read yet come first; ",
    Why.ENGINE_BUSY: "the engine said that it is overloaded; ",
}


def _lacking(reject: Reject) -> str:
    """What is in the way where it is not the number of free blocks; empty where it is."""
    places = max(0, reject.max_num_seqs - reject.running_sequences)
    if reject.sequences > places:
        return (
            f"the request needs {reject.sequences} of the engine's {reject.max_num_seqs} sequences (--max-num-seqs), "
            f"{places} are free; "
        )
    if reject.settling:
        return "the ledger that gates share gives no room until leases from before are over; "
    if reject.why in _IN_THE_WAY:
        return _IN_THE_WAY[reject.why]
    if reject.needed_blocks > reject.free_blocks or reject.refusal is Refusal.TENANT_BLOCKS:
        return ""
    if reject.position > 1:
        return f"{reject.position - 1} before it wait for room, and it would put them off; "
    return "beside what runs it would need more than the pool, at the moment when most is held; "


def _over_context(reject: Reject) -> str:
    return context_length_message(
        reject.max_context, reject.prompt_tokens, reject.max_new_tokens or 1, reject.largest_new_tokens
    )


def told_s(retry_after_ns: int, jitter: random.Random) -> float:
    """When to come back: lengthened by 0-25 %, at most 120 s."""
    return min(_MAX_RETRY_S, retry_after_ns / 1e9 * (1 + _JITTER * jitter.random()))


def retry_headers(seconds: float) -> Headers:
    """`Retry-After` (whole seconds, rounded up) and `retry-after-ms`."""
    return [
        (b"retry-after", str(math.ceil(seconds)).encode()),
        (b"retry-after-ms", str(math.ceil(seconds * 1000)).encode()),
        (b"x-should-retry", b"true"),
    ]


_ADMITTED_NAMES: Final = frozenset((
    b"x-request-id", b"x-kvbudget-reserved-blocks", b"x-kvbudget-queue-ms", b"x-kvbudget-prompt-tokens",
    b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens",
))  # fmt: skip
_THOUSANDTHS: Final = [b"%03d" % number for number in range(1000)]
# The same under the names of Anthropic's API too, which tells the reset as a time of day (RFC 3339).
_ANTHROPIC: Final = (
    b"request-id: %b\r\nanthropic-ratelimit-tokens-limit: %d\r\nanthropic-ratelimit-tokens-remaining: %d\r\n"
    b"anthropic-ratelimit-tokens-reset: %b\r\n"
)
_ANTHROPIC_NAMES: Final = _ADMITTED_NAMES | {line.partition(b":")[0] for line in _ANTHROPIC.split(b"\r\n")[:-1]}


def admitted_headers(
    gate: Gate, command: Forward, request_id: bytes, prompt_tokens: int, errors: ErrorForm | None = None
) -> OwnLines:
    """What an admitted answer carries: what was promised, and how much of the pool is left. `errors`: the form of its
    API's errors, which tells whose names the client knows."""
    limit_tokens, remaining_tokens = room_of(gate)
    reset_s = gate.expectation.ns_per_token * command.max_new_tokens / 1e9
    reset_ms = int(reset_s * 1000.0 + 0.5)
    # Numbers and bytes alone, and the format in its place: compiled, that takes no call into the interpreter.
    lines = (
        b"x-request-id: %b\r\nx-kvbudget-reserved-blocks: %d\r\nx-kvbudget-queue-ms: %d\r\n"
        b"x-kvbudget-prompt-tokens: %d\r\nx-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\n"
        b"x-ratelimit-reset-tokens: %d.%bs\r\n"
    ) % (
        request_id, command.reserved_blocks, command.waited_ns // 1_000_000, prompt_tokens, limit_tokens,
        remaining_tokens, reset_ms // 1000, _THOUSANDTHS[reset_ms % 1000],
    )  # fmt: skip
    if errors is ANTHROPIC:
        more = _ANTHROPIC % (request_id, limit_tokens, remaining_tokens, time_of_day(reset_s))
        return OwnLines(_ANTHROPIC_NAMES, lines + more, True)
    return OwnLines(_ADMITTED_NAMES, lines, True)  # `edge.request.identity` has looked at the id


def identified(exchange: Exchange, request_id: bytes) -> Headers:
    """The request's id under the names that its client knows."""
    return _ids(exchange.errors, request_id)


def _ids(errors: ErrorForm | None, request_id: bytes) -> Headers:
    if errors is ANTHROPIC:
        return [(b"x-request-id", request_id), (b"request-id", request_id)]
    return [(b"x-request-id", request_id)]


def _form(exchange: Exchange) -> ErrorForm:
    return OPENAI if exchange.errors is None else exchange.errors
