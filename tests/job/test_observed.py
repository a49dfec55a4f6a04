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


def test_the_batch_is_the_one_that_arrived() -> None:
    script = observed({**RAW, "micro_batches": [3, 3]})
    assert (script.micro_batch, script.grad_accum, script.dp) == (3, 2, 2)
    assert script.global_batch == 12
    assert not script.passes_differ


@pytest.mark.parametrize(
    ("arrived", "rows", "micro_batch"),
    [([8, 8], 2, 4), ([4, 4], 1, 4), ([1, 1], 0, 4), ([6, 6], 1, 6)],
    ids=["pairs", "plain", "end to end", "other"],
)
def test_rows_of_a_sample_are_told_by_who_makes_the_batches(
    arrived: list[int], rows: int, micro_batch: int
) -> None:
    script = observed({**TRAINER, "micro_batches": arrived})
    assert (script.rows_per_sample, script.micro_batch) == (rows, micro_batch)
    assert script.global_batch == micro_batch * 2 * 2
    untold = observed({**RAW, "asks_micro_batch": False, "micro_batches": arrived})
    assert untold.micro_batch == max(arrived), "its own loader may make what it likes"


@pytest.mark.parametrize(
    ("rows", "rows_per_sample", "micro_batch"),
    [
        ([[2, 3], [3, 4], [6, 3]], 0, 4),
        ([[2, 6], [3, 8]], 0, 3),
        ([[5, 2], [8, 18]], 1, 8),
        ([[2, 5], [8, 10]], 1, 8),
        ([], 1, 8),
    ],
    ids=["by tokens", "of two sizes", "the last of an epoch", "of a short one", "older"],
)
def test_batches_that_differ_count_by_their_mean(
    rows: list[list[int]], rows_per_sample: int, micro_batch: int
) -> None:
    of_batches = {"micro_batches": [8, 8], "asks_micro_batch": False, "rows": rows}
    script = observed({**RAW, **of_batches})
    assert (script.rows_per_sample, script.micro_batch) == (rows_per_sample, micro_batch)


def test_what_follows_from_the_global_batch_comes_from_there() -> None:
    written = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}
    of_file = {**RAW, "config_file": "/x/ds.json", "config_written": written}
    assert observed(of_file).origins["grad_accum"] == "ds.json, from train_batch_size"
    assert observed(of_file).origins["micro_batch"] == "ds.json"
    asks = {**of_file, "config_written": {"train_batch_size": 64}}
    assert observed(asks).origins["micro_batch"] == "ds.json, from train_batch_size"
    assert observed(asks).origins["grad_accum"] == "DeepSpeed's default"
    gives = observed({**asks, "asks_micro_batch": False, "gives_data": True})
    assert gives.origins["micro_batch"] == "ds.json, from train_batch_size"
    own = {**asks, "asks_micro_batch": False}
    assert observed(own).origins["micro_batch"] == "the script's own batches"
    by_word = observed(own, command=["train.py", "--bs", "{micro_batch=4}"])
    assert by_word.origins["micro_batch"] == "your command, {micro_batch}"
    assert observed(RAW).origins["grad_accum"] == "DeepSpeed's default"


@pytest.mark.parametrize(
    ("described", "is_it"),
    [
        ({**RAW, "framework": "accelerate"}, True),
        ({**RAW, "framework": "accelerate", "brings_plugin": True}, False),
        ({**TRAINER, "config_file": "", "brings_plugin": True}, True),
        (TRAINER, False),
        ({**RAW, "framework": "lightning"}, False),
    ],
    ids=["accelerate", "its plugin", "trainer", "trainer's file", "lightning"],
)
def test_accelerate_s_settings_are_of_what_accelerate_sets_up(described, is_it):
    assert observed(described).is_set_up_by_accelerate == is_it


def test_twice_as_many_rows_are_pairs_beside_another_model_or_by_the_loader() -> None:
    """Of a script that makes its batches itself: a reference model, a GAN, a reward model."""
    pairs = {**RAW, "asks_micro_batch": False, "micro_batches": [8, 8], "engines": 2}
    assert (observed(pairs).rows_per_sample, observed(pairs).micro_batch) == (2, 4)
    alone = {**pairs, "engines": 1}
    for sizes, of_step, expected in (
        ((), (), (1, 8)),
        ((4, 8), (4, 8), (1, 8)),
        ((4, 16), (4,), (2, 4)),
        ((4,), (), (1, 8)),  # that of an evaluation, beside batches by hand
        ((4,), None, (1, 8)),  # an older study's
    ):
        script = observed({**alone, "loader_batches": sizes, "step_batches": of_step})
        assert (script.rows_per_sample, script.micro_batch) == expected


def test_a_placeholder_tells_the_samples_of_a_batch() -> None:
    own = {**RAW, "asks_micro_batch": False, "micro_batches": [6, 6]}
    script = observed(own, command=["torchrun", "train.py", "--batch={micro_batch=3}"])
    assert (script.rows_per_sample, script.micro_batch) == (2, 3)


