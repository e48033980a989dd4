"""What the pages answer over HTTP, and that a page needs nothing from elsewhere."""

import asyncio
import json
import re
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from kvbudget.cli.main import main
from kvbudget.edge.asgi import start_asgi
from kvbudget.edge.web.asked import in_words_of_the_page
from kvbudget.edge.web.pages import LARGEST_CONFIG, page_routes, to_ledger
from kvbudget.edge.web.simulation import Simulator
from kvbudget.errors import BadValueError
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.pool.groups import LayerKind

STATIC = files("kvbudget.edge.web") / "static"
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
    "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip


def _got(path: str, content: bytes | None = None) -> httpx.Response:
    """One answer of pages that stand alone."""

    async def run() -> httpx.Response:
        server = await start_asgi(Starlette(routes=[Route("/", to_ledger), *page_routes(Simulator())]), "127.0.0.1", 0)
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
                return await client.request("GET" if content is None else "POST", path, content=content)
        finally:
            await server.close()

    return asyncio.run(run())


def test_the_default_address_says_128_kib_a_token_and_16_gib_in_all() -> None:
    answer = _got("/api/plan?layers=32&kv_heads=8&head_dim=128&dtype=fp16&context=8192&concurrency=16&block=16")
    document = answer.json()
    assert (answer.status_code, document["schema"]) == (200, "kvbudget.ledger/1")
    assert answer.headers["content-type"] == "application/json"
    figures = document["figures"]
    assert figures["per_token"] == {"bytes": 131072, "text": "128 KiB"}
    assert figures["needed"]["bytes"] == figures["held"]["bytes"] == 16 * 1024**3
    assert (figures["tokens_per_mib"], figures["tail_slots"]) == (8, 0)
    assert document["formula"][0].startswith("32 × 8 × 128 × 2 × 2 B = 131,072 B")
    assert _got("/api/plan").json() == document


def test_ratios_are_those_that_a_pencil_gives() -> None:
    document = _got("/api/plan?kv_heads=32").json()
    ratios = {change["code"]: change["ratio"] for change in document["changes"]}
    assert ratios["kv_heads_quarter"] == 0.25
    assert ratios["context_double"] == ratios["requests_double"] == ratios["layers_double"] == 2


def test_the_same_tokens_in_shorter_requests_hold_as_much_and_one_of_them_less() -> None:
    rows = _got("/api/plan").json()["splits"]
    assert {row["tokens"] for row in rows} == {8192 * 16}
    assert {row["held"]["bytes"] for row in rows} == {16 * 1024**3}
    assert [row["blocks_each"] for row in rows] == sorted((row["blocks_each"] for row in rows), reverse=True)


def test_a_card_shows_its_parts_from_its_start_to_its_end() -> None:
    document = _got("/api/plan?model=Llama-3.1-8B&gpu=h100&context=32k&concurrency=8").json()
    bar = document["bar"]
    assert [part["key"] for part in bar] == ["weights", "activation", "cuda_graphs", "non_torch", "kv", "free"]
    assert sum(part["bytes"] for part in bar) == document["plan"]["memory"]["total"]["bytes"]
    for before, after in pairwise(bar):
        assert after["from"] == pytest.approx(before["from"] + before["share"])
    assert document["retreat"], "what to do when it does not fit"


@pytest.mark.parametrize("path", ["/api/plan", "/api/export/plan.json"])
def test_more_bytes_than_64_bits_count_are_still_a_whole_number(path: str) -> None:
    answer = _got(f"{path}?layers=512&kv_heads=512&head_dim=4096&context=1000000000&concurrency=1000000&block=1")
    assert answer.status_code == 200
    assert answer.json()["figures"]["held"]["bytes"] == 512 * 512 * 4096 * 2 * 2 * 10**9 * 10**6


