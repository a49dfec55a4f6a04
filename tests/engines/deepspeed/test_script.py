"""A candidate of a user's command is what two rendered configurations differ by."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.devices.accelerators import shipped_accelerators
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.planning.lattice import lattice_of
from autotune.planning.outlook import FleetWishes, described
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical
from autotune.space.script import Script, reach_of
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import EDITS_FILE, Edits
from tests.cases import data_beside
from tests.observed import BY_ARGUMENTS, RAW, TRAINER, job_of, observed
from tests.trials import CPU

DATA = data_beside(__file__)


def engine_of(folder: Path, description: dict[str, Any] = RAW, **given: Any) -> ScriptEngine:
    return ScriptEngine(job_of(observed(description, **given), folder), CPU)


def changed(engine: ScriptEngine, **knobs: Any) -> Candidate:
    """The command as it is but for some knobs, `__` for a dot."""
    unchanged = engine.unchanged
    values = {**unchanged.values, **{name.replace("__", "."): v for name, v in knobs.items()}}
    return replace(unchanged, knobs=tuple(sorted(values.items())))


@pytest.mark.parametrize("description", [RAW, TRAINER], ids=["raw", "trainer"])
def test_the_command_as_it_is_has_no_edits(tmp_path: Path, description: dict[str, Any]) -> None:
    engine = engine_of(tmp_path, description)
    edits = engine.edits(engine.unchanged)
    assert not edits.configuration
    assert not edits.arguments
    files = engine.files(engine.unchanged)
    assert json.loads(files[CONFIG_FILE]) == description["config"]
    # The text of older studies: their trials count on.
    of_old = {"arguments": {}, "configuration": {}, "rows_per_sample": 1}
    assert json.loads(files[EDITS_FILE]) == of_old
    staged = changed(engine, zero__stage=0)
    assert json.loads(engine.files(staged)[EDITS_FILE]).keys() == of_old.keys()
    frozen = {**description, "trained_file": "/p/ds.json"}
    (folder := tmp_path / "frozen").mkdir()
    written = json.loads(engine_of(folder, frozen).files(staged)[EDITS_FILE])
    assert written["trained_file"] == "/p/ds.json"


def test_a_model_built_under_zero_init_keeps_its_stage(tmp_path: Path) -> None:
    zero = {"zero_optimization": {"stage": 3}}
    own = {**RAW, "config": {**RAW["config"], **zero}}
    for is_partitioned, stages in ((True, {3}), (False, {0, 1, 2, 3})):
        script = observed({**own, "is_partitioned": is_partitioned})
        job = job_of(script, tmp_path)
        lattice = lattice_of(ScriptEngine(job, CPU))
        assert {candidate["zero.stage"] for candidate in lattice.candidates} == stages
        assert ("zero.stage" in reach_of(script).left_out) == is_partitioned


def test_the_baseline_is_the_command_as_it_is_and_nothing_else(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    assert list(engine.ladder()) == [[engine.unchanged]]
    assert (engine.unchanged.micro_batch, engine.unchanged.grad_accum) == (4, 2)
    assert engine.unchanged.values["zero.stage"] == 1
    with pytest.raises(JobError, match="--baseline"):
        engine.baseline(tmp_path / "ds.json")


def test_a_key_of_the_user_s_for_another_stage_refuses_no_stage(tmp_path: Path) -> None:
    buckets = {"allgather_bucket_size": 500_000_000, "reduce_bucket_size": 500_000_000}
    zero = {"stage": 2, "overlap_comm": False, **buckets}
    own = observed({**TRAINER, "config": {**TRAINER["config"], "zero_optimization": zero}})
    job = job_of(own, tmp_path)
    engine = ScriptEngine(job, CPU)
    lattice = lattice_of(engine)
    stages = {candidate["zero.stage"]: candidate for candidate in lattice.candidates}
    assert stages.keys() == {0, 1, 2, 3}
    gone = engine.edits(stages[3]).configuration
    assert gone["zero_optimization.allgather_bucket_size"] is None
    assert "zero_optimization.allgather_bucket_size" not in engine.edits(stages[1]).configuration


def test_the_command_as_it_is_breaks_no_rule_whatever_it_does(tmp_path: Path) -> None:
    odd = {**RAW, "config": {**RAW["config"], "no_such_key": 1, "fp16": {"enabled": "yes"}}}
    engine = engine_of(tmp_path, odd)
    assert not engine.judge(engine.unchanged)


def test_a_batch_that_deepspeed_was_told_otherwise_is_said_and_not_mended(tmp_path):
    """Another number of steps in the file would change what a script by hand trains."""
    by_hand = {**RAW, "micro_batches": [2, 2, 2], "asks_micro_batch": False}
    config = {**RAW["config"], "gradient_accumulation_steps": 1}
    engine = engine_of(tmp_path, {**by_hand, "config": config}, read_back={"grad_accum": 1})
    said = " ".join(engine.remarks())
    assert "the configuration says 4 samples a pass, and 2 arrived" in said
    assert "3 passes in a step by itself" in said
    assert "set gradient_accumulation_steps" not in said
    uncounted = engine_of(tmp_path, {**RAW, "micro_batches": []})
    assert "the samples of its passes cannot be counted" in " ".join(uncounted.remarks())
    fewer = engine_of(tmp_path, {**by_hand, "config": config}, read_back={"grad_accum": 4})
    assert "says 4 passes a step, and the script makes 3" in " ".join(fewer.remarks())


def test_a_script_that_accumulates_by_hand_keeps_its_file_s_batch(tmp_path: Path) -> None:
    """It divides its loss itself: steps of DeepSpeed's beside would halve every gradient."""
    by_hand = {**RAW, "micro_batches": [4, 4], "asks_micro_batch": False}
    engine = ScriptEngine(
        job_of(
            observed(
                {**by_hand, "config": {**RAW["config"], "gradient_accumulation_steps": 1}},
                command=["a.py", "--batch", "{micro_batch=4}", "--steps", "{grad_accum=2}"],
                read_back={"grad_accum": 1},
            ),
            tmp_path,
        ),
        CPU,
    )
    values = {**engine.unchanged.values, "micro_batch": 2, "zero.stage": 2}
    candidate = Candidate.of(values, world=2, global_batch=16)
    assert candidate.grad_accum == 4
    assert engine.edits(candidate).configuration == {"zero_optimization.stage": 2}
    expected = engine.expected(candidate)
    assert (expected["micro_batch"], expected["grad_accum"]) == (4, 1)