def test_passes_that_deepspeed_was_not_told_of_are_accumulated_by_hand() -> None:
    by_hand = observed({**RAW, "micro_batches": [4, 4, 4]}, read_back={"grad_accum": 1})
    assert by_hand.passes_differ
    assert by_hand.origins["grad_accum"] == "the script's own passes"
    assert by_hand.global_batch == 24
    fewer = observed({**RAW, "micro_batches": [4]}, read_back={"grad_accum": 2})
    assert fewer.passes_differ


def test_lengths_are_those_of_the_longest_sample() -> None:
    assert observed({**RAW, "lengths": [16, 64, 32]}).seq_len == 64
    assert observed({**RAW, "lengths": [0]}).seq_len == 2
    assert not observed({**RAW, "lengths": [0]}).has_tokens


def test_the_optimizer_is_the_file_s_or_the_script_s_own() -> None:
    assert observed(TRAINER).optimizer == {"type": "AdamW", "params": {"lr": 0.001}}
    assert observed({**RAW, "client_optimizer": "Lion"}).optimizer["type"] == "Lion"


def test_a_model_of_hugging_face_s_has_its_shape() -> None:
    shape = observed(TRAINER).model(Path("x")).shape
    assert (shape.n_layers, shape.hidden, shape.vocab, shape.n_heads) == (4, 128, 256, 4)
    assert shape.n_params == TRAINER["n_params"], "as counted, not as computed"


def test_any_other_model_has_what_can_be_seen_of_it() -> None:
    model = observed(RAW).model(Path("x"))
    assert (model.shape.n_layers, model.shape.hidden, model.shape.vocab) == (4, 256, 0)
    assert not model.supports_recompute


def test_an_architecture_of_their_own_is_no_error() -> None:
    own = {**TRAINER, "model_config": {"model_type": "nobodys", "hidden_size": 3}}
    assert observed(own).model(Path("x")).shape.n_layers == 4


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
def test_a_first_run_that_measured_nothing_says_what_helps(
    outcome: str, evidence: str, helps: str
) -> None:
    said: dict[str, Any] = {**observed().result, "outcome": outcome, "evidence": evidence}
    said["evidence_source"] = "rank 1 in model"
    with pytest.raises(JobError, match=r"was not measured: .* \[rank 1 in model\]") as caught:
        refuse_unobserved(TrialResult.from_dict(said), Path("/somewhere/stderr.log"))
    assert helps in caught.value.hint
    assert evidence in caught.value.message
    assert "/somewhere/stderr.log" in caught.value.message


def test_the_model_is_the_same_one_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search under a relative `--results` and the export of what it found name one model."""
    monkeypatch.chdir(tmp_path)
    script = observed(RAW)
    assert script.model(Path("results/x")) == script.model(tmp_path / "results" / "x")


def by_hand_of(command: str) -> Observed:
    """A script that makes three passes of four samples, and tells DeepSpeed of one."""
    passes = {**RAW, "micro_batches": [4, 4, 4], "asks_micro_batch": False}
    return observed(passes, command=command.split(), read_back={"grad_accum": 1})


@pytest.mark.cases("words", "meant")
def test_a_placeholder_that_is_not_what_ran_is_left_alone(
    words: str, meant: dict[str, str]
) -> None:
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


def test_an_optimizer_of_the_script_is_none_of_the_settings() -> None:
    own = {**RAW, "framework": "accelerate", "arguments": {"optim": "adamw_torch"}}
    assert observed(own).origins["optimizer"] == "the script's code"
    made = {**own, "optimizer_by_arguments": True}
    assert observed(made).origins["optimizer"] == "argument optim"
    assert observed(TRAINER).origins["optimizer"] == "ds_config.json"


@pytest.mark.parametrize(
    ("description", "dtype", "origin"),
    [
        (RAW, "fp32", "DeepSpeed's default"),
        ({**RAW, "framework": "accelerate"}, "fp32", "accelerate's settings"),
        ({**TRAINER, "arguments": {"bf16": False}}, "fp32", "argument bf16"),
        (RAW, "bf16", "the script's code"),
    ],
)
def test_a_precision_that_nobody_switched_on_is_the_default(
    description: dict[str, Any], dtype: str, origin: str
) -> None:
    script = observed({**description, "config_written": {}}, read_back={"dtype": dtype})
    assert script.origins["precision"] == origin


SIZES = {"n_layers": 4, "hidden": 64, "ffn_hidden": 256, "n_heads": 4, "vocab": 1000}
GATED_TIED = 4 * (4 * 64 * 64 + 3 * 64 * 256) + 1000 * 64


@pytest.mark.parametrize(
    ("n_params", "is_known"), [(GATED_TIED + 2000, True), (2 * GATED_TIED, False)]
)
def test_sizes_count_where_they_explain_the_parameters(n_params: int, is_known: bool) -> None:
    described = {**RAW, "sizes": SIZES, "n_params": n_params}
    shape = observed(described).model(Path("x")).shape
    assert (shape.gated_mlp and shape.tied_embeddings) == is_known
    assert (not shape.unsaid) == is_known


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
