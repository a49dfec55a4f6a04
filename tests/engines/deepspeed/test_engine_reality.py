"""What is asked is what the live engine runs: every value of the shipped spaces, on real ranks.

The values are taken as the spaces list them, unfolded, and trained on a tiny model: what a value
means does not depend on the model, only whether it makes a difference does.
"""

import dataclasses
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from autotune import DEFAULT_ENGINE
from autotune.base.data import data_folder, shipped_spaces
from autotune.contract import Role, to_dict
from autotune.devices.hardware import cpu_precisions
from autotune.doctor.findings import has_libaio
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.rules import judge
from autotune.engines.releases import is_at_least
from autotune.job.job import Job
from autotune.job.model import load_model
from autotune.record import tried
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.space.space_file import Domain, Space, load_space
from tests.cases import data_beside
from tests.driven_ranks import train_cases
from tests.engines.deepspeed.rules.cases import NEWEST
from tests.jobs import CPU, TINY, tiny_job

DATA = data_beside(__file__)

pytestmark = pytest.mark.real

WORLD = 2
INSTALLED = version("deepspeed")
HERE = dataclasses.replace(CPU, deepspeed_version=INSTALLED)
NEEDS_BF16 = {("master_dtype", "model"), ("optimizer_states_dtype", "model")}
"""What fp32 does not have; stage 1 with fp32 sums is an optimizer of its own in bf16."""
SWAPS = has_libaio()
"""Whether the extension for NVMe compiles here; without it nothing is swapped."""
ONLY_SWAPPING = {"offload.pipeline", "offload.param_buffer_count", "offload.param_max_in_cpu"}
"""Knobs that act with NVMe alone."""
BEYOND_THE_SPACES = DATA["BEYOND_THE_SPACES"]
"""What no shipped space lists, or lists with what hides it on a CPU; at stage 3 by default."""
AT_LEAST = 20
AT_ONCE = (6, 4, 2, 1)
"""Values that a choice has to try: first those that try many."""
MOST_REFUSALS = 50
"""Choices with a value that an older release refuses before the value is taken to be lacking."""
REPOSITORY = Path(__file__).resolve().parents[3]


MIXTURE = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
"""What the tiny model differs in where its experts are spread."""


def big_context(*, has_experts: bool = False) -> Context:
    """Context of a model in which every listed value acts and none folds."""
    return Context(
        model=load_model("mixtral-8x7b" if has_experts else "llama-2-7b").shape,
        world=WORLD,
        global_batch=128,
        precision="bf16",
        accelerator="cuda",
        seq_len=8192,
    )


def runs_here(name: str, value: Any) -> bool:
    """Whether two CPU ranks can run a value; compiling has a test of its own, for its price.

    What a process starts with is not for the driver, whose ranks start once for all cases.
    """
    if KNOBS[name].group in ("process", "communication"):
        return value == KNOBS[name].default
    if name in ("tp", "pp", "sp", "ep"):
        return int(value) <= WORLD
    if value == "nvme" and not SWAPS:
        return False
    if name == "precision":
        return value in ("default", *cpu_precisions())
    return value not in KNOBS[name].needs_cuda and (name, value) != ("compile", "torch")


def acts_here(name: str) -> bool:
    """Whether two CPU ranks can run what a knob needs of others to act."""
    needed = KNOBS[name].when.items()
    return all(any(runs_here(other, value) for value in values) for other, values in needed)


def here(space: Space) -> Space:
    """A space with the values alone that two CPU ranks can run: a tenth of its combinations."""
    domains = {
        name: dataclasses.replace(
            domain, values=tuple(value for value in domain.values if runs_here(name, value))
        )
        for name, domain in space.domains.items()
    }
    return dataclasses.replace(space, domains=domains)


