"""`kvbudget check` end to end: from a written file to reasons and exit codes."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli import check
from kvbudget.cli.budget import present_budget
from kvbudget.cli.main import parser_of
from kvbudget.edge.budget.file import read_budget, write_budget
from kvbudget.errors import InputError
from kvbudget.planner.budget.record import SCHEMA, Document

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def budget(tmp_path: Path) -> Path:
    """A budget beside its model, as `kvbudget plan --write` leaves it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "kvbudget.toml"
    flags = {"kv-cache-memory-bytes": "24GiB", "weights": "16GiB", "max-model-len": "8k"}
    asked: Document = {"schema": SCHEMA, "inputs": {"model": "model", "flags": flags}, "targets": {"concurrency": 20}}
    write_budget(str(path), present_budget(asked, str(path)))
    return path


def checked(path: Path, *flags: str) -> int:
    parser: argparse.ArgumentParser = parser_of("check")
    return check.run(parser.parse_args([str(path), *flags]))


def change(path: Path, table: str, **values: Any) -> None:
    document = read_budget(str(path))
    section = document[table]
    assert isinstance(section, dict)
    section.update(values)
    write_budget(str(path), document)


def test_a_budget_that_was_just_written_holds(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(budget) == 0
    assert "holds" in capsys.readouterr().out


def test_the_model_is_found_beside_the_file_or_where_it_is_said_to_be(budget: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "model").rename(elsewhere)
    with pytest.raises(InputError):
        checked(budget)
    assert checked(budget, "--model", str(elsewhere)) == 0


def test_another_model_is_named_field_by_field(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (budget.parent / "model" / "config.json").write_text(json.dumps(CONFIG | {"num_key_value_heads": 4}))
    assert checked(budget, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["holds"]) == ("kvbudget.check/1", False)
    reasons = {reason["what"]: reason for reason in document["reasons"]}
    heads = reasons["model.caches[0].kv_heads"]
    assert (heads["code"], heads["reviewed"], heads["present"]) == ("model_changed", 8, 4)
    assert all(reason["fix"] for reason in document["reasons"])


def test_a_changed_flag_and_a_missed_target_fail_it(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = read_budget(str(budget))
    document["inputs"]["flags"]["max-model-len"] = "16k"  # type: ignore[index]
    write_budget(str(budget), {**document, "targets": {"concurrency": 20}})
    assert checked(budget) == 1
    told = capsys.readouterr().out
    assert "flags_changed" in told
    assert "reviewed 8,192, now 16,384" in told
    assert "below_target_concurrency" in told


def test_a_hand_edited_gate_beyond_the_pool_fails_it(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(budget, "gate", pool_blocks=99_999)
    assert checked(budget) == 1
    assert "gate_beyond_plan" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags", [{"max-model-len": "many"}, {"no-such-flag": 1}, {"engine": "vllm@9"}, {"kv-cache-memory-bytes": "1"}]
)
def test_inputs_that_cannot_be_planned_are_errors_of_use_not_findings(budget: Path, flags: dict[str, Any]) -> None:
    document = read_budget(str(budget))
    document["inputs"]["flags"].update(flags)  # type: ignore[index]
    write_budget(str(budget), document)
    with pytest.raises(InputError) as caught:
        checked(budget)
    assert caught.value.fix


def test_a_file_without_inputs_is_an_error_of_use(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(f'schema = "{SCHEMA}"\n')
    with pytest.raises(InputError, match="names no model"):
        checked(path)
