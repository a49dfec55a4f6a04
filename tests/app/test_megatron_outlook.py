"""`plan`, `explain` and `estimate` with `--engine megatron`."""

import json

import numpy as np
import pytest

from autotune.app.planning import export_ranked, open_outlook, render
from autotune.base.errors import ExitCode, JobError, NothingFeasibleError, RenderError
from autotune.cost import predict
from autotune.planning.choices import strain_of
from autotune.planning.explained import estimate_candidate, explain_candidate
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import rank_lattice
from autotune.report.candidates.explained import estimate_as_dict, print_explained
from autotune.report.candidates.ranking import print_ranking, ranking_as_dict
from tests.app.test_planning import printed
from tests.captured import captured
from tests.cases import data_beside
from tests.command_line import autotune

DATA = data_beside(__file__)

FLAGS = {"model": "llama-3-8b", "seq_len": 4096, "global_batch": 256, "world": 64}


def opened(wishes=None, **changes):
    wishes = wishes or FleetWishes(gpu="H100")
    return open_outlook(None, {**FLAGS, "engine": "megatron", **changes}, wishes)


@pytest.fixture(scope="module")
def outlook():
    return opened()


@pytest.fixture(scope="module")
def ranking(outlook):
    return rank_lattice(outlook)


def test_a_refused_candidate_has_each_fix_below_what_it_mends(tmp_path):
    flags = {**FLAGS, "engine": "megatron"}
    with pytest.raises(JobError) as error:
        render(None, flags, ["tp=3"], tmp_path, to=None, wishes=FleetWishes(gpu="H100"))
    told = str(error.value).splitlines()
    assert told[:3:2] == [
        "tp.heads: n_heads 32 is no multiple of tp 3",
        "tp.kv_heads: n_kv_heads 8 is no multiple of tp 3, and no divisor of it, which counts "
        "from Megatron Core 0.16 on",
    ]
    assert {line[:7] for line in told[1::2]} == {"  fix: "}


def test_a_what_if_of_another_device_has_its_layouts():
    outlook = opened(model="qwen3-30b-a3b", global_batch=64, world=8)
    (rack,) = rank_lattice(outlook, what_if=["gpu=GB200"]).variants
    assert rack.candidate["dispatcher"] == "hybridep"
    assert "dispatcher=hybridep" in rack.described


def test_the_ranking_is_of_what_predict_says(outlook, ranking):
    found = ranking
    seconds = predict(outlook.plans(outlook.lattice.candidates)).step_time_s
    sure = found.order[: found.n_likely]
    assert 0 < found.n_likely < len(found.candidates)
    assert (found.prediction.fit_probability[sure] >= found.min_fit).all()
    changes = outlook.engine.changes_training(found.candidates)[sure]
    assert changes.tolist() == sorted(changes)
    for alike in (sure[~changes], sure[changes]):
        assert seconds[alike[0]] <= 1.03 * seconds[alike].min()
        plain_s = seconds[alike[strain_of(found.prediction.plans)[alike] < 8]]
        assert (plain_s[1:] > np.maximum.accumulate(plain_s)[:-1] / 1.03).all()
    assert sorted(found.order) == list(range(len(found.candidates)))


def test_rows_are_told_as_layouts(outlook):
    found = rank_lattice(outlook)
    row = ranking_as_dict(found, [1])["candidates"][0]
    knobs = row["candidate"]
    assert {"tp", "pp", "distributed_optimizer", "recompute"} < set(knobs)
    assert sum(row["pred_time_parts_s"].values()) == pytest.approx(row["pred_step_time_s"])
    said = found.described(int(found.order[0]))
    assert f"tp={knobs['tp']} pp={knobs['pp']}" in said
    assert said.endswith(f"dp={64 // (knobs['tp'] * knobs['pp'] * knobs['cp'])}")
    json.dumps(row)


@pytest.mark.parametrize(
    ("model", "why"), [("minimax-m2", "of all heads together"), ("gemma-2-2b", "norms behind")]
)
def test_a_model_that_megatron_cannot_be_is_a_forecast_alone(tmp_path, model, why):
    there = opened(FleetWishes(gpu="B200"), model=model, world=32, global_batch=32)
    found = rank_lattice(there)
    no_files = found.outlook.engine.no_files()
    assert why in no_files
    assert ranking_as_dict(found, [1])["no_files"] == no_files
    told = " ".join(printed(print_ranking, found, top=1).split())
    assert "No files are made for this, it is a forecast alone" in told
    estimated = estimate_candidate(there, ["tp=2", "micro_batch=1"])
    assert why in estimate_as_dict(estimated)["no_files"]
    with pytest.raises(JobError, match=why):
        export_ranked(there, found, tmp_path / "out", to="megatron")


