from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.contract import ContractError, TrialResult, to_dict, write_json
from autotune.job.observed import (
    Observed,
    digest_of,
    filled_in,
    placeholders_of,
    refuse_unobserved,
)
from tests.cases import data_beside
from tests.observed import RAW, TRAINER, observed

DATA = data_beside(__file__)


@pytest.mark.cases("base", "changes", "started", "shown")
def test_what_a_first_run_shows(base, changes, started, shown) -> None:
    script = observed({**{"raw": RAW, "trainer": TRAINER}[base], **changes}, **started)
    for path, expected in shown.items():
        name, _, inner = path.partition(".")
        found = script.model(Path("x")).shape if name == "shape" else getattr(script, name)
        if inner:
            found = found[inner] if isinstance(found, Mapping) else getattr(found, inner)
        assert found == expected, path


@pytest.mark.parametrize("lost", ["config", "micro_batches", "n_params", "dp"])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, lost: str) -> None:
    said = to_dict(observed())
    del said["description"][lost]
    write_json(tmp_path / "observed.json", said)
    with pytest.raises(JobError, match=lost) as caught:
        Observed.read(tmp_path / "observed.json")
    assert "--fresh" in caught.value.hint
    assert isinstance(caught.value.__cause__, ContractError)


def test_an_edited_source_is_another_script(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("a = 1")
    before = digest_of(["python", "train.py"], [str(source)])
    assert digest_of(["python", "train.py"], [str(source)]) == before
    source.write_text("a = 2")
    assert digest_of(["python", "train.py"], [str(source)]) != before
    assert digest_of(["python", "train.py", "-x"], [str(source)]) != before
    source.unlink()
    digest_of(["python", "train.py"], [str(source)])


def test_placeholders_take_a_candidate_s_values_or_their_own() -> None:
    command = ["train.py", "--b={micro_batch=4}", "{lr}", "--a", "{grad_accum=2}", "{}", "{X}"]
    assert placeholders_of(command) == {"micro_batch": "4", "lr": "", "grad_accum": "2"}
    own = filled_in(command, {})
    assert own == ["train.py", "--b=4", "{lr}", "--a", "2", "{}", "{X}"]
    chosen = filled_in(command, {"micro_batch": 8, "grad_accum": 1})
    assert chosen[1:5] == ["--b=8", "{lr}", "--a", "1"]


def test_a_placeholder_for_a_flag_stands_there_where_the_knob_is_on() -> None:
    command = ["a.py", "{recompute=none:--ckpt}", "", "--x={compile=torch:--fast}"]
    assert placeholders_of(command) == {"recompute": "none", "compile": "torch"}
    assert filled_in(command, {}) == ["a.py", "", "--x=--fast"]
    on = {"recompute": "full", "compile": "none"}
    assert filled_in(command, on) == ["a.py", "--ckpt", "", "--x="]


@pytest.mark.cases("outcome", "evidence", "helps")
def test_a_first_run_that_measured_nothing_says_what_helps(outcome, evidence, helps) -> None:
    said: dict[str, Any] = {**observed().result, "outcome": outcome, "evidence": evidence}
    said["evidence_source"] = "rank 1 in model"
    with pytest.raises(JobError, match=r"was not measured: .* \[rank 1 in model\]") as caught:
        refuse_unobserved(TrialResult.from_dict(said), Path("/somewhere/stderr.log"))
    assert helps in caught.value.hint
    assert evidence in caught.value.message
    assert "/somewhere/stderr.log" in caught.value.message


def test_the_model_is_the_same_one_from_every_folder(tmp_path, monkeypatch) -> None:
    """A search under a relative `--results` and the export of what it found name one model."""
    monkeypatch.chdir(tmp_path)
    script = observed(RAW)
    assert script.model(Path("results/x")) == script.model(tmp_path / "results" / "x")


def by_hand_of(command: str) -> Observed:
    """A script that makes three passes of four samples, and tells DeepSpeed of one."""
    passes = {**RAW, "micro_batches": [4, 4, 4], "asks_micro_batch": False}
    return observed(passes, command=command.split(), read_back={"grad_accum": 1})


@pytest.mark.cases("words", "meant")
def test_a_placeholder_that_is_not_what_ran_is_left_alone(words, meant) -> None:
    script = by_hand_of(f"torchrun train.py {words}")
    assert script.placeholders == meant
    told = script.placeholders_left_alone
    assert told.keys() == placeholders_of(script.command).keys() - meant.keys()
    if "micro_batch" in told:
        assert told["micro_batch"].endswith("its run had 4 samples that arrive")
    chosen = {"micro_batch": 8, "grad_accum": 1, "zero.stage": 0}
    for name, theirs in placeholders_of(script.command).items():
        is_meant = name in meant and name in chosen
        assert (str(chosen[name]) if is_meant else theirs) in script.filled(chosen)


def test_what_is_the_user_s_own_stays_in_the_user_s_words() -> None:
    command = ["a.py", "{gradient_clipping=1}", "{overlap_comm=true}", "{lr=1e-4}"]
    own = {"gradient_clipping": 1.0, "overlap_comm": True, "lr": 0.0001}
    assert filled_in(command, own) == ["a.py", "1", "true", "1e-4"]
    assert filled_in(command, {**own, "overlap_comm": False})[2] == "False"


SOURCES = DATA["SOURCES"]


@pytest.mark.cases("key", "place")
def test_a_key_belongs_into_the_file_that_has_it(key: str, place: list[str] | None) -> None:
    script = observed({**RAW, "sources": SOURCES})
    found = script.place_of(key)
    assert (found and [found[0], ".".join(found[1])]) == place
    whole = [{**SOURCES[0], "is_whole": True}]
    assert observed({**RAW, "sources": whole}).place_of("bf16.enabled") is not None
    by_code = {**RAW, "sources": whole, "config_written": {"bf16": {"enabled": True}}}
    assert observed(by_code).place_of("bf16.enabled") is None, "it arrives from no file"
    by_path = observed({**RAW, "sources": SOURCES, "config_file": "/p/ds.json"})
    assert by_path.place_of(key) is None, "DeepSpeed reads it itself"


@pytest.mark.cases("word", "is_it")
def test_a_setting_on_the_command_line_is_none_of_the_code(word: str, is_it: bool) -> None:
    script = observed(RAW, command=["torchrun", "app.py", word])
    place = script.place_outside_files("zero_optimization.stage")
    assert (place == ("your command", word)) == is_it


def test_a_setting_that_a_placeholder_names_is_none_of_the_code() -> None:
    command = ["torchrun", "app.py", "zero={zero.stage=1}", "batch={micro_batch=4}"]
    said = {**RAW, "config_written": {"zero_optimization": {"stage": 1}}}
    script = observed(said, command=command)
    assert set(script.placeholders) == {"zero.stage", "micro_batch"}
    assert script.origins["zero.stage"] == "your command, {zero.stage}"
    place = ("your command", "{micro_batch}")
    assert script.place_outside_files("train_micro_batch_size_per_gpu") == place


def test_a_configuration_comes_from_the_file_that_the_script_read() -> None:
    written = {"zero_optimization": {"stage": 1}}
    script = observed({**RAW, "sources": SOURCES, "config_written": written})
    assert script.origins["zero.stage"] == "run.yaml"
    product = {**written, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}
    said = {**RAW, "sources": SOURCES, "config_written": product}
    by_code = observed(said).origins
    assert by_code["grad_accum"] == "the script's code, from train_batch_size"
    by_word = observed(said, command=["a.py", "engine.train_batch_size=8"]).origins
    assert by_word["grad_accum"].startswith("your command, engine.train_batch_size=8")
