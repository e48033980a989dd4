"""Every reason for which a request is not served. Metric label, documentation entry and HTTP status hang on these."""

from enum import StrEnum


class Refusal(StrEnum):
    """Why a request was refused; the HTTP answer of each is in `edge.request.answers.ANSWERS`."""

    # Never: the same request would be refused on an idle engine.
    CONTEXT_EXCEEDED = "context_exceeded"  # the prompt leaves no room for one token under the context cap
    NEVER_FITS = "never_fits"  # prompt + max_tokens is more than the whole pool can ever hold
    TOO_MANY_SEQUENCES = "too_many_sequences"  # n alone is over max_num_seqs
    UNKNOWN_MODEL = "unknown_model"  # no configured engine serves a model of this name
    BAD_REQUEST = "bad_request"  # its body or headers cannot be understood; found at the edge, before the gate
    TENANT_TOO_LARGE = "tenant_too_large"  # more blocks than its tenant may ever reserve
    # Not now: lawful, but there is no room.
    POOL_FULL = "pool_full"  # no room, and queueing is switched off
    QUEUE_FULL = "queue_full"  # no room, and the queue is at one of its bounds (QueueBound)
    DEADLINE = "deadline"  # waited in the queue until its deadline
    ENGINE_BUSY = "engine_busy"  # the engine itself refused it for overload, by limits of its own
    LOGPROBS_FULL = "logprobs_full"  # logprobs of other prompts are being computed; found at the edge, before the gate
    TENANT_SHARE = "tenant_share"  # no room, and its tenant has more than its share beside others who asked lately
    TENANT_BLOCKS = "tenant_blocks"  # its tenant has reserved as many blocks as it may
    TENANT_TOKENS = "tenant_tokens"  # its tenant has taken its tokens of this minute
    # Not here.
    DRAINING = "draining"
    NO_BACKEND = "no_backend"
    LEDGER_LOST = "ledger_lost"  # several gates share the pool, and the ledger that they share does not answer
    COUNT_FAILED = "count_failed"  # its tokens could not be counted, and their upper bound is too much to promise


class QueueBound(StrEnum):
    """Which bound of the queue a QUEUE_FULL met."""

    REQUESTS = "requests"  # so many wait
    TOKENS = "tokens"  # of those that wait, with the one who came
    SECONDS = "seconds"  # it would wait longer


class Outcome(StrEnum):
    """How a request ended. Every request ends with exactly one of these."""

    FINISHED = "finished"
    REFUSED = "refused"
    EXPIRED = "expired"  # its deadline passed in the queue
    WITHDRAWN = "withdrawn"  # the client left while it waited
    CLIENT_GONE = "client_gone"  # the client left after it was forwarded
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_REFUSED = "upstream_refused"  # the engine answered with an error
    ENGINE_LOST = "engine_lost"  # the engine restarted, so it no longer knows of the request
    TIMED_OUT = "timed_out"  # the engine kept silent for too long
    LEASE_LOST = "lease_lost"  # while it ran, its blocks were given to another gate: this one was not heard of for long
    SHUT_DOWN = "shut_down"


def outcome_of(refusal: Refusal) -> Outcome:
    """The outcome under which a refused request is counted."""
    return Outcome.EXPIRED if refusal is Refusal.DEADLINE else Outcome.REFUSED
