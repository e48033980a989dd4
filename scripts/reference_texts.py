"""What scripts/make_reference.py tells beside what the code itself says: a text for each name that the code has."""

from kvbudget.edge.surfaces.ask import Surface
from kvbudget.edge.surfaces.dialects import ANTHROPIC, RESPONSES, TGI
from kvbudget.errors import AccountingError, BadConfigError, BadValueError, InputError, UnsupportedError
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.gate.waiting.why import Why

# What each refusal means, for people; the test fails when one is missing.
REFUSALS = {
    Refusal.CONTEXT_EXCEEDED: "The prompt leaves no room for one token under the context cap. Shorten it.",
    Refusal.NEVER_FITS: "Prompt + max_tokens is more than the whole pool can hold. The message names the largest that fits.",
    Refusal.TOO_MANY_SEQUENCES: "n (times the prompts of a list) is more than the engine runs at once.",
    Refusal.UNKNOWN_MODEL: "No configured engine serves a model of this name, nor stands in for it. `GET /v1/models` lists them.",
    Refusal.BAD_REQUEST: "Body or headers cannot be understood, or ask for what the gate cannot account for. See error codes.",
    Refusal.TENANT_TOO_LARGE: "More blocks than its tenant may reserve at all (`max_blocks`).",
    Refusal.TENANT_SHARE: "No room, and its tenant has more than its share already beside others who asked lately.",
    Refusal.TENANT_BLOCKS: "Its tenant has reserved as many blocks as it may (`max_blocks`).",
    Refusal.TENANT_TOKENS: "Its tenant has taken its tokens of this minute (`tokens_per_minute`).",
    Refusal.POOL_FULL: "No room now, and queueing is switched off.",
    Refusal.QUEUE_FULL: "No room now, and the queue is at its bound of requests or tokens.",
    Refusal.DEADLINE: "No room came, or is expected, before the deadline (`x-kvbudget-deadline-ms`; else `--queue-seconds`, "
    "and under `learned` what is worth it for `--slo-ttft`).",
    Refusal.ENGINE_BUSY: "The engine itself refused it for overload (429, 503, 529; llama.cpp's 500), at three tries of ours.",
    Refusal.LOGPROBS_FULL: "Logprobs of other prompts are being computed (`--max-prompt-logprobs-tokens`).",
    Refusal.DRAINING: "The gate shuts down, or its only instance is taken out of service.",
    Refusal.COUNT_FAILED: "The prompt could not be counted just now, and the upper bound of its tokens is too much to promise.",
    Refusal.LEDGER_LOST: "Several gates share the pool (`--ledger`), and the ledger has not answered for a lease (`--lease-seconds`).",
    Refusal.NO_BACKEND: "No engine that could take it can be reached, makes progress, or has told the size of its pool.",
}
# What each API is charged, for people; KeyError when one is missing.
CHARGES = {
    Surface.CHAT: "prompt by the chat template, `max_completion_tokens` or `max_tokens`, times `n`",
    Surface.COMPLETIONS: "prompts, `max_tokens` (16), times `n` or `best_of`",
    Surface.RESPONSES: "the chat that vLLM makes of it, `max_output_tokens`; with `previous_response_id` the whole window",
    Surface.MESSAGES: "the chat that vLLM makes of it, `max_tokens`",
    Surface.TGI_GENERATE: "`inputs` as plain text, `parameters.max_new_tokens`, times `best_of`",
    Surface.TGI_GENERATE_STREAM: "as `/generate`",
    Surface.EMBEDDINGS: "prompts alone, of a list what a step can hold",
    Surface.POOLING: "as embeddings",
    Surface.CLASSIFY: "as embeddings",
    Surface.SCORE: "pairs, by a bound; of many what a step can hold",
    Surface.RERANK: "pairs, by a bound; of many what a step can hold",
}
FORMS = {None: "OpenAI", RESPONSES: "OpenAI; in a stream a typed `error` event", ANTHROPIC: "Anthropic", TGI: "TGI"}
OUTCOMES = {
    Outcome.FINISHED: "The engine's answer was relayed to its end.",
    Outcome.REFUSED: "Refused at once; see refusals.",
    Outcome.EXPIRED: "Its deadline passed in the queue.",
    Outcome.WITHDRAWN: "The client left while it was counted or waited.",
    Outcome.CLIENT_GONE: "The client left after it was forwarded; the engine's connection was closed at once.",
    Outcome.UPSTREAM_FAILED: "The engine could not be reached or broke off.",
    Outcome.UPSTREAM_REFUSED: "The engine answered with an error, which was relayed.",
    Outcome.ENGINE_LOST: "The engine was restarted, so it no longer knew of the request.",
    Outcome.TIMED_OUT: "The engine kept silent for too long.",
    Outcome.LEASE_LOST: "While it ran, this gate was out of touch with the shared ledger for a lease, and its blocks were given to another gate.",
    Outcome.SHUT_DOWN: "Cut off when the gate ended.",
}
# Why one who waits does so, for people; KeyError when one is missing.
WHYS = {
    Why.TURN: "Others go first: who is before it, or one that lacks room and that it would put off.",
    Why.POOL: "The pool has no room for it beside what is promised.",
    Why.SEQUENCES: "As many sequences run as may (`max_num_seqs`).",
    Why.TENANT_SHARE: "What room there is stays free for other tenants or classes.",
    Why.TENANT_BLOCKS: "Its tenant has reserved as many blocks as it may (`max_blocks`).",
    Why.PROMPTS: "Prompts that the engine has not computed yet come first.",
    Why.ENGINE_BUSY: "The engine said that it is overloaded.",
}
# What the admin port answers.
ADMIN_PATHS = {
    "/": "A browser is led to `/live`; a program gets the list of paths.",
    "/live, /ledger, /simulate": "Pages ([live](how-to/live.md), [ledger](how-to/ledger.md)).",
    "/login, /logout, /api/session": "With `KVBUDGET_ADMIN_TOKEN` alone: signing in ([the admin port](how-to/operate.md#the-admin-port)).",
    "/health, /ready": "For probes; they want no token. `/ready` is 503 while nothing can be served, and says why.",
    "/metrics": "Below.",
    "/v1/state": "The gate as one JSON document; `queue.next` says of each who waits `why`, and `left_ms`, how long still.",
    "/v1/instances": "Each instance; `POST /v1/instances/NAME/drain` and `/resume` take it out and back.",
    "/v1/findings, /v1/forecast": "What is wrong with each engine, and what is foretold of demand.",
    "/v1/mode, /v1/reload": "`POST`: shadow mode on or off; take over the settings.",
    "/api/live, /api/live/stream": "What the live page draws, once, or as server-sent events that begin with the last quarter of an hour.",
    "/api/whatif": '`POST {"max_num_seqs": 12, "max_context": "4k"}`: the last quarter of an hour, simulated with today\'s limits and with these.',
    "/api/plan, /api/export, /api/catalogue, /api/scenarios, /api/simulate, /api/pages": "What the other pages ask, also of `kvbudget ui`.",
}
BACKENDS = {
    "url": "Where it is: `http://HOST:PORT`; or a source of engines (`dns://`, `k8s://`, `http-sd+http://`), each of which gets what the table says.",
    "name": "Its name in metrics, answers and the admin API; host and port where it is not given.",
    "models": "Names under which it is asked for, beside those that the engine lists.",
    "aliases": "Other names, each with the engine's own: the request is sent with that.",
    "weight": "How much work it gets beside others of its kind; 1 where it is not given.",
    "tier": "Its place among lengths, smaller takes first; found from its context where it is not given.",
    "pool_blocks": "As `--pool-blocks`, for this one.",
    "block_size": "As `--block-size`, for this one.",
    "max_context": "As `--max-context`, for this one.",
    "max_num_seqs": "As `--max-num-seqs`, for this one.",
    "borrow": "Share of its pool that work of shorter tiers may reserve; 1 (no limit) where it is not given.",
    "fallback": "Models for which it stands in when no instance of theirs takes a request now.",
    "tokenizer": "As `--tokenizer`, for its model alone: PATH, `engine` (itself) or `bound`. A change needs a restart.",
    "chat_template": "As `--chat-template`, beside its `tokenizer`.",
    "default_chat_template_kwargs": "As `--default-chat-template-kwargs`, beside its `tokenizer`.",
    "image_tokens": "As `--image-tokens`.",
    "fallback_share": "Share of its pool that may be reserved for that; 1 (no limit) where it is not given.",
    "drain": "It gets no work; what it has goes on.",
}
# What stands before the first string of these calls in the source is what the planner says.
SPEAKERS = ("Refusal", "Shared", "Finding", "Reason", "Explanation")  # a Shared becomes a refusal
FINDINGS = {
    "max_model_len_too_large": "One request of full length does not fit the pool.",
    "fp8_experts_unsupported": "Ranks cut through fp8 blocks of experts, and the card lacks the kernel for smaller ones.",
    "free_memory_below_share": "The share is so near to the whole card that the CUDA context leaves less free.",
    "little_headroom": "CUDA graphs of an older version find too little memory beside its share.",
    "batch_default_assumed": "No card is given: the batch, which windows hold, is that of small cards.",
    "weights_doubtful": "The weight files are far smaller or larger than what config.json describes.",
    "weights_assumed": "Of the ledger page: a shape has no weights, and those of a plain decoder around it are taken.",
    "no_kv_memory": "Nothing is left for the cache, or what is left cannot hold one request.",
    "max_model_len_beyond_model": "Longer than config.json allows.",
    "architecture_contradicts_model_type": "`architectures` names a class of another family than `model_type`.",
    "draft_model_pipeline": "A draft model and pipeline stages.",
    "attention_unsupported": "No attention backend of this card has the model's sparse attention.",
    "draft_tokens_not_divisible": "More speculative tokens than the draft module proposes, and no multiple of them.",
    "draft_uncounted": "Nothing tells what a draft takes, so that the plan counts nothing for it.",
    "draft_vocabulary_differs": "A draft model has another vocabulary than its target.",
    "draft_tensor_parallel": "A draft runs on one tensor-parallel rank, or on as many as its target.",
    "intermediate_size_not_divisible": "A feed-forward layer cannot be split over the ranks.",
    "quantised_block_not_divisible": "A rank's part of a matrix is no whole number of quantised blocks or groups.",
    "state_heads_not_divisible": "The heads of recurrent states do not split over the ranks.",
    "heads_not_divisible": "Attention heads do not split over the tensor-parallel ranks.",
    "hybrid_manager_needed": "Without the hybrid KV cache manager the layers cannot be made one type.",
    "stage_without_cache": "All layers of a pipeline stage read the cache of another stage.",
    "vocabulary_not_divisible": "The padded vocabulary cannot be split over the ranks.",
    "kv_heads_not_divisible": "KV heads can be neither split over the ranks nor replicated on them.",
    "context_parallel_not_divisible": "The tensor-parallel ranks do not split into so many decode-context-parallel ones.",
    "context_parallel_sliding_window": "Decode context parallelism and sliding windows.",
    "context_parallel_needs_replicas": "Decode context parallelism of GQA needs more ranks than KV heads.",
    "context_parallel_too_large": "More shards of a sequence than replicas of a KV head.",
    "pipeline_parallel_embedding": "Qwen4-Exp's N-gram embedding with pipeline stages.",
    "architecture_removed": "This vLLM no longer serves the architecture; the fix names the last version that did.",
    "architecture_unsupported": "No vLLM serves the architecture, although its caches are known.",
    "max_num_seqs_beyond_states": "Fewer blocks than sequences, each of which needs one for its recurrent state.",
    "block_size_unsupported": "No attention backend takes this block size.",
    "batched_tokens_below_seqs": "A step has fewer tokens than sequences.",
    "pipeline_start_check": "vLLM 0.14 to 0.16 held one stage's memory against all layers.",
    "cache_types_differ": "MLA in llama.cpp takes one type for keys and values.",
    "cache_type_needs_flash_attention": "A quantised V cache without flash attention.",
    "cache_type_does_not_divide_head": "A head is no multiple of the cache type's block.",
    "batched_tokens_below_length": "Without chunked prefill a step has fewer tokens than max_model_len.",
    "architecture_unknown_then": "This version did not serve the architecture yet.",
    "dtype_unsupported": "The card, or the model, cannot run in this type.",
    "kv_cache_dtype_unsupported": "No attention backend of this card stores this cache format.",
    "beyond_the_card": "Weights and pool leave too little of the card for CUDA graphs and one prefill chunk.",
    "too_few_gpus": "More ranks than cards.",
    "mig_slices_joined": "Several ranks on MIG slices, which cannot be one engine.",
    "gpus_idle": "Cards that no rank uses.",
    "layers_off_the_cards": "llama.cpp keeps layers, or the cache, in the machine's memory.",
    "pool_below_max_model_len": "The engine starts, and refuses requests longer than its pool.",
    "pool_beyond_memory": "The given pool and the weights exceed the card.",
    "below_target_concurrency": "Fewer requests of full length fit than are wanted.",
    "margin_leaves_nothing": "The margin keeps so much back that no request of full length may run.",
    "fits_only_at_best_estimate": "What fits at the best estimate of the memory does not at its low end.",
    "class_defaults_decide": "Sizes that decide the cache are not in config.json; its class's defaults are planned with.",
    "longer_than_class_default": "The length is beyond what the config class has where config.json says none.",
    "state_checkpoint_possible": "Some prefill kernels keep one block more per state group; the plan counts none.",
    "quantisation_only_in_name": "The model's name says that it is quantised and its config does not.",
    "length_beyond_max_model_len": "A percentile is longer than the context, and was cut.",
    "command_flag_unknown": "A flag of the command is not in the engine's list, or not in that of this version.",
    "command_flag_unmodelled": "A flag or variable of the command moves memory in a way that is not computed.",
    "command_unclear": "Something in the command cannot be seen, or means another thing than it seems to.",
}
REASONS = {
    "schema_changed": "The file is of another schema.",
    "model_changed": "Another structure.",
    "config_changed": "Another config.json of the same structure.",
    "precision_changed": "Another weight or cache format.",
    "hardware_changed": "Another card, or another number of them.",
    "engine_changed": "Another rule or version.",
    "flags_changed": "The engine runs with another value.",
    "cache_changed": "A token, a request or a block costs another number of bytes.",
    "pool_changed": "The pool moved by more than its tolerance.",
    "workload_moved": "Lengths moved by more than their tolerance.",
    "below_target_concurrency": "Fewer requests than the target.",
    "no_longer_fits": "The engine would not start.",
    "gate_beyond_plan": "[gate] promises more than the engine has.",
    "receipt_differs": "The newest receipt is further from the plan than its tolerance.",
    "receipt_of_other_engine": "What was measured is another engine or version.",
    "receipt_of_other_flags": "What was measured was started with other flags.",
    "engine_refused": "The engine refused to start.",
    "review_due": "The date of review has passed.",
}
EXPLANATIONS = {
    "tokens_of_older_vllm": "The log's token number had another meaning in that version.",
    "tightest_rank": "The rank with the least memory sizes the pool of all.",
    "graphs_after_the_pool": "CUDA graphs are captured after the pool was sized.",
    "shared_card": "Another process holds memory of the card.",
    "foreign_memory": "Memory of the card was taken before the engine started.",
    "blocks_given": "The number of blocks was asked for; memory did not decide it.",
    "other_engine": "Plan and receipt are of different engines.",
    "other_version": "Plan and receipt are of different versions.",
    "other_model": "The log is of another model than the budget.",
    "other_flags": "Plan and receipt are of different flags.",
    "refused_to_start": "The engine's own words.",
}
ERRORS = {
    BadValueError.code: "A flag or field has an unusable value, or a file is not there.",
    BadConfigError.code: "A file is damaged, contradicts itself, or lacks a field that has no default.",
    UnsupportedError.code: "Well-formed, but not known here: never guessed.",
    InputError.code: "What was given cannot be used, and no code above says it closer.",
    "usage": "A flag or command that is not there, or lacks a value; on stderr in argparse's own form.",
    "missing_library": "A command of another extra: what to install is said.",
    AccountingError.code: "The ledger was misused: a bug of ours, not of the input; please report it.",
}
CLAMPED = [
    "### Too large a `max_tokens`",
    "",
    "A `max_tokens` over the context cap is no reason to refuse: it is clamped to what the cap leaves beside the prompt, and the",
    "clamped number is written into the forwarded body ([ADR 0003](adr/0003-clamp-or-refuse.md)). With a cap of 8,192 and a prompt",
    "of 1,000 counted tokens, `max_tokens: 100000` is served as 7,192. The 400 `context_length_exceeded` is for a prompt that leaves no",
    "room for one token under the cap, and for what the whole pool could never hold: `max_tokens` is not cut for the pool's sake",
    "where the client named it, so the message names the largest that fits. The other APIs are clamped alike, under",
    "their own names of the field.",
]
HEADERS = """## Headers

| request header | meaning |
|---|---|
| `x-request-id` | kept if printable and at most 128 characters, else one is made; sent on to the engine and answered (to Anthropic's clients as `request-id` too) |
| `traceparent`, `tracestate` | W3C trace context: reaches the engine as it came. With `--otlp-endpoint` the engine gets the id of our span as its parent, and a trace begins here where there is none |
| `x-kvbudget-tenant` | whom to account the request to: 1 to 64 letters, digits, `.`, `_`, `-`; else one per API key (`key-` and a hash of the Authorization or x-api-key header), else `default` |
| `x-kvbudget-priority` | whole number from -100 to 100, smaller is more urgent (vLLM's sign); 0 if absent |
| `x-kvbudget-deadline-ms` | refuse it (429) if it cannot be forwarded within so many milliseconds |

| response header | meaning |
|---|---|
| `x-request-id` | of every answer, also to what is malformed; to Anthropic's clients as `request-id` too |
| `x-kvbudget-reserved-blocks` | blocks promised to this request at its worst moment; 0 of a refusal or an error of the gate |
| `x-kvbudget-queue-ms` | how long it waited for room, also in vain |
| `x-kvbudget-prompt-tokens` | what was counted, or charged where no count was to be had |
| `x-ratelimit-limit-tokens`, `-remaining-tokens`, `-reset-tokens` | the pool in tokens, what is not promised of it, and the time in which this request would give its part back; of a refusal, until room is expected (as `retry-after-ms`), 0 where waiting does not help |
| `anthropic-ratelimit-tokens-limit`, `-remaining`, `-reset` | the same on `/v1/messages`, the reset as a time of day |
| `x-kvbudget-count` | on `/v1/messages/count_tokens`: `exact`, or `bound` where the prompt was only bounded |
| `retry-after`, `retry-after-ms` | on 429 and 503: when room is expected, 1 to 120 s, lengthened by up to a quarter at random |
| `x-should-retry` | `false` where the same request can never succeed |

The figures come with every answer on a charged path and with every error of the gate. What passes without a charge is the
engine's own answer, with `x-request-id` alone. Every other header passes both ways, hop-by-hop ones aside.
"""