def test_a_pasted_config_is_the_model() -> None:
    document = _got("/api/plan?context=4096", json.dumps(QWEN).encode()).json()
    assert document["plan"]["model"]["architectures"] == ["Qwen3ForCausalLM"]
    assert document["figures"]["per_token"]["bytes"] == 36 * 8 * 128 * 2 * 2


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"model_type": "no-such"}', b"\xff\xfe", b"9" * 100_000, b'{"a":' * 5000]
)
def test_a_damaged_config_is_refused_with_what_to_do(body: bytes) -> None:
    answer = _got("/api/plan", body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"]
    assert error["fix"]


def test_a_config_that_is_too_large_is_refused() -> None:
    answer = _got("/api/plan", b" " * (LARGEST_CONFIG + 1))
    assert (answer.status_code, "more than" in answer.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize("card", ["gpu=h100", "gpu_memory=24GiB", "gpu=l40s&context=4k&layers=24"])
def test_a_card_alone_is_a_state_and_says_what_weights_are_taken(card: str) -> None:
    answer = _got(f"/api/plan?{card}")
    document = answer.json()
    assert answer.status_code == 200, document
    weights = document["plan"]["memory"]["weights"]
    assert weights["source"] == "estimated"
    assert 5 * 1024**3 < weights["bytes"] < 16 * 1024**3
    [told] = [one for one in document["findings"] if one["code"] == "weights_assumed"]
    assert "GiB are taken" in told["message"]
    given = _got(f"/api/plan?{card}&weights=3GiB").json()
    assert given["plan"]["memory"]["weights"].items() >= {"bytes": 3 * 1024**3, "source": "given"}.items()
    assert "weights_assumed" not in [one["code"] for one in given["findings"]]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("gpu=nope", "gpu: 'nope' is unknown"),
        ("gpu_memory=7", "gpu_memory: '7' is 7 bytes"),
        ("gpu=h100&model=Llama-3.1-8B&tp=64&block=15", "block"),
        ("gpu=h100&utilization=3", "utilization"),
        ("gpu=h100&prompt_lengths=x", "prompt_lengths"),
    ],
)
def test_what_is_wrong_is_told_in_words_of_the_page(wrong: str, told: str) -> None:
    answer = _got(f"/api/plan?{wrong}")
    if answer.status_code == 200:
        return  # a plan with findings, in the engine's words
    error = answer.json()["error"]
    assert told in error["message"]
    assert "--" not in error["message"] + error["fix"]
    assert "kvbudget gpus" not in error["fix"]


def test_flags_are_called_by_their_fields() -> None:
    error = in_words_of_the_page(BadValueError("--gpu-memory is needed", fix="give --weights SIZE, -tp 2 or --swap 1"))
    assert str(error) == "gpu_memory is needed; give weights SIZE, tp 2 or --swap 1"