def test_a_search_of_such_a_model_is_refused_at_once(tmp_path):
    flags = ("--seq-len", "64", "--global-batch", "8", "--world", "2", "--precision", "fp32")
    done = autotune(
        *("search", "--engine", "megatron", "--model", "minimax-m2", "--dry-run", *flags),
        folder=tmp_path,
    )
    assert done.returncode == ExitCode.INVALID_INPUT
    assert "of all heads together" in " ".join(done.stderr.split())


def test_a_memory_limit_and_links_reach_the_prediction(ranking):
    tight = rank_lattice(opened(memory_limit="40GiB"))
    slow = rank_lattice(opened(FleetWishes(gpu="H100", network="10Gbps")))
    wide = ranking
    assert tight.n_likely < wide.n_likely
    best = int(slow.order[0])
    assert slow.prediction.step_time_s[best] > wide.prediction.step_time_s[best]


def test_a_refused_layout_names_every_rule_and_a_change_that_is_legal(outlook, ranking):
    found = explain_candidate(outlook, ["tp=2", "vp=2", "distributed_optimizer=true"])
    assert {violation.rule for violation in found.violations} == {"vp.pipeline"}
    assert not found.is_in_lattice
    assert found.n_ranked in {n := len(ranking.choices), n + 1}
    assert (found.cheapest_legal.knob, found.cheapest_legal.value) in {("vp", 1), ("pp", 2)}
    both = explain_candidate(outlook, ["tp=3", "micro_batch=3"])
    assert {"tp.heads", "world.product", "batch.product"} <= {v.rule for v in both.violations}


def test_what_the_lattice_lacks_is_named_and_modules_bring_their_recomputation(outlook):
    mixture = opened(FleetWishes(gpu="H100"), model="deepseek-v3", global_batch=2048, world=1024)
    settings = "tp=2 pp=8 vp=4 ep=64 etp=1 dispatcher=deepep sequence_parallel=true"
    more = "stages=balanced distributed_optimizer=true overlap_experts=true"
    found = explain_candidate(mixture, f"{settings} {more}".split())
    assert (found.violations, found.first) == ((), "")
    assert {*found.nearest} < {"overlap_experts=false", "delay_weight_grads=true"}
    text = " ".join(printed(print_explained, found).split())
    assert f"does not hold it, the nearest there has {' '.join(found.nearest)} step" in text
    assert "the plan counts it" not in text
    assert "recompute=selective recompute_modules=mla_up_proj +" in text
    inside = explain_candidate(outlook, ["tp=2", "distributed_optimizer=true"])
    assert inside.is_in_lattice
    assert not inside.nearest


def test_of_two_changes_that_make_it_legal_the_one_that_the_fix_names_is_proposed(outlook):
    alone = explain_candidate(outlook, ["tp=1", "sequence_parallel=true", "micro_batch=2"])
    assert "take sequence_parallel=false, or a tp above 1" in {v.fix for v in alone.violations}
    change = alone.cheapest_legal
    assert (change.knob, change.value) == ("sequence_parallel", False)
    experts = {"model": "mixtral-8x7b", "global_batch": 64, "world": 8}
    mixture = opened(FleetWishes(gpu="B200"), **experts)
    settings = ["tp=2", "micro_batch=2", "ep=4", "distributed_optimizer=true"]
    change = explain_candidate(mixture, settings).cheapest_legal
    assert (change.knob, change.value) == ("sequence_parallel", True)


def test_a_rank_that_a_consumer_can_be_told_is_named(tmp_path):
    small = {"model": "llama-3.2-1b", "seq_len": 2048, "global_batch": 32, "world": 8}
    outlook = opened(space="megatron", **small)
    ranking = rank_lattice(outlook)
    with pytest.raises(RenderError, match="cannot be said") as caught:
        export_ranked(outlook, ranking, tmp_path / "out", rank=1, to="verl")
    rank = int(caught.value.hint.rpartition(" such as --rank ")[2])
    assert rank > 1
    notes = []
    assert export_ranked(outlook, ranking, tmp_path / "out", to="verl", note=notes.append)
    assert json.loads((tmp_path / "out" / "prediction.json").read_text())["rank"] == rank
    assert notes[0].startswith("rank 1 is not written: --to verl: ")