READ = DATA["READ"]


def test_a_script_that_reads_its_configuration_keeps_the_keys_that_it_may_use(tmp_path):
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 1000}
    config = {
        **RAW["config"],
        "zero_optimization": zero,
        "n_tokens": 7,
        "wall_clock_breakdwn": True,
    }
    engine = engine_of(tmp_path, {**RAW, "config": config, "sources": [READ]})
    candidate = changed(engine, zero__stage=0)
    edits = engine.edits(candidate)
    assert edits.configuration == {"zero_optimization.stage": 0}
    assert edits.files == {"/p/run.yaml": [(["engine", "zero_optimization", "stage"], 0)]}
    assert not engine.judge(candidate)
    assert engine.edits_in_words(candidate)[0] == "run.yaml: engine.zero_optimization.stage: 0"
    said = " ".join(engine.remarks())
    assert "n_tokens" not in said, "it is the program's"
    assert "did you mean wall_clock_breakdown?" in said


def test_a_bucket_above_the_model_is_predicted_at_its_full_size(tmp_path: Path) -> None:
    """DeepSpeed allocates 5e8 elements by default, whatever the model; an edit writes fewer."""
    (folder := tmp_path / "plain").mkdir()
    engine = engine_of(folder)
    own, smaller = engine.unchanged, changed(engine, reduce_bucket_size=100_000)
    assert own["reduce_bucket_size"] == RAW["n_params"]
    assert "zero_optimization.reduce_bucket_size" not in engine.edits(own).configuration
    plans = engine.plans([own, changed(engine, zero__stage=2), smaller], needs_shape=False)
    assert list(plans.reduce_bucket_elements) == [5e8, 5e8, 1e5]
    config = {**RAW["config"], "zero_optimization": {"stage": 1, "reduce_bucket_size": 3e7}}
    (folder := tmp_path / "set").mkdir()
    engine = engine_of(folder, {**RAW, "config": config})
    assert list(engine.plans([engine.unchanged], needs_shape=False).reduce_bucket_elements) == [
        3e7
    ]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_another_stage_is_one_key_and_the_user_s_stay(tmp_path: Path, stage: int) -> None:
    """Stage 3 once wrote five of DeepSpeed's defaults, some of them cut to the model's size."""
    engine = engine_of(tmp_path)
    chosen = canonical({**engine.unchanged.values, "zero.stage": stage}, engine.context)
    candidate = replace(engine.unchanged, knobs=tuple(sorted(chosen.items())))
    assert engine.edits(candidate).configuration == {"zero_optimization.stage": stage}
    written = json.loads(engine.files(candidate)[CONFIG_FILE])
    assert written["gradient_clipping"] == RAW["config"]["gradient_clipping"]
    assert json.loads(engine.files(candidate)[EDITS_FILE])["arguments"] == {}
    if stage == 3:
        told = engine.as_written(candidate)["stage3.sub_group_size"]
        assert told == engine.expected(candidate)["sub_group_size"] == 1_000_000_000