def test_a_field_that_is_given_twice_is_refused() -> None:
    answer = _got("/api/plan?layers=3&layers=4")
    assert (answer.status_code, "given twice" in answer.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(("name", "begins"), [("plan.md", b"# "), ("plan.json", b"{"), ("plan.png", b"\x89PNG")])
def test_each_export_is_a_file(name: str, begins: bytes) -> None:
    answer = _got(f"/api/export/{name}?model=Qwen3-8B&gpu=l40s&context=8k&concurrency=4")
    assert (answer.status_code, answer.content.startswith(begins)) == (200, True)
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert _got("/api/export/plan.exe").status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        "model=Qwen3-8B&gpu=l40s&context=8k&concurrency=4",
        "model=Gemma-4-26B-A4B&gpu=h100&context=32k&concurrency=4&dtype=fp8",
        "model=Llama-3.1-8B&gpu_memory=24GiB&overhead=2GiB&utilization=0.97&context=4k&concurrency=2"
        "&prompt_lengths=p50=800,p95=2000&output_lengths=300",
    ],
)
def test_the_budget_of_a_page_is_one_that_check_finds_true(
    query: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kvbudget.toml", "config.json"):
        answer = _got(f"/api/export/{name}?{query}")
        assert answer.status_code == 200, answer.text
        (tmp_path / name).write_bytes(answer.content)
    shown = _got(f"/api/plan?{query}").json()["plan"]
    assert main(["check", "kvbudget.toml"]) == 0, capsys.readouterr()
    assert f"num_blocks = {shown['pool']['num_blocks']}" in (tmp_path / "kvbudget.toml").read_text()


@pytest.mark.parametrize(("query", "told"), [("", "no model"), ("?model=Qwen3-8B", "needs the card")])
def test_a_budget_without_a_model_or_a_card_says_what_is_missing(query: str, told: str) -> None:
    answer = _got(f"/api/export/kvbudget.toml{query}")
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (400, True)


def test_the_first_page_leads_to_the_ledger() -> None:
    answer = _got("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/ledger")


@pytest.mark.parametrize("name", ["../asked.py", "..%2fasked.py", "nothing.js", "%00", "ledger.py"])
def test_only_the_static_files_are_given_out(name: str) -> None:
    assert _got(f"/static/{name}").status_code == 404


def test_pages_may_load_nothing_from_elsewhere() -> None:
    answer = _got("/ledger")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text
    assert "style=" not in answer.text
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8")
        outside = set(re.findall(r"https?://[^\s\"')`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not outside, (file.name, outside)


def _words() -> dict[str, dict[str, str]]:
    """words.js as data: its object is JSON but for names without quotes and last commas."""
    text = (STATIC / "words.js").read_text(encoding="utf-8")
    body = text[text.index("{") : text.rindex("}") + 1]
    body = re.sub(r"([{,]\s*)([a-z_]+):", r'\1"\2":', body)
    found: dict[str, dict[str, str]] = json.loads(re.sub(r",(\s*})", r"\1", body))
    return found


def test_both_languages_have_every_word_that_the_page_uses() -> None:
    words = _words()
    assert words["en"].keys() == words["zh"].keys()
    page = "".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("ledger.html", "live.html", "simulate.html")
    )
    script = "".join(
        one.read_text(encoding="utf-8")
        for one in STATIC.iterdir()
        if one.name.endswith(".js") and one.name != "words.js"
    )
    used = set(re.findall(r'data-w(?:-label)?="([^"]+)"', page))
    used |= set(re.findall(r'word\("([^"`]+)"\)', script)) | set(
        re.findall(r'\["((?:col|fig|live|sim)\.[a-z_]+)"', script)
    )
    assert used <= words["en"].keys(), used - words["en"].keys()
    english = re.findall(r'data-w="([^"]+)"[^>]*>([^<]+)<', page)
    assert {key: text for key, text in english if words["en"][key] != text} == {}


# Words that are chosen by what an answer says; other tests hold these to what can be said.
_CHOSEN = (
    "policy",
    "outcome",
    "scenario",
    "source",
    "by",
    "part",
    "why",
    "refusal",
    "cost",
    "kind",
    "change",
    "example",
)


def test_no_word_is_left_that_no_page_says() -> None:
    files_ = [one for one in STATIC.iterdir() if one.name.endswith((".js", ".html")) and one.name != "words.js"]
    said = set(re.findall(r"""["'`]([\w.-]+)["'`]""", "".join([one.read_text(encoding="utf-8") for one in files_])))
    said |= {f"live.{name}" for name in ("promised", "held", "elsewhere", "free")}  # the lines of the chart
    said |= {f"sim.{name}" for name in ("goodput", "in_time")}  # figures of "what if"
    left = {key for key in _words()["en"] if key not in said and key.partition(".")[0] not in _CHOSEN}
    assert left == set()


def test_every_ending_kind_and_scenario_has_words_and_english_says_what_the_command_says() -> None:
    words = _words()["en"]
    for begins, names in {"outcome": Outcome, "refusal": Refusal, "kind": LayerKind}.items():
        assert {key.partition(".")[2] for key in words if key.startswith(f"{begins}.")} == {*map(str, names)}
    told = _got("/api/scenarios").json()["scenarios"]
    assert {f"scenario.{one['name']}": one["summary"] for one in told} == {
        key: text for key, text in words.items() if key.startswith("scenario.")
    }


def test_pages_say_whether_there_is_a_gate_to_look_at() -> None:
    assert _got("/api/pages").json() == {"pages": ["/ledger", "/simulate"], "session": False}
    assert _got("/live").status_code == 404


def test_every_change_and_limit_has_words_in_both_languages() -> None:
    words = _words()["en"]
    for query in ("", "?kv_heads=32", "?model=DeepSeek-V3&gpu=h200:8&tp=8", "?model=Gemma-4-26B-A4B&gpu=h100"):
        document = _got(f"/api/plan{query}").json()
        for change in document["changes"]:
            assert f"change.{change['code']}" in words
        assert f"by.{document['figures']['limited_by']}" in words
        for part in document["bar"]:
            assert f"part.{part['key']}" in words
            assert f"source.{part['source']}" in words
        for step in document["retreat"]:
            assert f"cost.{step['cost']}" in words


@pytest.mark.parametrize(
    ("model", "gpu", "ranks"), [("Qwen3-32B", "h100", "1"), ("DeepSeek-V3.2", "h200:8", "8"), ("Qwen3-8B", "l40s", "1")]
)
def test_the_page_counts_the_blocks_that_the_command_counts(
    model: str, gpu: str, ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes(_got(f"/api/export/config.json?model={model}").content)
    main(["plan", str(tmp_path), "--gpu", gpu, "-tp", ranks, "--max-model-len", "32k", "--json"])
    told = json.loads(capsys.readouterr().out)
    shown = _got(f"/api/plan?model={model}&gpu={gpu}&tp={ranks}&context=32k").json()["plan"]
    assert shown["pool"] == told["pool"]
    assert shown["engine"] == told["engine"]
    assert shown["memory"]["cuda_graphs"] == told["memory"]["cuda_graphs"]


@pytest.mark.parametrize(
    "lengths", [{}, {"prompt_lengths": "p50=800,p95=4000,p99=8000", "output_lengths": "p50=200,p95=800,p99=1500"}]
)
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_what_tokens_cost_is_what_the_command_says(
    lengths: dict[str, str], ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "Qwen3-32B"
    (tmp_path / "config.json").write_bytes(_got(f"/api/export/config.json?model={model}").content)
    flags = [part for name, value in lengths.items() for part in (f"--{name.replace('_', '-')}", value)]
    place = ["--gpu", "h100", "-tp", ranks, "--max-model-len", "32k", "--price-per-hour", "2.5"]
    main(["plan", str(tmp_path), *place, *flags, "--json"])
    told = json.loads(capsys.readouterr().out)["cost"]
    query = f"model={model}&gpu=h100&tp={ranks}&context=32k&price_per_hour=2.5"
    query += "".join(f"&{name}={value}" for name, value in lengths.items())
    document = _got(f"/api/plan?{query}").json()
    assert document["plan"]["cost"] == told
    cost = document["cost"]
    assert cost["known"] is True
    assert {name: cost[name] for name in told if name != "rates"} == {n: v for n, v in told.items() if n != "rates"}
    assert cost["price_per_hour"] == 2.5 * int(ranks)
    for shown, rate in zip(cost["rates"], told["rates"], strict=True):
        assert {name: shown[name] for name in rate} == rate
    full = cost["rates"][-1]
    assert (full["busy_text"], full["output_text"]) == (
        "100%", f"{full['per_million_output_low']:,.2f}–{full['per_million_output_high']:,.2f}"
    )  # fmt: skip
    assert document["fields"]["price_per_hour"] == "2.5"
    report = _got(f"/api/export/plan.md?{query}").text
    assert "## Cost" in report
    assert all(f"busy {rate['busy_text']} of the time" in report for rate in cost["rates"])
    exported = json.loads(_got(f"/api/export/plan.json?{query}").content)
    assert exported["cost"] == cost


@pytest.mark.parametrize("query", ["price_per_hour=2", "model=Qwen3-8B&gpu_memory=80GB&price_per_hour=2"])
def test_without_the_speed_of_a_card_no_cost_is_made_up(query: str) -> None:
    document = _got(f"/api/plan?{query}").json()
    assert document["cost"]["known"] is document["plan"]["cost"]["known"] is False
    assert "--gpu" in document["plan"]["cost"]["why"]
    assert "not known" in _got(f"/api/export/plan.md?{query}").text


def test_lengths_of_which_the_engine_would_serve_nothing_have_no_cost_and_the_rest_is_planned() -> None:
    lengths = "prompt_lengths=p50=9000&output_lengths=p50=10"
    document = _got(f"/api/plan?model=Qwen3-8B&gpu=h100&context=8k&price_per_hour=2&{lengths}").json()
    assert document["cost"]["known"] is False
    assert document["cost"]["why"]


def test_who_names_no_price_is_told_none() -> None:
    document = _got("/api/plan?model=Qwen3-8B&gpu=h100").json()
    assert document["cost"] is None
    assert "cost" not in document["plan"]
    assert "## Cost" not in _got("/api/export/plan.md?model=Qwen3-8B&gpu=h100").text


def test_a_limit_that_is_given_is_planned_with() -> None:
    query = "/api/plan?model=Qwen3-32B&gpu=h100&context=32k"
    pools = [_got(query + more).json()["plan"]["pool"]["num_blocks"] for more in ("", "&max_num_seqs=256", "&block=32")]
    assert pools[1] > pools[0] > pools[2]


def test_one_request_costs_the_whole_blocks_that_the_pool_pays() -> None:
    document = _got("/api/plan?model=gpt-oss-20b&gpu=h100&context=32k&concurrency=2").json()
    figures = document["figures"]
    assert figures["one_request_held"]["bytes"] > figures["one_request"]["bytes"]
    assert figures["held"]["bytes"] == 2 * figures["one_request_held"]["bytes"]
    assert document["formula"][-1].endswith(f"= {figures['held']['text']}")


def test_only_requests_that_were_asked_for_are_a_target() -> None:
    unasked = "model=Qwen3-32B&gpu=h100&context=32k"
    document = _got(f"/api/plan?{unasked}").json()
    assert (document["verdict"]["word"], document["figures"]["target"]) == ("FITS", None)
    assert "target-concurrency" not in _got(f"/api/export/kvbudget.toml?{unasked}").text
    asked = _got(f"/api/plan?{unasked}&concurrency=16").json()
    assert (asked["verdict"]["word"], asked["figures"]["target"]) == ("DOES NOT FIT", 16)
    assert "concurrency = 16" in _got(f"/api/export/kvbudget.toml?{unasked}&concurrency=16").text
