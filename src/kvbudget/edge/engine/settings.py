"""What can be set on the embedded engine, and what follows from it."""

from dataclasses import dataclass

from kvbudget.errors import BadValueError
from kvbudget.pool.groups import Layout, uniform_layout


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Flags of one embedded engine; names as vLLM's where vLLM has them.

    `num_blocks` includes the null block. A step lasts `step_cost_s` + `token_cost_s` * tokens scheduled in it; 0 is as
    fast as possible. Answers that are not cut by max_tokens end by themselves after `mean_output_tokens` on average
    (`ignore_eos` switches that off). `deterministic`: response ids follow from the prompt and `created` is constant, so
    that two answers to one request are equal byte for byte.
    """

    num_blocks: int = 2049
    block_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    step_cost_s: float = 0.0
    token_cost_s: float = 0.0
    served_model_name: str = "embedded"
    mean_output_tokens: int = 128
    deterministic: bool = False

    def __post_init__(self) -> None:
        """Raises BadValueError for values that no engine could use; whether the pool suffices is the engine's check."""
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "mean_output_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise BadValueError(f"{name}: {value} is below 1", fix=f"give {name} at least 1")
        for name in ("step_cost_s", "token_cost_s"):
            value = getattr(self, name)
            if not 0 <= value <= 60:
                raise BadValueError(f"{name}: {value} is not between 0 and 60 seconds", fix="give seconds, e.g. 0.01")
        if not self.served_model_name:
            raise BadValueError("served_model_name: empty", fix="give the name that requests will use as `model`")

    @property
    def layout(self) -> Layout:
        """One full-attention group: the only kind that the embedded engine has so far."""
        return uniform_layout(self.block_size)