DESCRIPTIONS = {"raw": RAW, "trainer": TRAINER, "arguments": BY_ARGUMENTS}


@pytest.mark.cases("description", "changes", "knobs", "edits", "expected")
def test_a_choice_is_these_edits_and_these_settings(
    tmp_path, description, changes, knobs, edits, expected
):
    """What an edit does not name, it leaves; expected: as it is, and with the choice."""
    given = {**DESCRIPTIONS[description], **changes.get("description", {})}
    engine = engine_of(tmp_path, given, read_back=changes.get("read_back"))
    candidate = changed(engine, **knobs)
    if "micro_batch" in knobs:
        candidate = Candidate.of(candidate.values, world=2, global_batch=16)
    found = engine.edits(candidate)
    none = {"configuration": {}, "arguments": {}}
    assert {name: getattr(found, name) for name in none} == none | edits
    for name, before_and_after in expected.items():
        told = [engine.expected(one)[name] for one in (engine.unchanged, candidate)]
        assert told == before_and_after, name
    lines = engine.edits_in_words(candidate)
    for name, value in edits.get("arguments", {}).items():
        assert f"argument: {name}={json.dumps(value)}" in lines


def test_an_argument_that_offload_overrules_is_not_tried(tmp_path: Path) -> None:
    job = job_of(observed(BY_ARGUMENTS), tmp_path)
    candidates = lattice_of(ScriptEngine(job, replace(CPU, accelerator="cuda"))).candidates
    name = "optimizer.implementation"
    assert {c[name] for c in candidates} == {"torch", "torch_fused"}
    offloaded = [c for c in candidates if c.get("offload.optimizer") == "cpu"]
    assert offloaded
    assert {c[name] for c in offloaded} == {"torch"}


def test_a_torch_without_a_fused_adam_for_cpus_is_not_asked_for_it(tmp_path: Path) -> None:
    job = job_of(observed(BY_ARGUMENTS), tmp_path)
    for release, has_it in (("2.3.1", False), ("2.4.0", True)):
        engine = ScriptEngine(job, replace(CPU, torch_version=release))
        values = engine.space.domains["optimizer.implementation"].values
        assert ("torch_fused" in values) is has_it


def test_an_attention_in_the_command_s_own_words_is_filled_in(tmp_path: Path) -> None:
    command = ["torchrun", "train.py", "--attn", "{attention=sdpa}"]
    script = observed(TRAINER, command=command, read_back={"attention": "sdpa"})
    job = job_of(script, tmp_path)
    engine = ScriptEngine(job, CPU)
    assert Script().workload(job, engine.unchanged).command[-1] == "sdpa"
    candidates = lattice_of(engine).counted().candidates
    words = {Script().workload(job, each).command[-1] for each in candidates}
    assert words == {"eager", "sdpa"}, "flash attention is not in their environment"
    there = described(FleetWishes(gpu="H100"), shipped_accelerators(), where="--gpu")
    far = {each.get("attention") for each in lattice_of(ScriptEngine(job, there)).candidates}
    assert "flash_attention_2" in far, "what is installed here decides nothing for other machines"
    assert engine.expected(changed(engine, attention="eager"))["attention"] == "eager"
    assert not engine.edits(changed(engine, attention="eager")).arguments


