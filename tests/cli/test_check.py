"""`kvbudget check` end to end: from a written file to reasons and exit codes."""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli import check
from kvbudget.cli.budget import present_budget
from kvbudget.cli.main import main, parser_of
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


def _dotted(tmp_path: Path, budget: Path) -> Path:
    """A folder of the budget and config.json, as the ledger page and `plan . --write` leave it; and an empty one."""
    deploy = tmp_path / "deploy"
    deploy.mkdir()
    (deploy / "config.json").write_text(json.dumps(CONFIG))
    change(budget, "inputs", model=".")
    return budget.rename(deploy / "kvbudget.toml")


def test_a_dot_is_the_folder_of_the_file_wherever_the_check_runs(
    budget: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _dotted(tmp_path, budget)
    write_budget(str(path), present_budget(read_budget(str(path)), str(path)))
    monkeypatch.chdir(tmp_path)
    assert checked(Path("deploy/kvbudget.toml")) == 0
    assert f"model: {tmp_path / 'deploy'} (. of the budget's own folder)" in capsys.readouterr().out
    assert checked(Path("deploy/kvbudget.toml"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(tmp_path / "deploy")
    (tmp_path / "model" / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 16}))
    monkeypatch.chdir(tmp_path / "model")  # another model is here, and not meant
    assert checked(Path("../deploy/kvbudget.toml")) == 0
    monkeypatch.chdir(tmp_path / "deploy")
    assert checked(Path("kvbudget.toml")) == 0


def test_a_dot_is_the_working_folder_where_no_model_lies_beside_the_file(
    budget: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _dotted(tmp_path, budget)
    (tmp_path / "deploy" / "config.json").rename(tmp_path / "config.json")
    monkeypatch.chdir(tmp_path)
    write_budget(str(path), present_budget(read_budget(str(path)), str(path)))
    assert checked(Path("deploy/kvbudget.toml")) == 0


def test_a_folder_without_a_model_does_not_hide_the_one_beside_the_file(
    budget: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert checked(budget) == 0


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


def test_reasons_of_one_code_stand_together_with_the_command_that_writes_the_budget_anew(
    budget: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(budget.parent)
    change(budget, "pool", num_blocks=1)
    change(budget, "engine", max_num_seqs=123456, max_num_batched_tokens=123456)
    assert checked(budget) == 1
    told = capsys.readouterr().out
    assert told.count("flags_changed") == 1
    assert "flags_changed (2): " in told
    assert "engine.max_num_seqs: reviewed 123,456, now " in told
    (command,) = {line.partition("then write them: ")[2] for line in told.splitlines() if "then write them: " in line}
    assert command.startswith("kvbudget plan ")
    assert command.endswith(f" --write {budget}")
    assert main(shlex.split(command)[1:]) == 0
    capsys.readouterr()
    assert checked(budget) == 0


def test_a_budget_that_never_fitted_says_so(
    budget: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(budget.parent)
    assert main(["plan", "model", "--gpu", "rtx-3090", "--write", str(budget)]) == 1
    capsys.readouterr()
    assert checked(budget) == 1
    told = capsys.readouterr().out
    assert "did not fit when it was written" in told
    assert "no longer holds" not in told
    assert "as when it was written: " in told
    assert "reviewed no, now no" in told


@pytest.mark.parametrize("flag", ["help", "version", "json", "explain", "html", "markdown", "png", "write"])
def test_a_flag_that_is_no_input_is_refused_before_anything_is_done(
    budget: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = budget.read_text()
    value = "true" if flag in ("help", "version", "json", "explain") else '"pwn"'
    budget.write_text(text.replace("[inputs.flags]\n", f"[inputs.flags]\n{flag} = {value}\n"))
    assert main(["check", str(budget)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"inputs.flags.{flag} is no input of a plan" in captured.err
    assert not list(budget.parent.glob("pwn*"))


def test_what_cannot_be_calculated_with_does_not_hold(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget.write_text(budget.read_text().replace("num_blocks = 12288", "num_blocks = nan"))
    for flags in ([], ["--json"]):
        assert main(["check", str(budget), *flags]) == 2
        assert "pool.num_blocks is nan" in capsys.readouterr().err


def test_names_from_the_file_reach_a_terminal_as_text(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(budget, "model", name="\x1b[31mEVIL\x07")
    change(budget, "engine", name="\x1b[31mEVIL")
    document = read_budget(str(budget))
    write_budget(str(budget), {**document, "written": "\x1b]0;EVIL\x07", "\x1b[32mmine": {"a": 1}})
    assert checked(budget) == 1
    told = capsys.readouterr().out
    assert "?[31mEVIL" in told
    assert told.replace("\n", "").isprintable()


def test_a_table_of_one_s_own_is_named_as_not_read(budget: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_budget(str(budget), {**read_budget(str(budget)), "owner": {"team": "platform"}})
    assert checked(budget) == 0
    assert "holds\n  not read, as no table of a budget has that name: owner" in capsys.readouterr().out
    assert checked(budget, "--json") == 0
    assert json.loads(capsys.readouterr().out)["unknown_tables"] == ["owner"]


def test_files_that_the_flags_name_are_found_as_the_model_is(
    budget: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From whatever folder: the draft of --speculative-config, the trace, the receipts."""
    (tmp_path / "drafts" / "one").mkdir(parents=True)
    draft = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
    (tmp_path / "drafts" / "one" / "config.json").write_text(json.dumps(draft))
    (tmp_path / "t.csv").write_text("prompt_tokens,completion_tokens\n5,6\n")
    document = read_budget(str(budget))
    flags = document["inputs"]["flags"]  # type: ignore[index]
    flags["speculative-config"] = json.dumps({"method": "eagle3", "model": "drafts/one", "num_speculative_tokens": 3})
    flags["trace"] = "t.csv"
    write_budget(str(budget), document)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_budget(str(budget), present_budget(document, str(budget)))
    assert checked(budget) == 0
    assert read_budget(str(budget))["inputs"]["flags"]["trace"] == "t.csv"  # type: ignore[index]
    (tmp_path / "t.csv").unlink()
    with pytest.raises(InputError, match=r"trace 't.csv' is neither here nor beside the budget"):
        checked(budget)


def test_a_draft_that_is_not_there_is_named_by_its_flag(budget: Path) -> None:
    document = read_budget(str(budget))
    config = json.dumps({"method": "eagle3", "model": "./nowhere", "num_speculative_tokens": 3})
    document["inputs"]["flags"]["speculative-config"] = config  # type: ignore[index]
    with pytest.raises(InputError, match="--speculative-config: model"):
        present_budget(document, str(budget))
