"""Layouts as settings of verl, NeMo-RL and ms-swift: against the fields that their sources have.

Their own packages need CUDA's. Where VERL_PATH, NEMO_RL_PATH and MS_SWIFT_PATH name folders that
hold them, what reads their configurations is asked, too: that part of them needs none.
"""

import ast
import dataclasses
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.app.check import CheckFlags, check_files
from autotune.base.errors import RenderError
from autotune.base.nested import leaves, look_up
from autotune.engines.megatron.arguments import KNOBS_OF
from autotune.export.dialects.megatron_bridge import MOMENT_DTYPES, fields_of
from autotune.export.dialects.settings import CONSUMERS, FIELDS_FILE, settings_of
from tests.export.dialects.test_megatron_core import exported as exported_for_cpu
from tests.export.dialects.test_megatron_lm import DENSE, EXPERTS, LAYOUTS, exported
from tests.export.handed import GPUS, export, handed
from tests.record_consumer_fields import fields_of as recorded
from tests.recorded_json import as_text

REPOSITORY = Path(__file__).resolve().parents[3]
FIELDS = json.loads(FIELDS_FILE.read_text())
BF16 = [(job, text) for job, text in LAYOUTS if "precision" not in job]
FILES = [(to, file) for to, consumer in CONSUMERS.items() for file in consumer["files"]]


def settings_in(folder: Path, file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / file).read_text())
    return found