def test_a_space_s_default_attention_is_the_command_s_own(tmp_path: Path) -> None:
    takes = {**BY_ARGUMENTS, "framework": "trl", "takes_attention": True}
    job = job_of(observed(takes, read_back={"attention": "sdpa"}), tmp_path)
    space = tmp_path / "space.yaml"
    space.write_text(
        "name: words\nknobs:\n  attention: [default, flash_attention_2]\n"
        "  compile: {values: [none, torch], when: {attention: default}}\n"
    )
    domains = ScriptEngine(replace(job, space=str(space)), CPU).space.domains
    assert domains["attention"].values == ("sdpa", "flash_attention_2")
    assert "sdpa" in dict(domains["compile"].when)["attention"]


def test_a_value_in_the_command_that_is_none_of_the_knob_s_is_refused(tmp_path: Path) -> None:
    command = ["torchrun", "train.py", "--attn", "{attention=quick}"]
    with pytest.raises(JobError, match="in the command"):
        engine_of(tmp_path, TRAINER, command=command)


def test_no_step_leads_to_what_does_not_reach_the_command(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, BY_ARGUMENTS)
    steps = set(engine.steps(engine.unchanged))
    assert ("optimizer.implementation", "torch_fused") in steps
    assert ("optimizer.implementation", "deepspeed") not in steps
    assert not {name for name, _ in steps} & {"tp", "loss_chunk_tokens"}


