"""What is split, spread or computed in chunks trains what the whole model trains, on real ranks.

Compared with plain SGD: AdamW and clipping hide gradients that are too large by a factor. Losses
and norms of the whole gradient, step for step, from the same weights and samples.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import to_dict
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.mixtures import SPLIT_BESIDE_AUTOEP
from autotune.job.job import Job
from autotune.search.trial_spec import Role, Run, make_spec
from tests.cases import data_beside
from tests.driven_ranks import train_cases
from tests.jobs import CPU, TINY, canonical_candidate, tiny_job
from tests.trials import changed

DATA = data_beside(__file__)

pytestmark = pytest.mark.real

MODELS: dict[str, dict[str, Any]] = DATA["models"]
PAIRS: dict[str, dict[str, Any]] = DATA["pairs"]
LEAST_NORM = 0.1
"""What clipped pairs clip at."""
SGD = {"type": "SGD", "params": {"lr": 0.3}}
SMALL = {"reduce_bucket_size": 10_000, "stage3__prefetch_bucket_size": 10_000}
"""Buckets of the default size reserve gigabytes."""
WHOLE = {"model": "llama", "stage": 3}
NOT_SCATTERED = {**WHOLE, "sp": 2, "zero": {"reduce_scatter": False}}


def make_case(
    job: Job,
    stage: int,
    *,
    clipping: float = 0.0,
    zero: dict[str, Any] | None = None,
    scale: int | None = None,
    **knobs: Any,
) -> dict[str, Any]:
    """A case for the driver; the whole model where no knob splits it."""
    engine = DeepSpeedEngine(job, CPU)
    small = {name: SMALL[name] for name in (list(SMALL) if stage == 3 else list(SMALL)[:1])}
    split = knobs.get("sp", 1)
    candidate = canonical_candidate(
        job, zero__stage=stage, micro_batch=split, **(small if stage else {}), **knobs
    )
    run = Run(candidate=candidate, role=Role.SEARCH)
    spec = make_spec(run, study="split", number=0, job=job, engine=engine, environment=CPU)
    ds_config = {
        **engine.setup(candidate).ds_config,
        "gradient_clipping": clipping,
        "zero_allow_untested_optimizer": True,
    }
    ds_config["zero_optimization"] = {**ds_config["zero_optimization"], **(zero or {})}
    expected = {**spec.engine.expected, "gradient_clipping": clipping, **(zero or {})}
    spec = changed(spec, expected=expected)
    return {"spec": to_dict(spec), "ds_config": ds_config, "norms": True, "scale": scale}


def job_of(folder: Path, name: str) -> Job:
    model = folder / name.replace(" ", "-") / "config.json"
    model.parent.mkdir()
    model.write_text(json.dumps(TINY | MODELS[name]))
    return tiny_job(folder, model=str(model), precision="fp32", global_batch=4, optimizer=SGD)


def key_of(settings: dict[str, Any]) -> str:
    """The same settings are one case."""
    return json.dumps(settings, sort_keys=True)


def sides(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of a pair's cases, the whole first."""
    pair = PAIRS[name]
    whole, split = ({"model": pair["model"], **pair[side]} for side in ("whole", "split"))
    return whole, split


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each case of the tests that were selected did, in one set of two ranks."""
    asked = [WHOLE, *({**NOT_SCATTERED, "scale": scale} for scale in (1, 2))]
    for item in request.session.items:
        if item.module is request.module and hasattr(item, "callspec"):
            asked += sides(name) if (name := item.callspec.params.get("name")) else ()
    asked.sort(key=lambda settings: "tp" in settings)  # AutoTP leaves groups behind: last
    found = {key_of(settings): settings for settings in asked}
    folder = tmp_path_factory.mktemp("split")
    jobs = {model: job_of(folder, model) for model in {each["model"] for each in asked}}
    made = [
        make_case(jobs[each["model"]], **{n: v for n, v in each.items() if n != "model"})
        for each in found.values()
    ]
    answers = train_cases("tests.trial.split_driver", made, folder, timeout_s=400)
    return {name: first for name, (first, *_) in zip(found, answers, strict=True)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * pair.get("is_further", False))
        for name, pair in PAIRS.items()
    ],
)
def test_two_ranks_train_as_the_whole_model_does(results, name) -> None:
    """A mixture of experts too, at every stage, whose ranks send their tokens elsewhere."""
    whole, split = (results[key_of(settings)] for settings in sides(name))
    for found in (whole, split):
        assert "error" not in found, found["error"]
        assert found["differences"] == []
    says = PAIRS[name].get("says", {})
    assert {key: split["read_back"][key] for key in says} == says
    for degree in ("sp", "ep"):
        assert whole["read_back"][degree] == 1
        assert split["read_back"][degree] == sides(name)[1].get(degree, 1)
    if split["read_back"]["ep"] > 1:
        assert whole["read_back"]["n_params"] > split["read_back"]["n_params"]
    assert min(whole["norms"]) > LEAST_NORM, "clipping has nothing to clip"
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert split["norms"] == pytest.approx(whole["norms"], rel=1e-4)


def test_every_mixture_whose_other_layers_are_split_is_tried() -> None:
    asked = {pair["model"] for pair in PAIRS.values() if {"tp", "ep"} <= pair["split"].keys()}
    assert asked == SPLIT_BESIDE_AUTOEP


@pytest.mark.parametrize("scale", [1, 2])
def test_no_scale_is_right_where_stage_3_does_not_scatter(results, scale) -> None:
    """Why sequence.not_scattered refuses it: small and large parameters are averaged otherwise."""
    whole, split = (results[key_of(s)] for s in (WHOLE, {**NOT_SCATTERED, "scale": scale}))
    assert split["differences"] == []
    assert split["losses"][0] == pytest.approx(whole["losses"][0], rel=1e-5)
    assert split["norms"] != pytest.approx(whole["norms"], rel=0.1)