def combinations(space: Space, context: Context) -> Iterator[dict[str, Any]]:
    """Choices of values, one knob after the other; a knob that cannot act is left out."""
    knobs, known = list(space.domains.items()), context.knobs

    def is_tried(name: str, domain: Domain, chosen: dict[str, Any]) -> bool:
        wanted = (*known[name].when.items(), *domain.when)
        return all(chosen.get(o, known[o].default_for(chosen)) in allowed for o, allowed in wanted)

    def extended(chosen: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
        if index == len(knobs):
            yield chosen
            return
        name, domain = knobs[index]
        if not is_tried(name, domain, chosen):
            yield from extended(chosen, index + 1)
            return
        for value in domain.values:
            yield from extended({**chosen, name: value}, index + 1)

    yield from extended({}, 0)


def copies_to_disk(knobs: dict[str, Any]) -> bool:
    """Whether a second copy of the weights would stand on a disk.

    The rule refuses it; but a copy among all ranks folds to none, and here the listed value runs.
    """
    return knobs.get("offload.param") == "nvme" and knobs.get("zeropp.hpz_partition_size", 1) > 1


def listed(space: Space) -> set[tuple[str, Any]]:
    """Every (knob, value) of a space that two ranks can run."""
    return {
        (name, value)
        for name, domain in space.domains.items()
        for value in domain.values
        # Another precision than the job's is trained by tests/search/test_guard_real.py.
        if KNOBS[name].group not in ("process", "communication")
        and name != "precision"
        and runs_here(name, value)
        and (SWAPS or name not in ONLY_SWAPPING)
        and acts_here(name)
    }


def stratified(folder: Path) -> list[dict[str, Any]]:
    """Choices in which every listed value appears, filled up at random to `AT_LEAST`.

    What the installed release of DeepSpeed lacks is left out; the newest lacks nothing.
    """
    lacking: set[tuple[str, Any]] = set()
    refusals: Counter[tuple[str, Any]] = Counter()
    draw = random.Random(0)
    chosen: list[dict[str, Any]] = []
    spare: list[dict[str, Any]] = []
    for name in shipped_spaces(DEFAULT_ENGINE):
        space = load_space(name, KNOBS)
        context = big_context(has_experts="ep" in space.domains)
        missing = listed(space) - {pair for knobs in chosen for pair in knobs.items()}
        choices = [c for c in combinations(here(space), context) if not copies_to_disk(c)]
        draw.shuffle(choices)
        for least, combination in itertools.product(AT_ONCE, choices):
            # Where a value does not act, and where it is refused, it is not tried.
            is_wanted = len(missing & set(combination.items())) >= least
            if not is_wanted or not is_legal(combination, context):
                continue
            acting = acting_as_listed(combination, context)
            wanted = missing & set(acting.items())
            if len(wanted) >= least and any(refusals[p] < MOST_REFUSALS for p in wanted):
                if not has_release(acting, folder):
                    lacking |= set(acting.items())
                    refusals.update(wanted)
                    continue
                missing -= set(acting.items())
                chosen.append(acting)
        assert missing <= lacking, f"{name}: no choice of two ranks has {missing - lacking}"
        legal = (c for c in choices[:50] if is_legal(c, context))
        spare += [acting_as_listed(c, context) for c in legal]
    draw.shuffle(spare)
    runnable = (knobs for knobs in spare if has_release(knobs, folder))
    chosen += itertools.islice(runnable, max(0, AT_LEAST - len(chosen)))
    assert len(chosen) >= AT_LEAST
    return chosen


def acting_as_listed(combination: dict[str, Any], context: Context) -> dict[str, Any]:
    """The knobs that act, at the values as the space lists them, unfolded."""
    settled = canonical(combination, context)
    return {name: combination.get(name, value) for name, value in settled.items()}


def is_legal(combination: dict[str, Any], context: Context) -> bool:
    """16-bit master weights and pipelines have conditions that the spaces leave to the rules."""
    if context.model.n_experts and int(combination.get("tp", 1)) > 1:
        return int(combination.get("ep", 1)) > 1 and combination.get("offload.optimizer") != "cpu"
    if (pp := int(combination.get("pp", 1))) > 1:
        return pp * int(combination.get("tp", 1)) <= WORLD and combination["zero.stage"] == 1
    if combination.get("master_dtype", "fp32") == "fp32":
        return True
    masters_16_bit = combination.get("optimizer_states_dtype") == "model"
    return masters_16_bit or combination.get("offload.optimizer") == "cpu"


def has_release(knobs: dict[str, Any], folder: Path, index: int = 0) -> bool:
    """Whether the installed release has all that a choice asks for; the newest does."""
    if is_at_least(INSTALLED, NEWEST):
        return True
    job, candidate = make_candidate(folder, index, knobs)
    here, newest = (
        {violation.rule for violation in judge(DeepSpeedEngine(job, where).setup(candidate))}
        for where in (HERE, dataclasses.replace(HERE, deepspeed_version=NEWEST))
    )
    return not here - newest


def make_candidate(tmp_path: Path, index: int, knobs: dict[str, Any]) -> tuple[Job, Candidate]:
    """One or two accumulation steps, fp32 and bf16 in turn."""
    dp = WORLD // (int(knobs["tp"]) * int(knobs["pp"]) * int(knobs.get("sp", 1)))
    global_batch = int(knobs["micro_batch"]) * dp * (1 + index % 2)
    precision = ("fp32", "bf16")[index // 2 % 2]
    if NEEDS_BF16 & knobs.items() or knobs.get("grad_accum_dtype") == "fp32":
        precision = "bf16"
    job = tiny_job(
        tmp_path,
        global_batch=global_batch,
        precision=precision,
        seq_len=8,
        nvme_path=str(tmp_path / "nvme"),
        **({"model": mixture(tmp_path)} if int(knobs.get("ep", 1)) > 1 else {}),
    )
    return job, Candidate.of(knobs, world=WORLD, global_batch=global_batch)


def mixture(folder: Path) -> str:
    """The config of a tiny mixture of experts."""
    config = folder / "mixture" / "config.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps(TINY | MIXTURE))
    return str(config)


def make_case(tmp_path: Path, index: int, knobs: dict[str, Any]) -> dict[str, Any]:
    """One candidate for the driver."""
    job, candidate = make_candidate(tmp_path, index, knobs)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study="reality",
        number=index,
        job=job,
        engine=DeepSpeedEngine(job, HERE),
        environment=HERE,
    )
    ds_config = DeepSpeedEngine(job, HERE).setup(candidate).ds_config
    return {"spec": to_dict(spec), "ds_config": dict(ds_config)}


ASKED_INSTEAD = DATA["ASKED_INSTEAD"]
"""What the first of `wrong_cases` claims to be."""


def wrong_cases(tmp_path: Path) -> list[dict[str, Any]]:
    """Cases that run something else than they ask for, about which DeepSpeed says nothing."""
    plain = {"zero.stage": 1, "tp": 1, "pp": 1, "micro_batch": 1}
    everything = {
        **plain,
        "zero.stage": 3,
        "offload.optimizer": "cpu",
        "offload.param": "cpu",
        "reduce_bucket_size": 1000,
        "stage3.prefetch_bucket_size": 1000,
        "stage3.param_persistence_threshold": 10,
        "stage3.max_live_parameters": 1000,
    }
    wrong, ignored = make_case(tmp_path, 0, everything), make_case(tmp_path, 0, plain)
    wrong["spec"]["engine"]["expected"] |= ASKED_INSTEAD
    ignored["ds_config"]["zero_optimization"]["offload_param"] = {"device": "cpu"}
    ignored["spec"]["engine"]["expected"]["offload_param"] = "cpu"
    return [wrong, ignored]


def run(tmp_path: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train the cases one after the other in one set of ranks."""
    driver = "tests.reality_driver"
    answers = train_cases(driver, cases, tmp_path, world=WORLD, nvme=SWAPS, timeout_s=400)
    return [first for first, *_ in answers]


def stratified_cases(folder: Path) -> list[dict[str, Any]]:
    """Every stratified candidate, for the driver."""
    plain = {"zero.stage": 3, "tp": 1, "pp": 1, "micro_batch": 1}
    beyond = [plain | knobs for knobs in BEYOND_THE_SPACES]
    beyond = [knobs for knobs in beyond if all(runs_here(*pair) for pair in knobs.items())]
    choices = [knobs for knobs in beyond if has_release(knobs, folder)] + stratified(folder)
    choices.sort(key=lambda knobs: (int(knobs["pp"]), int(knobs["tp"])))
    return [
        # What a release lacks in bf16 alone is trained in fp32.
        make_case(folder, index if has_release(knobs, folder, index) else index ^ 2, knobs)
        for index, knobs in enumerate(choices)
    ]


def compiled_cases(folder: Path) -> list[dict[str, Any]]:
    """One candidate as it is, and compiled."""
    knobs = {"zero.stage": 1, "tp": 1, "pp": 1, "micro_batch": 1}
    return [make_case(folder, 0, knobs | {"compile": c}) for c in ("none", "torch")]


def acting(case: dict[str, Any]) -> dict[str, Any]:
    """The knobs of a case that did something on these ranks: what its run is evidence of."""
    knobs, precision = case["spec"]["identity"]["knobs"], case["spec"]["workload"]["precision"]
    context = big_context(has_experts="ep" in knobs)
    here = dataclasses.replace(context, accelerator="cpu", precision=precision)
    settled = canonical(knobs, here)
    return {name: value for name, value in knobs.items() if settled.get(name) == value}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list]:
    """(case, result) of every stratified candidate, and of those in `wrong_cases`."""
    folder = tmp_path_factory.mktemp("reality")
    cases, wrong = stratified_cases(folder), wrong_cases(folder)
    # One set of ranks for all; AutoTP and pipelines leave state behind, so they come last.
    together = list(zip(wrong + cases, run(folder, wrong + cases), strict=True))
    return together[len(wrong) :], together[: len(wrong)]


@pytest.fixture
def trained(results: tuple[list, list]) -> list[tuple[dict, dict]]:
    return results[0]


def test_every_listed_value_was_tried(trained, record_property):
    tried = {pair for case, _ in trained for pair in case["spec"]["identity"]["knobs"].items()}
    lacking = (
        set().union(*(listed(load_space(name, KNOBS)) for name in shipped_spaces(DEFAULT_ENGINE)))
        - tried
    )
    assert not lacking or not is_at_least(INSTALLED, NEWEST)
    assert len(trained) >= AT_LEAST
    record_property("trained", sum("losses" in result for _, result in trained))
    record_property("lacking", json.dumps(sorted(map(str, lacking))))


def test_the_engine_runs_what_was_asked(trained):
    wrong = [
        (case["spec"]["identity"]["knobs"], result.get("error") or result["differences"])
        for case, result in trained
        if result.get("error") or result["differences"]
    ]
    assert not wrong


def test_it_trains(trained):
    for case, result in trained:
        assert result["steps"] == 2, case["spec"]["identity"]["knobs"]
        assert len(result["losses"]) == 2 * case["spec"]["layout"]["grad_accum"]
        assert all(4 < loss < 8 for loss in result["losses"])  # ln 256 = 5.5, untrained


def test_candidates_that_differ_in_speed_alone_train_the_same(trained):
    """Stage, offload, buckets and recomputation change no loss: same seed, data and precision."""
    first_losses = defaultdict(set)
    for case, result in trained:
        spec = case["spec"]
        # zero.Init draws the weights in another order, and bf16 rounds by the order of sums.
        # ZenFlow starts from other weights, and so does the pipeline's transformer.
        alike = (
            spec["identity"]["knobs"].get("zenflow", "none") == "none"
            and spec["layout"]["pp"] == 1
        )
        if (
            spec["workload"]["precision"] == "fp32"
            and spec["identity"]["knobs"]["zero.stage"] < 3
            and alike
        ):
            kind = spec["workload"]["model"]["config"]["model_type"]
            key = (kind, spec["layout"]["tp"], spec["layout"]["micro_batch"])
            first_losses[key].add(round(result["losses"][0], 4))
    assert first_losses
    assert all(len(losses) == 1 for losses in first_losses.values()), first_losses


def test_a_difference_is_seen(results):
    (_, wrong), (_, silently) = results[1]
    assert "error" not in wrong
    seen = {sentence.partition(":")[0] for sentence in wrong["differences"]}
    assert seen == set(ASKED_INSTEAD)
    assert silently["differences"] == [
        "offload_param: asked cpu, the engine has no such thing at its stage"
    ]


def _recorded(name):
    return tried.RecordedRun(**json.loads((data_folder("recorded") / name).read_text()))


def test_the_committed_record_says_what_trains(trained):
    """Both ways, but for what the test below compiles: nothing is claimed, nothing forgotten."""
    if not is_at_least(INSTALLED, NEWEST):
        pytest.skip(f"the record is of DeepSpeed {NEWEST}")
    claimed = {
        (name, v)
        for record in ("knobs-cpu-2.json", "knobs-cpu-2-without-nvme.json")
        for name, values in _recorded(record).trained.items()
        for v in values
    }
    ran = {pair for case, _ in trained for pair in acting(case).items()}
    if not SWAPS:
        claimed = {p for p in claimed if p[1] != "nvme" and p[0] not in ONLY_SWAPPING}
        ran = {pair for pair in ran if pair[0] not in ONLY_SWAPPING}
    assert claimed - {("compile", "torch")} == ran, "make record"


@pytest.mark.thorough
def test_a_compiled_engine_says_so(tmp_path):
    whole, fast = run(tmp_path, compiled_cases(tmp_path))
    assert fast["read_back"]["compiled"]
    assert fast["differences"] == []
    assert fast["losses"] == pytest.approx(whole["losses"], abs=1e-4)
