"""Decides who has more than its share of the pool, whose turn is next, and what stays free for those who have less.

Service is blocks x time: a request is charged, when it is forwarded, what it is expected to hold for as long as it is
expected to live, and when it has ended, what it held and how long. Divided by the weight that is a tenant's virtual
service; whoever had least is next (start-time fair queueing: Goyal, Vin, Cheng 1996). Who comes for the first time, or
comes back, starts where the others are, less CREDIT_NS of its share, so that nobody hoards turns.

Whoever asked for clearly more than its part of what all asked for lately (SLACK), and held more than its part of what
all held, borrows, unless it had clearly less service for its weight (BEHIND_NS), and has to leave free what the others
held lately beyond what they hold now: of blocks the mean, and the variance, which the promise takes into its risk
(`gate.learning.learned`); of slots as much (max_num_seqs: an engine that runs so many preempts nobody for a more urgent
one). A less urgent class borrows from each more urgent one in the same way, whatever its part, and leaves free at least
what is reserved for it. By the same rule on prompt tokens, asked for and sent, prompts join the engine's queue one by
one (`gate.learning.lane`). What was asked for counts, and not only what was had, because whoever is held back has no
more than others, and others have bursts.

All else may use everything that is free, and what was lent comes back as answers end. With one tenant and one class
nobody borrows and nothing is counted.
"""

from collections import OrderedDict
from collections.abc import Mapping

from kvbudget.gate.learning.lane import Lane
from kvbudget.gate.learning.level import Fading
from kvbudget.gate.tenants.accounts import Account, Charge, Flow
from kvbudget.gate.tenants.kept import Kept, held_lately, kept_by_class
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits, limits_of, tenant_of
from kvbudget.pool.risk import Outlook

ACTIVE_NS = 120 * 10**9  # who was not seen for so long has no part
CREDIT_NS = 5 * 10**9
# Of its share: who lacks more than that, beside whoever was let in, borrows nothing. One burst of another must not be
# enough: at 1 s a flood was free of all that is kept in 6 s of 37.
BEHIND_NS = 8 * 10**9
SLACK = 1.4
# Others who ask for no more than this part of all prompt tokens, and of all requests, hold nobody up: a request a
# minute must not slow down a server. (Three chats a second beside documents are few tokens, and many who would wait.)
# What a class has reserved is kept for it however little it asks.
FEW = 0.03
# A flood has to be seen before it has filled the pool: who is new is held to less, where others are not new as well.
NEW_NS = 15 * 10**9
NEW_SLACK = 0.5
# Prompts that go one by one may be as many tokens together, 26 ms of the assumed engine: with 128 it reads fewer in as
# many steps, and where prompts are all that there is too much of, two tenants had 7 % refused whom it could serve.
LANE_TOKENS = 512
# Beside a more urgent class: with 512 p99 TTFT of chats beside bulk was 1.53 times what it is alone, with these 1.24
# (twelve seeds), and as much bulk is served.
LANE_TOKENS_BESIDE_URGENT = 128
SCALE_WEIGHT = 0.02  # of the newest look
LOOK_NS = 50_000_000  # so old what is kept may be, for each LOOK_FLOWS that are looked at, flows or accounts
LOOK_FLOWS = 32
MOST_TENANTS = 4096  # names come from outside; those beyond share one account
OTHERS = "(others)"


