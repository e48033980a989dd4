"""Decides how a running engine or gate is observed: scrapes of /metrics over a window, and the page with its limits.

A scrape costs the engine something (one of vLLM builds some 60 kB): there are looks in between only where they are
cheap.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from kvbudget.edge.instances.details import details_in, details_page
from kvbudget.edge.observing.asking import Answer, Asker, refused
from kvbudget.engines.metrics.llamacpp import with_slots
from kvbudget.engines.metrics.observation import observation_of_scrapes, scrape_of
from kvbudget.engines.metrics.span import Scrape
from kvbudget.engines.window import EngineWindow, Observation
from kvbudget.units import Tokens

LOOKS_BETWEEN = 4
CHEAP_S = 0.25
CHEAP_BYTES = 2 * 1024**2
Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Live:
    """One address of metrics. It keeps its last scrape, so that each window begins where the last one ended."""

    def __init__(
        self, url: str, shown: str, asker: Asker, clock: Clock = time.monotonic, sleep: Sleep = time.sleep
    ) -> None:
        self.url, self.shown = url, shown
        self._asker, self._clock, self._sleep = asker, clock, sleep
        self._last: list[Scrape] = []
        self._began = clock()

    def over(self, window_s: float) -> Observation:
        """Waits `window_s`, or less where the last scrape is older; 0: one more scrape, and what was since the last.

        Raises BadValueError where it does not answer, UnsupportedError where it is no engine's.
        """
        scrapes, problems = self._last, []
        if not scrapes:
            scrapes = [self._first()]
            observation_of_scrapes(scrapes, source=self.shown)  # what is no engine's is not waited for
        ends_s = (scrapes[-1].at_s or 0.0) + window_s
        if window_s > 0:
            scrapes = scrapes + self._between(ends_s)
            self._sleep(max(0.0, ends_s - self._now_s()))
        if window_s > 0 or scrapes is self._last:
            answer, newest = self._asked()
            if newest is None:
                problems.append(str(refused(self.shown, answer)))
            else:
                scrapes = [*scrapes, newest]
        self._last = scrapes[-1:]
        observation = observation_of_scrapes(scrapes, source=self.shown)
        engines = observation.engines
        if len(engines) == 1:
            engines = (self._detailed(engines[0]),)
        return replace(observation, engines=engines, problems=tuple(problems))

    def _between(self, ends_s: float) -> list[Scrape]:
        began = self._now_s()
        step_s = (ends_s - began) / (LOOKS_BETWEEN + 1)
        found: list[Scrape] = []
        for index in range(1, LOOKS_BETWEEN + 1):
            at_s = began + index * step_s
            if at_s <= self._now_s() or step_s < CHEAP_S:
                continue
            self._sleep(at_s - self._now_s())
            asked_s = self._now_s()
            answer, scrape = self._asked()
            if scrape is not None:
                found.append(scrape)
            if scrape is None or self._now_s() - asked_s > CHEAP_S or len(answer.text) > CHEAP_BYTES:
                break
        return found

    def _first(self) -> Scrape:
        """trtllm-serve has JSON at /metrics, and its metrics one level deeper."""
        answer, scrape = self._asked()
        if scrape is None:
            raise refused(self.shown, answer)
        if not scrape.samples and answer.text.lstrip()[:1] in ("[", "{") and self.url.endswith("/metrics"):
            given = self.url
            self.url = given.removesuffix("/metrics") + "/prometheus/metrics"
            deeper = self._asked()[1]
            if deeper is not None and deeper.samples:
                return deeper
            self.url = given
        return scrape

    def _asked(self) -> tuple[Answer, Scrape | None]:
        answer = self._asker.get(self.url)
        return answer, scrape_of(answer.text, self._now_s()) if answer.status == 200 else None

    def _now_s(self) -> float:
        return self._clock() - self._began

    def _detailed(self, window: EngineWindow) -> EngineWindow:
        """With what the engine tells on another page of the same port; a page that does not answer tells nothing."""
        parts = urlsplit(self.url)
        base = f"{parts.scheme}://{parts.netloc}"
        if window.engine == "vllm":
            version = _object(self._asker.get(f"{base}/version").document).get("version")
            return replace(window, version=version[:40]) if isinstance(version, str) else window
        page = details_page(window.engine)
        if page is None:
            return window
        document = _object(self._asker.get(base + page).document)
        if window.engine == "llamacpp":
            slots = self._asker.get(f"{base}/slots").document
            return with_slots(window, document, slots if isinstance(slots, list) else [])
        return _with_details(window, document)


def _with_details(window: EngineWindow, document: dict[str, object]) -> EngineWindow:
    details = details_in(window.engine, document)
    if details is None:
        return window
    limits, version = window.limits, document.get("version")
    page = None if details.page_tokens is None else Tokens(details.page_tokens)
    step = document.get("chunked_prefill_size", document.get("max_batch_prefill_tokens"))
    radix_off = document.get("disable_radix_cache")
    return replace(
        window,
        version=version[:40] if isinstance(version, str) else window.version,
        model=window.model or (details.models[0] if details.models else None),
        limits=replace(
            limits,
            pool=details.pool_of(limits.pool),
            max_num_seqs=limits.max_num_seqs or details.max_num_seqs,
            max_num_batched_tokens=step if type(step) is int and step > 0 else limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len or details.max_context,
            prefix_caching=not radix_off if isinstance(radix_off, bool) else limits.prefix_caching,
            smallest_block=limits.smallest_block or page,
            largest_block=limits.largest_block or page,
        ),
    )


def _object(document: object) -> dict[str, object]:
    return document if isinstance(document, dict) else {}