def test_a_user_s_key_is_told_as_it_was_written(tmp_path: Path) -> None:
    """Not by what "auto" was filled in with, and not at all if nobody wrote it."""
    filled = {**TRAINER["config"], "zero_optimization": {"stage": 2, "reduce_bucket_size": 16384}}
    written = {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    bucket = "zero_optimization.reduce_bucket_size"
    for zero, told in ((written, ("auto", 1000000)), ({"zero_optimization": {"stage": 2}}, None)):
        engine = engine_of(tmp_path, {**TRAINER, "config": filled, "config_written": zero})
        candidate = changed(engine, reduce_bucket_size=1000000)
        assert engine.overridden(candidate).get(bucket) == told
        assert engine.edits_in_words(candidate)[0].startswith("ds_config.json: ")


@pytest.mark.parametrize(
    ("description", "recomputes"),
    [(RAW, False), (TRAINER, True), (BY_ARGUMENTS, True)],
    ids=["raw", "trainer", "by_arguments"],
)
def test_every_candidate_keeps_the_batch_and_reaches_the_command(
    tmp_path: Path, description: dict[str, Any], recomputes: bool
) -> None:
    job = job_of(observed(description), tmp_path)
    engine = ScriptEngine(job, replace(CPU, accelerator="cuda"))
    assert ("recompute" in engine.space.domains) is recomputes
    candidates = lattice_of(engine).candidates
    assert len(candidates) > 3
    assert engine.unchanged in candidates
    for candidate in candidates:
        assert candidate.micro_batch * candidate.grad_accum * 2 == job.global_batch


def test_what_is_expected_is_what_was_read_back_but_for_the_edits(tmp_path: Path) -> None:
    odd = {"gradient_clipping": 0.25, "optimizer_wrapper": "SomethingElse"}
    engine = engine_of(tmp_path, read_back=odd)
    own, other = engine.expected(engine.unchanged), engine.expected(changed(engine, zero__stage=2))
    assert own["stage"] == 1
    assert other["stage"] == 2
    assert own["n_params"] == other["n_params"] == RAW["n_params"]
    for name in odd.keys() & own.keys():
        assert own[name] == odd[name], "nobody foretells what the user has set"


@pytest.mark.parametrize(("own", "tried"), [({}, ("none",)), ({"device": "cpu"}, ("none", "cpu"))])
def test_nothing_is_offloaded_from_a_cpu_to_the_host(tmp_path: Path, own: dict, tried) -> None:
    """It would be where it was; a command that does so itself may be freed of it."""
    given = {**RAW, "config": {**RAW["config"], "zero_optimization": {"stage": 1}}}
    if own:
        given["config"]["zero_optimization"]["offload_optimizer"] = own
    job = job_of(observed(given), tmp_path)
    values = {kind: {} for kind in ("cpu", "cuda")}
    for kind, found in values.items():
        domains = ScriptEngine(job, replace(CPU, accelerator=kind)).space.domains
        found |= {n: domains[n].values for n in ("offload.optimizer", "offload.param")}
    assert values["cpu"] == {"offload.optimizer": tried, "offload.param": ("none",)}
    assert set(values["cuda"].values()) == {("none", "cpu")}


def test_values_of_the_command_s_own_stay_choices(tmp_path: Path) -> None:
    """Else every candidate would change them as well."""
    zero = {"stage": 2, "reduce_bucket_size": 900}
    config = {**RAW["config"], "train_micro_batch_size_per_gpu": 6, "zero_optimization": zero}
    odd = {**RAW, "micro_batches": [6, 6], "config": config}
    engine = engine_of(tmp_path, odd, read_back={"micro_batch": 6})
    assert [*engine.space.domains["micro_batch"].values][2:5] == [4, 6, 8]
    assert engine.space.domains["reduce_bucket_size"].values[0] == 900
    assert engine.unchanged.micro_batch == 6


def test_pairs_of_rows_are_asked_for_and_priced(tmp_path: Path) -> None:
    """A preference is a chosen and a rejected answer: Trainer's batch of 4 arrives as 8 rows."""
    (tmp_path / "plain").mkdir()
    plain = engine_of(tmp_path / "plain", TRAINER)
    pairs = engine_of(tmp_path, {**TRAINER, "micro_batches": [8, 8]})
    other = changed(pairs, micro_batch=2)
    assert (pairs.unchanged.micro_batch, pairs.edits(other).rows_per_sample) == (4, 2)
    assert Edits(**json.loads(pairs.files(other)[EDITS_FILE])) == pairs.edits(other)
    assert any("2 rows" in line for line in pairs.remarks())
    assert not any("rows" in line for line in plain.remarks())
    ran = [engine.plans([changed(engine, micro_batch=2)]) for engine in (plain, pairs)]
    assert [list(each.micro_batch) for each in ran] == [[2], [4]]


def test_a_batch_that_nothing_reaches_is_no_choice(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {**RAW, "asks_micro_batch": False})
    assert engine.space.domains["micro_batch"].values == (4,)


@pytest.mark.cases("changes", "remark", "unsaid")
def test_what_is_odd_is_remarked(tmp_path, changes, remark, unsaid):
    remarks = " ".join(engine_of(tmp_path, {**RAW, **changes}).remarks())
    assert remark in remarks
    assert unsaid not in remarks


def test_time_beyond_the_median_step_is_remarked(tmp_path: Path) -> None:
    own = observed()
    for name, last_s in (("even", 0.5), ("evaluates", 5.0)):
        (folder := tmp_path / name).mkdir()
        ran = replace(own, result={**own.result, "step_times_s": [0.5] * 9 + [last_s]})
        said = [
            line for line in ScriptEngine(job_of(ran, folder), CPU).remarks() if "median" in line
        ]
        assert [line[:4] for line in said] == (["47% "] if name == "evaluates" else [])


def test_every_candidate_has_the_stages_of_the_script_s_pipeline(tmp_path: Path) -> None:
    config = {
        **RAW["config"],
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    }
    pipeline = {**RAW, "engine": "PipelineEngine", "dp": 1, "config": config}
    pipeline["sizes"] = {**RAW["sizes"], "n_layers": 0}  # its layers stand in no list
    script = observed(
        {**pipeline, "micro_batches": [2] * 4},
        read_back={"pp": 2, "dp": 1, "micro_batch": 2, "grad_accum": 4},
    )
    assert script.global_batch == 8
    job = job_of(script, tmp_path)
    engine = ScriptEngine(job, CPU)
    assert (engine.unchanged.micro_batch, engine.unchanged.grad_accum) == (2, 4)
    candidates = lattice_of(engine).candidates
    assert engine.unchanged in candidates
    assert len({candidate.micro_batch for candidate in candidates}) > 1
    for candidate in candidates:
        assert candidate.micro_batch * candidate.grad_accum == 8
        assert candidate.values["zero.stage"] <= 1, "DeepSpeed's pipelines have no more"
    edits = engine.edits(replace(engine.unchanged, knobs=engine.unchanged.knobs))
    assert not edits.configuration


@pytest.mark.cases("words", "knobs", "told")
def test_a_change_of_accelerate_s_settings_is_told_in_its_words(tmp_path, words, knobs, told):
    zero = {"zero_optimization": {"stage": 2, "overlap_comm": False}}
    described = {**RAW, "framework": "accelerate", "config": {**RAW["config"], **zero}}
    command = ["accelerate", "launch", *words.split()]
    engine = engine_of(tmp_path, described, command=command)
    assert sorted(engine.edits_in_words(changed(engine, **knobs))) == told
    plugin = engine_of(tmp_path, {**described, "brings_plugin": True}, command=command)
    edited = plugin.edits_in_words(changed(plugin, zero__stage=1))
    assert edited == ["the configuration in your code: zero_optimization.stage: 1"]
    # Trainer hands accelerate a plugin in any case.
    trainer = {**TRAINER, **described, "framework": "trl", "config_file": ""}
    trainer |= {"arguments": TRAINER["arguments"], "config_written": zero}
    engine = engine_of(tmp_path, {**trainer, "brings_plugin": True}, command=command)
    assert sorted(engine.edits_in_words(changed(engine, **knobs))) == told
    assert engine._script.origins["zero.stage"] == "accelerate's settings"


def test_a_batch_that_trainer_s_file_has_in_numbers_is_told_beside_the_arguments(tmp_path):
    """Trainer refuses a number that is not its argument's; "auto" follows."""
    for written, n_told in ((2, 1), ("auto", 0)):
        described = {**TRAINER, "config_written": {"gradient_accumulation_steps": written}}
        engine = engine_of(tmp_path, described)
        told = engine.edits_in_words(changed(engine, micro_batch=8))
        assert told.count("ds_config.json: gradient_accumulation_steps: 1") == n_told


BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def test_a_script_reads_the_file_of_deepspeed_as_a_candidate_has_it(tmp_path: Path) -> None:
    read = {**READ, "file": "/p/ds.json", "at": [], "same": list(BATCH), "is_whole": True}
    own = {
        **{**RAW, "asks_micro_batch": False, "config_written": RAW["config"]},
        **{"config_file": "/p/ds.json", "loader_batches": [4], "sources": [read]},
    }
    engine = engine_of(tmp_path, own)
    edits = engine.edits(changed(engine, micro_batch=8))
    assert edits.configuration == dict(zip(BATCH, (8, 1), strict=True))
    changes = [([key], value) for key, value in edits.configuration.items()]
    assert edits.files == {"/p/ds.json": changes}
    unread = engine_of(tmp_path, {**own, "sources": []})
    assert not unread.edits(changed(unread, zero__stage=2)).files


def test_a_flag_for_recomputation_is_searched_and_read_back(tmp_path: Path) -> None:
    command = ["torchrun", "t.py", "{recompute=none:--ckpt}"]
    engine = engine_of(tmp_path, command=command, read_back={"recomputes": False})
    lattice = lattice_of(engine)
    legal = [c for at, c in enumerate(lattice.candidates) if lattice.is_legal(at)]
    on, off = changed(engine, recompute="full"), engine.unchanged
    assert {candidate.get("recompute", "none") for candidate in legal} == {"none", "full"}
    job = engine._job
    assert [Script().workload(job, one).command[2:] for one in (on, off)] == [["--ckpt"], []]
    assert [engine.edits(one).recomputes for one in (on, off)] == [True, False]
    assert Edits(**json.loads(engine.files(on)[EDITS_FILE])).recomputes is True
    was_on = ["torchrun", "t.py", "{recompute=full:--ckpt}"]
    engine = engine_of(tmp_path, command=was_on, read_back={"recomputes": True})
    off = changed(engine, recompute="none")
    assert Script().workload(engine._job, off).command == ["torchrun", "t.py"]
    (found,) = {c.get("recompute", "none") for c in lattice_of(engine).candidates} - {"full"}
    assert found == "none"
