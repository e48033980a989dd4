"""Which texts are refused before anything costly is done with them."""

import re

from kvbudget.edge.openai.errors import BadRequestError

# Bytes of text per request. Even the slowest counter (Hugging Face, one giant word: 1 MB/s) ends.
MAX_TEXT_BYTES = 8 * 1024 * 1024
# Characters without a place where a pre-tokenizer would cut: oss-harmony, which vLLM 0.32 uses for gpt-oss, needs
# 1.5 s for 64 KB and four times that for twice as much (openai/harmony issue 151).
MAX_RUN_CHARS = 64 * 1024

# One class each: letters, blanks, signs, digits. Real text changes class every few characters.
_RUNS = re.compile(r"[^\W\d_]++|\s++|[^\w\s]++|[\d_]++")


def check_text(texts: list[str], max_bytes: int, max_run_chars: int) -> None:
    """Raise BadRequestError when the texts are too large together or one has too long an unbroken run."""
    size = sum(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > max_bytes:
        raise BadRequestError(
            f"The prompt has {size} bytes of text, at most {max_bytes} are accepted", None, "prompt_too_large"
        )
    for text in texts:
        if has_long_run(text, max_run_chars):
            raise BadRequestError(
                f"The prompt holds more than {max_run_chars} letters, signs or blanks in an unbroken run; tokenizers "
                "take quadratic time on it. Break it up with spaces or line ends",
                None,
                "unbroken_run_too_long",
            )


def has_long_run(text: str, max_chars: int) -> bool:
    """Whether more than `max_chars` characters of one class follow one another.

    Such a run covers one position of every `max_chars`; only runs through those positions are measured, so prose costs
    nothing and the worst text is read about twice.
    """
    step = max_chars + 1
    for probe in range(step - 1, len(text), step):
        # A run longer than max_chars through `probe` holds the whole of the step before it or reaches beyond it.
        start = _run_start(text, probe, max_chars)
        match = _RUNS.match(text, start)
        if match is not None and match.end() - start > max_chars:
            return True
    return False


def _run_start(text: str, probe: int, reach: int) -> int:
    """First character of the run through `probe`, looking back at most `reach` characters, by doubling."""
    back = 64
    while True:
        low = max(probe - min(back, reach), 0)
        last = None
        for last in _RUNS.finditer(text, low, probe + 1):  # noqa: B007 - the last one is the run that ends at probe
            pass
        start = probe if last is None else last.start()
        if start > low or low == max(probe - reach, 0):
            return start
        back *= 8