def sections_of(to: str, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind of settings -> those that a file has of it."""
    if to == "ms-swift":
        more = data.pop("megatron_extra_kwargs", {})
        return {"megatron": {k: v for k, v in data.items() if k != "ENV"}, "model": more}
    if to == "nemo-rl":
        policy = data["policy"]
        megatron = policy["megatron_cfg"]
        ddp = megatron["distributed_data_parallel_config"]
        found = {"policy": policy, "megatron": megatron, "ddp": ddp}
        return {**found, "optimizer": megatron["optimizer"]}
    actor = data.get("actor_rollout_ref", {}).get("actor", data)
    engine, optim = actor.get("megatron", actor.get("engine")), actor.get("optim", {})
    return {
        "engine": engine,
        "model": engine["override_transformer_config"],
        "ddp": engine["override_ddp_config"],
        "optim": optim,
        "optimizer": optim.get("override_optimizer_config", {}),
    }


LAYOUT_TEXT = "Etttt|tttt|tttt|tttt|tttt|ttttt|tttt|tttL"


@pytest.mark.parametrize("stages", ["even", LAYOUT_TEXT])
@pytest.mark.parametrize("to", ["megatron", "megatron-bridge", "megatron-core", *CONSUMERS])
def test_check_finds_nothing_in_what_is_exported(tmp_path, to, stages):
    pipeline = "" if to == "nemo-rl" else f" pp=2 vp=4 stages={stages}"
    out = exported(tmp_path, DENSE, f"tp=1{pipeline} distributed_optimizer=true", to=to)
    checked = check_files([str(out)], CheckFlags(world=16))
    assert [one.violation for report in checked.reports for one in report.found] == []
    assert checked.reports, "there is something to check in each of them"


@pytest.mark.parametrize(
    ("to", "file", "said"),
    [
        ("megatron", "megatron_args.sh", "--moe-flex-dispatcher-backend deepep"),
        ("megatron@0.16", "megatron_args.sh", "--moe-flex-dispatcher-backend deepep"),
        ("megatron@0.15", "megatron_args.sh", "--moe-enable-deepep"),
        ("megatron-bridge", "bridge.yaml", "moe_flex_dispatcher_backend: deepep"),
        ("nemo-rl", "nemo_rl.yaml", "moe_flex_dispatcher_backend: deepep"),
        # They run with releases that lack the backend, too.
        ("verl", "verl_sft.yaml", "moe_enable_deepep: true"),
        ("ms-swift", "ms_swift.yaml", "moe_enable_deepep: true"),
        ("megatron-core", "megatron_args.json", '"moe_enable_deepep": true'),
    ],
)
def test_deepep_is_the_backend_where_the_release_has_that(tmp_path, to, file, said):
    out = exported(tmp_path, EXPERTS, "tp=1 ep=8 dispatcher=deepep", to=to)
    lines = [line for line in (out / file).read_text().splitlines() if "deepep" in line]
    assert said in "\n".join(lines)
    assert len([line for line in lines if "false" not in line]) == 1
    checked = check_files([str(out)], CheckFlags(world=16))
    assert [one.violation for report in checked.reports for one in report.found] == []


@pytest.mark.parametrize(
    ("to", "file", "job", "settings"),
    [
        (to, file, job, settings)
        for to, file in FILES
        for job, settings in BF16
        # It cannot be told these, see below.
        if to != "nemo-rl" or not re.search("vp|block", settings)
    ],
)
def test_every_setting_is_a_field_that_the_consumer_knows(tmp_path, to, file, job, settings):
    data = settings_in(exported(tmp_path, job, settings, to=to), file)
    for kind, found in sections_of(to, data).items():
        assert set(found) <= set(FIELDS[to].get(kind) or fields_of(kind)), kind


def test_what_verl_cannot_be_told_is_said(tmp_path):
    out = exported(tmp_path, *LAYOUTS[1], to="verl")
    assert "- `overlap_param_gather`: " in (out / "README.md").read_text()
    assert "overlap_param_gather: false" in (out / "verl_sft.yaml").read_text()
    plain = exported(tmp_path / "plain", *LAYOUTS[0], to="verl")
    assert "Left out" not in (plain / "README.md").read_text()


REFUSED = [
    ("verl", "tp=2 tp_comm_overlap=true sequence_parallel=true", "tp_comm_overlap"),
    ("verl", "pp=2 order=tp-cp-ep-pp-dp", "order"),
    ("verl", "fp8=hybrid fp8_recipe=tensorwise", "fp8_recipe"),
    ("verl", "fp4=true", "fp4"),
    ("verl", "cuda_graphs=attn", "cuda_graphs"),
    ("nemo-rl", "pp=2 vp=2", "vp"),
    ("nemo-rl", "pp=2 recompute=block_4", "recompute"),
    ("nemo-rl", "distributed_optimizer=true fsdp=optim_grads_params", "fsdp"),
    ("nemo-rl", "distributed_optimizer=true adam_moments=bf16", "adam_moments"),
    ("nemo-rl", "cp=2 cp_kind=a2a", "cp_kind"),
    ("ms-swift", "main_grads=bf16", "main_grads"),
    ("ms-swift", "nccl_ub=true", "nccl_ub"),
    ("ms-swift", "cuda_graphs=attn", "cuda_graphs"),
]


@pytest.mark.parametrize(("to", "settings", "knob"), REFUSED)
def test_a_layout_that_would_be_another_there_is_refused(tmp_path, to, settings, knob):
    with pytest.raises(RenderError, match=f"--to {to}: {knob} cannot be said: ") as caught:
        exported(tmp_path, DENSE, settings, to=to, gpu="B200" if "fp4" in settings else "H100")
    assert f"choose a candidate without {knob}" in caught.value.hint


@pytest.mark.parametrize("to", CONSUMERS)
def test_the_page_names_every_knob_that_a_consumer_cannot_be_told(to):
    refused = set()
    for argument, knob in KNOBS_OF.items():
        value = "bf16" if argument in MOMENT_DTYPES else 1
        try:
            settings_of(f"--to {to}", CONSUMERS[to], FIELDS[to], argument, value)
        except RenderError:
            refused.add(knob)
    lines = (REPOSITORY / "docs" / "export.md").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("| Megatron's") and f"| `{to}` |" in one)
    assert set(re.findall(r"`(\w+)`", line.partition(";")[0])) == refused


@pytest.mark.parametrize("to", CONSUMERS)
def test_other_precisions_and_cpu_ranks_are_refused(tmp_path, to):
    with pytest.raises(RenderError, match="precision cannot be said"):
        exported(tmp_path, {**DENSE, "precision": "fp32"}, "tp=2", to=to)
    with pytest.raises(RenderError, match="CUDA devices alone"):
        exported_for_cpu(tmp_path, to=to)


@pytest.mark.parametrize(("to", "file"), FILES)
def test_defaults_that_are_written_out_are_fields_too(to, file):
    """A setting of a consumer's that no layout touches would else be dropped without a word."""
    consumer = CONSUMERS[to]
    kinds = {
        place: kind for places in consumer["sections"].values() for place, kind in places.items()
    }
    named = {**{place: None for place in consumer["files"][file]["places"]}, **kinds}
    rows = [row for row in consumer["rows"].values() if isinstance(row, dict)]
    for place in [*consumer["defaults"], *(place for row in rows for place in row)]:
        section, _, field = place.rpartition(".")
        if kind := kinds.get(section):
            assert field in (FIELDS[to].get(kind) or fields_of(kind)), place
        else:
            assert place.partition(".")[0] in {name.partition(".")[0] for name in named}, place


def test_ms_swift_with_deepspeed_reads_arguments_that_it_has(tmp_path):
    transformers = pytest.importorskip("transformers")
    out = export(
        handed(tmp_path, environment=GPUS, zero__stage=3, micro_batch=2, attention="eager"),
        tmp_path,
        "ms-swift",
    )
    data = settings_in(out, "ms_swift.yaml")
    inherited = {f.name for f in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    assert set(data) <= inherited | set(FIELDS["ms-swift"]["sft"])
    assert {path.name for path in out.iterdir()} == {
        *("README.md", "autotune_export.json", "ds_config.json", "ms_swift.yaml")
    }


def test_a_variable_of_the_ranks_is_where_each_consumer_looks_for_it(tmp_path):
    places = {
        ("verl", "verl_ppo.yaml"): "ray_kwargs.ray_init.runtime_env.env_vars.A",
        ("nemo-rl", "nemo_rl.yaml"): "policy.megatron_cfg.env_vars.A",
        ("ms-swift", "ms_swift.yaml"): "ENV.A",
    }
    for (to, file), place in places.items():
        out = exported(tmp_path / to, DENSE, "tp=2", to=to, variables={"A": "1"})
        assert look_up(settings_in(out, file), place) == "1"
    assert "A=1 torchrun" in (tmp_path / "verl" / "README.md").read_text()


def of_consumer(variable: str) -> Path:
    """The folder that holds a consumer's package."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder")
    return Path(os.environ[variable])


def loaded(path: Path) -> Any:
    """A module by its file alone: the package around it imports what needs CUDA."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", CONSUMERS["verl"]["files"])
def test_verl_composes_its_configuration(tmp_path, file):
    configs = of_consumer("VERL_PATH") / "verl/trainer/config"
    hydra = pytest.importorskip("hydra")
    out = exported(tmp_path, *LAYOUTS[1], to="verl")
    text = (out / file).read_text()
    (out / file).write_text(text.replace("pkg://verl.trainer.config", f"file://{configs}"))
    with hydra.initialize_config_dir(str(out), version_base=None):
        found = hydra.compose(Path(file).stem)
    places = CONSUMERS["verl"]["files"][file]["places"]
    engine = look_up(found, places["engine"])
    assert engine["_target_"] == "verl.workers.config.McoreEngineConfig"
    assert look_up(found, f"{places['optim']}._target_").endswith("McoreOptimizerConfig")
    for at, value in leaves({k: v for k, v in yaml.safe_load(text).items() if k not in HEAD}):
        assert look_up(found, ".".join(at)) == value or value == {}, at


HEAD = ("hydra", "defaults")


def test_nemo_rl_loads_its_recipe_with_ours_on_top(tmp_path, monkeypatch):
    checkout = of_consumer("NEMO_RL_PATH")
    pytest.importorskip("hydra")
    config = loaded(checkout / "nemo_rl/utils/config.py")
    out = exported(tmp_path, *LAYOUTS[2], to="nemo-rl")
    monkeypatch.setenv("NEMO_RL_CONFIG", str(checkout / "examples/configs/sft.yaml"))
    found = config.load_config(out / "nemo_rl.yaml")
    assert found.policy.model_name == "meta-llama/Llama-3.2-1B", "the recipe's own"
    ours = settings_in(out, "nemo_rl.yaml")
    for at, value in leaves({name: ours[name] for name in ("policy", "cluster")}):
        assert look_up(found, ".".join(at)) == value or "$" in str(value) or value == {}, at
    assert found.policy.make_sequence_length_divisible_by == 2


def test_ms_swift_reads_its_arguments(tmp_path, monkeypatch):
    main = of_consumer("MS_SWIFT_PATH") / "swift/cli/main.py"
    (parse,) = (
        node
        for node in ast.parse(main.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "parse_yaml_args"
    )
    monkeypatch.setattr(os, "environ", dict(os.environ))
    names: dict[str, Any] = {"os": os, "yaml": yaml, "json": json}
    exec(compile(ast.Module([parse], []), "main.py", "exec"), names)
    out = exported(tmp_path, *LAYOUTS[1], to="ms-swift", variables={"A_VARIABLE": "1"})
    words = [str(out / "ms_swift.yaml"), "--model", "mine"]
    names["parse_yaml_args"](words)
    assert words[-2:] == ["--model", "mine"]
    at = words.index("--virtual_pipeline_model_parallel_size")
    assert words[at + 1] == "4"
    assert os.environ["A_VARIABLE"] == "1"
    assert set(words[:-2:2]) <= {f"--{name}" for name in FIELDS["ms-swift"]["megatron"]}


def test_the_file_of_fields_is_what_the_sources_say():
    variables = ("VERL_PATH", "NEMO_RL_PATH", "MS_SWIFT_PATH", "SKYPILOT_PATH")
    folders = dict(zip(FIELDS, map(of_consumer, variables), strict=True))
    assert FIELDS_FILE.read_text(encoding="utf-8") == as_text(recorded(folders), 2)