class Shares:
    """Accounts of all tenants over one pool of `capacity_blocks` and `slots`."""

    def __init__(
        self,
        capacity_blocks: int,
        slots: int,
        tenants: Mapping[str, TenantLimits],
        classes: Mapping[int, ClassLimits],
        lane: Lane,
    ) -> None:
        self.capacity_blocks = max(1, capacity_blocks)
        self.lane = lane
        self._slots = slots
        self._tenants = tenants
        self._classes = classes
        self._alone: tuple[str, int] | None = None  # the only tenant and class that ever came
        self._alone_times = Fading(0)  # its requests
        self._since_ns: int | None = None  # the first request
        self._virtual = 0.0  # where whoever comes back starts
        self._accounts: OrderedDict[str, Account] = OrderedDict()  # who was seen longest ago first
        self._weights = 0.0
        self._with_weight: dict[float, int] = {}  # accounts; there are few different weights
        self._flows: dict[tuple[int, str], Flow] = {}
        self._charges: dict[str, Charge] = {}
        self._in_class: dict[int, int] = {}  # sequences of each class that was seen lately
        self._all = Account("", 0.0, 0)
        self._kept: dict[int, tuple[Kept, Kept]] = {}  # by class: for all in it, and for those who do not borrow
        self._kept_until_ns = -1
        self._lent = False  # somebody borrows
        self._scale = 1.0  # what is held really, over what was expected to be held

    def configure(self, slots: int, tenants: Mapping[str, TenantLimits], classes: Mapping[int, ClassLimits]) -> None:
        """Other weights and reserves hold from now on."""
        self._slots = slots
        self._tenants = tenants
        self._classes = classes
        self._with_weight.clear()
        for account in self._accounts.values():
            account.weight = self.weight_of(account.name)
            self._weigh(account.weight, +1)
        self._kept_until_ns = -1

    # What happens

    def arrived(self, tenant: str, priority: int, now_ns: int) -> tuple[str, int] | None:
        """A request came. With the second tenant or class counting begins: tell `forwarded` of all that live, who are
        of the tenant and class that are returned."""
        alone = self._alone
        if alone is not None and alone[0] == tenant and alone[1] == priority and not self._classes:
            self._alone_times.add(1.0, now_ns)
            return None
        if self._since_ns is None:
            self._since_ns = now_ns
        begins = self._alone
        if not self._accounts and begins is None and not self._classes:
            self._alone = (tenant, priority)
            return None
        self._alone = None
        if begins is not None:
            first = self._account(begins[0], now_ns)
            first.opened_ns = self._since_ns
            for one in (first, self._all):
                one.asked_times.add(self._alone_times.measure(now_ns), now_ns)
        account = self._account(tenant, now_ns)
        account.seen_ns = now_ns
        self._accounts.move_to_end(account.name)
        self._close_idle(now_ns)
        account.virtual = max(account.virtual, self._virtual - CREDIT_NS / self._weights)
        return begins

    def asked(
        self, tenant: str, *, blocks: float, sequences: int, prompt_tokens: int, lives_ns: float, now_ns: int
    ) -> None:
        """The one who came asks for so much, whether it is let in or not."""
        account = self._account(tenant, now_ns)
        for one in (account, self._all):
            one.asked.add(lives_ns * self._part(blocks, sequences), now_ns)
            one.asked_prompt.add(prompt_tokens, now_ns)
            one.asked_times.add(1.0, now_ns)

    def forwarded(
        self,
        request_id: str,
        tenant: str,
        priority: int,
        *,
        blocks: float,
        sequences: int,
        prompt_tokens: int,
        lives_ns: float,
        now_ns: int,
    ) -> None:
        """A promise was made that is expected to hold `blocks` for `lives_ns`."""
        account = self._account(tenant, now_ns)
        charge = Charge(account, priority, blocks, sequences, now_ns)
        self._charges[request_id] = charge
        self._virtual = max(self._virtual, account.virtual)
        charge.service = lives_ns * self._part(blocks, sequences)
        account.virtual += charge.service / account.weight
        for one in (account, self._all):
            one.sent_prompt.add(prompt_tokens, now_ns)
        self._hold(charge, +1, now_ns)

    def ended(self, request_id: str, blocks: float | None, now_ns: int) -> str | None:
        """Its blocks are back; it held `blocks` on average, None if that is not known. Returns whose it was, if it was
        counted."""
        charge = self._charges.pop(request_id, None)
        if charge is None:
            return None
        account = charge.account
        part = self._part(charge.blocks if blocks is None else blocks, charge.sequences)
        account.virtual += ((now_ns - charge.made_ns) * part - charge.service) / account.weight
        self._hold(charge, -1, now_ns)
        return account.name

    # Decisions

    @property
    def counting(self) -> bool:
        """Whether there is more than one tenant and class."""
        return bool(self._accounts)

    def virtual_of(self, tenant: str) -> float:
        """Service that it had, over its weight."""
        account = self._find(tenant)
        return self._virtual if account is None else account.virtual

    def weight_of(self, tenant: str) -> float:
        """Its weight."""
        return limits_of(tenant_of(tenant), self._tenants).weight

    def borrows(self, tenant: str, now_ns: int) -> bool:
        """Whether it asks for clearly more than its part of the pool, and has more; not while it had clearly less
        service for its weight than others who were let in (BEHIND_NS)."""
        account, everybody = self._find(tenant), self._all
        if account is None or len(self._accounts) <= 1:
            return False
        if account.virtual < self._virtual - BEHIND_NS / self._weights:
            return False
        part = account.weight / self._weights
        if account.asked.measure(now_ns) <= self._slack(account, now_ns) * part * everybody.asked.measure(now_ns):
            return False
        if account.blocks.lasting(now_ns) > part * everybody.blocks.measure(now_ns)[0]:
            return True
        return account.sequences.lasting(now_ns) > part * everybody.sequences.measure(now_ns)[0]

    def lends(self, tenant: str, priority: int, now_ns: int) -> bool:
        """Whether others hold what it might claim."""
        if any(sequences > 0 for other, sequences in self._in_class.items() if other > priority):
            return True
        return self._lent and not self.borrows(tenant, now_ns)

    def prompt_may_go(self, tenant: str, priority: int, prompt_tokens: int, now_ns: int) -> bool:
        """Whether its prompt would hardly stand in the way of others."""
        beside_urgent = any(other < priority for other in self._in_class)
        most_tokens = LANE_TOKENS_BESIDE_URGENT if beside_urgent else LANE_TOKENS
        if self.lane.has_room(prompt_tokens, most_tokens, now_ns):
            return True
        if beside_urgent and any(other < priority and other in self._classes for other in self._in_class):
            return False
        account, everybody = self._find(tenant), self._all
        if account is None or len(self._accounts) <= 1:
            return True
        asked = everybody.asked_prompt.measure(now_ns)
        if asked - account.asked_prompt.measure(now_ns) < FEW * asked:
            times = everybody.asked_times.measure(now_ns)
            if times - account.asked_times.measure(now_ns) < FEW * times:
                return True
        if beside_urgent:
            return False
        part = account.weight / self._weights
        slack = self._slack(account, now_ns)
        if not self.lane.has_own_room(tenant, prompt_tokens, most_tokens):
            return False
        if account.asked_prompt.measure(now_ns) <= slack * part * asked:
            return True
        had_no_more = account.sent_prompt.measure(now_ns) <= part * everybody.sent_prompt.measure(now_ns)
        return had_no_more and slack == SLACK  # of one who is new, having had little says nothing

    def kept_from(self, tenant: str, priority: int, outlook: Outlook | None, now_ns: int) -> Kept | None:
        """What it has to leave free for others; None if nothing. `outlook`: what the living promises will hold."""
        if now_ns >= self._kept_until_ns:
            self._look_ahead(outlook, now_ns)
        borrows = self.borrows(tenant, now_ns)
        found: Kept | None = None
        for other, (everybody, lenders) in self._kept.items():
            if other < priority:
                found = everybody if found is None else found + everybody
            elif other == priority and borrows:
                found = lenders if found is None else found + lenders
        return found

    # Parts

    def _slack(self, account: Account, now_ns: int) -> float:
        since_ns = now_ns if self._since_ns is None else self._since_ns
        is_new = account.opened_ns + NEW_NS > now_ns >= since_ns + NEW_NS
        return NEW_SLACK if is_new else SLACK

    def _part(self, blocks: float, sequences: int) -> float:
        """The part of the pool or of its slots that this is, whichever is more."""
        return max(blocks / self.capacity_blocks, sequences / self._slots)

    def _hold(self, charge: Charge, sign: int, now_ns: int) -> None:
        account = charge.account
        key = (charge.priority, account.name)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(account, now_ns)
        flow.seen_ns = now_ns
        self._in_class[charge.priority] = self._in_class.get(charge.priority, 0) + sign * charge.sequences
        flow.squares.change(sign * charge.blocks**2, now_ns)
        for holder in (flow, account, self._all):
            holder.blocks.change(sign * charge.blocks, now_ns)
            holder.sequences.change(sign * charge.sequences, now_ns)

    def _find(self, tenant: str) -> Account | None:
        account = self._accounts.get(tenant)
        return self._accounts.get(OTHERS) if account is None else account

    def _account(self, tenant: str, now_ns: int) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            name = tenant if len(self._accounts) < MOST_TENANTS else OTHERS
            account = self._accounts.get(name)
            if account is None:
                weight = self.weight_of(name)
                account = self._accounts[name] = Account(name, weight, now_ns)
                account.virtual = self._virtual
                self._weigh(weight, +1)
        return account

    def _weigh(self, weight: float, sign: int) -> None:
        """One account more or less. The sum is made anew: of very different weights a running one would keep nothing
        but its rounding."""
        counts = self._with_weight
        counts[weight] = counts.get(weight, 0) + sign
        if not counts[weight]:
            del counts[weight]
        self._weights = sum([one * count for one, count in counts.items()])

    def _close_idle(self, now_ns: int) -> None:
        """Forget who was not seen for long and holds nothing. The one who just came is always left."""
        while True:
            account = next(iter(self._accounts.values()))
            if account.seen_ns + ACTIVE_NS > now_ns:
                return
            if account.sequences.now > 0:
                account.seen_ns = now_ns
                self._accounts.move_to_end(account.name)
            else:
                del self._accounts[account.name]
                self._weigh(account.weight, -1)

    def _look_ahead(self, outlook: Outlook | None, now_ns: int) -> None:
        """What is kept, anew."""
        self._kept_until_ns = now_ns + LOOK_NS * (1 + max(len(self._flows), len(self._accounts)) // LOOK_FLOWS)
        lenders = {name: not self.borrows(name, now_ns) for name in self._accounts}
        self._lent = not all(lenders.values())
        if outlook is not None and self._all.blocks.now > 0:
            self._scale += SCALE_WEIGHT * (outlook.held_now() / self._all.blocks.now - self._scale)
        for key, flow in list(self._flows.items()):
            if flow.sequences.now <= 0 and flow.seen_ns + ACTIVE_NS <= now_ns:
                del self._flows[key]
        lately = held_lately(self._flows, lenders, self._scale, now_ns, independent=outlook is not None)
        self._kept = kept_by_class(lately, self._charges, lenders, self._classes, outlook)
        self._in_class = {priority: held for priority, held in self._in_class.items() if priority in self._kept}
