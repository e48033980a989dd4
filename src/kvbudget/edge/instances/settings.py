"""What an operator may say of one engine instance behind the gate; what is not said holds as for all."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvbudget.gate.fleet.options import MemberOptions
from kvbudget.pool.groups import Layout
from kvbudget.units import Tokens


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """`name`: empty for its host and port. `models`: names under which it is asked for, those that its engine tells
    aside. `aliases`: other names, and the engine's own for each. `fallback`: models for which it stands in. `drain`: it
    gets no work. `tokenizer`, with the text of a `chat_template` and its arguments, and `image_tokens`: as in
    `CountingSettings`, of its model. The rest as in `ServiceSettings` and `MemberOptions`; None: as for all instances.
    """

    url: str
    name: str = ""
    pool_blocks: int | None = None
    block_size: int | None = None
    layout: Layout | None = None
    max_context: Tokens | None = None
    max_num_seqs: int | None = None
    models: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    fallback_share: float = 1.0
    borrow: float = 1.0
    weight: float = 1.0
    tier: int | None = None
    drain: bool = False
    tokenizer: str | None = None
    chat_template: str | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    image_tokens: int | None = None

    @property
    def shown_name(self) -> str:
        """Its name in metrics, answers and the admin API."""
        return self.name or self.url.split("://", 1)[-1].rstrip("/")

    def options(self) -> MemberOptions:
        """As its fleet sees it."""
        return MemberOptions(
            models=frozenset((*self.models, *self.aliases)),
            weight=self.weight,
            tier=self.tier,
            borrow=self.borrow,
            fallback=frozenset(self.fallback),
            fallback_share=self.fallback_share,
        )