def test_the_export_is_bash_and_marked_as_predicted(outlook, ranking, tmp_path):
    rank, knobs = next(
        (rank, values)
        for rank, index in enumerate(ranking.choices.firsts, start=1)
        if {"tp": 2, "pp": 2, "distributed_optimizer": True, "sequence_parallel": True}.items()
        <= (values := ranking.candidates[int(index)].values).items()
        and values["vp"] > 1
        and str(values["recompute"]).startswith("block_")
        and not values["ends_as_layers"]
    )
    files = export_ranked(outlook, ranking, tmp_path / "out", rank=rank, to="megatron")
    names = {path.name for path in files}
    run = {"megatron_args.sh", "launch.sh", "megatron_args.json", "README.md"}
    assert names == {*run, "settings.json", "prediction.json", "autotune_export.json"}
    script = f"set -eu; MEGATRON_PATH=x; source {tmp_path}/out/megatron_args.sh; "
    script += "echo ${LAYOUT_ARGS[*]} $CUDA_DEVICE_MAX_CONNECTIONS"
    done = captured(["bash", "-c", script], check=True)
    words = done.stdout.split()
    assert words[-1] == "1"
    for flag, value in (
        ("--tensor-model-parallel-size", "2"),
        ("--pipeline-model-parallel-size", "2"),
        ("--num-virtual-stages-per-pipeline-rank", str(knobs["vp"])),
        ("--recompute-method", "block"),
        ("--recompute-num-layers", str(knobs["recompute"]).removeprefix("block_")),
        ("--global-batch-size", "256"),
    ):
        assert words[words.index(flag) + 1] == value
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--bf16"} < set(words)
    assert "--account-for-embedding-in-pipeline-split" not in words
    layout = json.loads((tmp_path / "out" / "megatron_args.json").read_text())
    assert (layout["tensor_model_parallel_size"], layout["num_layers"]) == (2, 32)
    marked = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert marked["rank"] == rank
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "nothing here was measured" in readme
    assert "{{" not in readme
    export_ranked(outlook, ranking, tmp_path / "out")  # over an earlier export
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "README.md").write_text("mine")
    with pytest.raises(RenderError, match=r"holds README\.md"):
        export_ranked(outlook, ranking, tmp_path / "theirs")


@pytest.mark.parametrize(
    ("changes", "wishes", "error", "said"),
    [
        ({"space": "zero"}, None, JobError, "space"),
        ({"model": "gpt2", "seq_len": 2048}, None, NothingFeasibleError, "1024 positions"),
        ({"global_batch": 1, "world": 4099}, None, NothingFeasibleError, "batch.product"),
        ({}, FleetWishes(gpu="Abacus"), JobError, "--gpu: no figures"),
        ({}, FleetWishes(gpu="V100-32GB"), JobError, "bf16 on V100"),
    ],
)
def test_absurd_input_is_answered(changes, wishes, error, said):
    with pytest.raises(error) as caught:
        opened(wishes, **changes)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_a_model_without_layers_is_refused(tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 0, "hidden_size": 64}
    config |= {"num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(JobError, match="num_hidden_layers"):
        opened(model=str(tmp_path / "config.json"))


LAUNCH = DATA["LAUNCH"]


def test_a_plan_says_what_is_predicted_of_the_users_own_launch(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    words = ("--model", "llama-3-8b", "--seq-len", "4096", "--global-batch", "256")
    done = autotune(
        *("plan", "--engine", "megatron", *words, "--world", "64", "--gpu", "H100"),
        *("--baseline", "launch.sh", "--json"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["baseline"]
    knobs = told["candidate"]
    assert {name: knobs[name] for name in ("tp", "pp", "sequence_parallel")} == {
        "tp": 8,
        "pp": 4,
        "sequence_parallel": True,
    }
    assert told["pred_step_time_s"] > 0


def test_a_plan_refuses_a_launch_of_another_training(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH.replace("NODES=8", "NODES=4"))
    words = ("--model", "llama-3-8b", "--seq-len", "4096", "--global-batch", "256")
    done = autotune(
        *("plan", "--engine", "megatron", *words, "--world", "64", "--gpu", "H100"),
        *("--baseline", "launch.sh"),
        folder=tmp_path,
    )
    assert done.returncode == ExitCode.INVALID_INPUT
    assert "starts 32 ranks" in done.stderr
