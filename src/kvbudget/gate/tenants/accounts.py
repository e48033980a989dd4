"""What is kept of every tenant: the service that it had and asked for, and what it holds in each class."""

from kvbudget.gate.learning.level import Fading, Level


class Account:
    """What is known of one tenant, or of all together."""

    __slots__ = (
        "asked",
        "asked_prompt",
        "asked_times",
        "blocks",
        "name",
        "opened_ns",
        "seen_ns",
        "sent_prompt",
        "sequences",
        "virtual",
        "weight",
    )

    def __init__(self, name: str, weight: float, now_ns: int) -> None:
        self.name = name
        self.weight = weight
        self.opened_ns = now_ns
        self.seen_ns = now_ns
        self.virtual = 0.0  # parts of the pool x ns / weight
        self.blocks = Level(now_ns)  # expected to be held
        self.sequences = Level(now_ns)
        self.asked = Fading(now_ns)  # service
        self.asked_prompt = Fading(now_ns)  # tokens
        self.asked_times = Fading(now_ns)  # requests
        self.sent_prompt = Fading(now_ns)


class Flow:
    """What one tenant holds in one class."""

    __slots__ = ("account", "blocks", "seen_ns", "sequences", "squares")

    def __init__(self, account: Account, now_ns: int) -> None:
        self.account = account
        self.seen_ns = now_ns
        self.blocks = Level(now_ns)
        self.squares = Level(now_ns)  # of the blocks of each that lives
        self.sequences = Level(now_ns)


class Charge:
    """One living promise."""

    __slots__ = ("account", "blocks", "made_ns", "priority", "sequences", "service")

    def __init__(self, account: Account, priority: int, blocks: float, sequences: int, now_ns: int) -> None:
        self.account = account
        self.priority = priority
        self.blocks = blocks
        self.sequences = sequences
        self.made_ns = now_ns
        self.service = 0.0  # charged
