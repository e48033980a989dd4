"""Decides how tests write a scrape: names and values, one label set for all, histograms from counts per bucket."""

from collections.abc import Callable, Mapping, Sequence

import pytest

Text = Callable[..., str]


def text(values: Mapping[str, float], labels: str = "", histograms: Mapping[str, Sequence[float]] | None = None) -> str:
    """`histograms`: cumulative counts below 1, 10 and infinity, and the sum."""
    braces = f"{{{labels}}}" if labels else ""
    lines = [f"{name}{braces} {value}" for name, value in values.items()]
    for name, (one, ten, every, total) in (histograms or {}).items():
        comma = f",{labels}" if labels else ""
        lines += [
            f'{name}_bucket{{le="{le}"{comma}}} {count}' for le, count in (("1.0", one), ("10", ten), ("+Inf", every))
        ]
        lines += [f"{name}_sum{braces} {total}", f"{name}_count{braces} {every}"]
    return "\n".join(lines) + "\n"


@pytest.fixture(name="text")
def text_fixture() -> Text:
    return text
