"""Every witness does what it says with the installed DeepSpeed, and its repaired form trains.

`tests/golden/witnesses.json` notes those that did (`tests/noted.py`). Of those that are not noted
as they are, every run asks one of each rule and consequence; of what raises, without its repaired
form: `test_rules.py` judges that form and the others.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest

from autotune.base.nested import merge
from autotune.doctor.findings import has_libaio
from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.witnesses import Case, Witness
from autotune.engines.releases import release_of
from tests.engines.deepspeed.rules.cases import NEWEST, setup_of, witnesses
from tests.engines.deepspeed.rules.witness_runs import DRIVER, key_of, run_cases, swaps
from tests.noted import Notes, texts

pytestmark = pytest.mark.real

INSTALLED = version("deepspeed")
SWAPS = has_libaio()

WITNESSES = [pytest.param(witness, id=name) for name, _, witness in witnesses()]
UNEVEN: dict[str, dict[str, Any]] = {
    "even": {},
    "one key-value head for two ranks": {"n_kv_heads": 1},
    "one head for two ranks": {"n_heads": 1, "n_kv_heads": 1},
    "three key-value heads": {"n_heads": 6, "n_kv_heads": 3, "hidden": 48},
    "odd MLP width": {"ffn_hidden": 63},
    "odd tied vocabulary": {"vocab": 63, "tied_embeddings": True},
}
IN_EVERY_RUN = ("one head for two ranks", "odd tied vocabulary")
"""What cannot be split, in the layers and in the head."""
# Plain SGD without clipping shows a wrong gradient that AdamW and clipping would hide.
_SGD = {
    "optimizer": {"type": "SGD", "params": {"lr": 0.5, "torch_adam": None}},
    "gradient_clipping": 0.0,
}
UNEVEN_CASES = {
    name: tuple(
        Case(ds_config=_SGD | {"tensor_parallel": {"autotp_size": tp}}, tp=tp, model=model)
        for tp in (1, 2)
    )
    for name, model in UNEVEN.items()
}


def cases_of(test: str, witness: Witness) -> Iterator[Case]:
    """What a test compares of a witness."""
    is_repaired_alone = test == test_what_raises_trains_once_it_is_repaired.__name__
    if not is_repaired_alone:
        yield from (witness.broken, *acting(witness))
    if is_repaired_alone or witness.consequence != "raised":
        yield witness.repaired


def acting(witness: Witness) -> list[Case]:
    """Both cases where a value that is ignored here does act; empty: there are none."""
    if witness.acts_with is None:
        return []
    return [
        replace(case, ds_config=merge(case.ds_config, witness.acts_with))
        for case in (witness.broken, witness.repaired)
    ]


def reason_to_skip(witness: Witness) -> str:
    if witness.broken.accelerator == "cuda":
        return "needs CUDA devices"
    if swaps(witness.broken) and not SWAPS:
        return "needs libaio's headers (Debian: libaio-dev)"
    wanted = witness.deepspeed or NEWEST
    if release_of(wanted) != release_of(INSTALLED):
        return f"is about DeepSpeed {wanted}; {INSTALLED} is installed"
    return ""


NOTES = Notes("witnesses.json", "deepspeed", "torch", "transformers")
OF_OUR_CODE = (
    *("pp", "recompute", "attention", "loss_chunk_tokens", "mlp_chunk_tokens"),
    *("offload_activations", "sp_by_script"),
)
"""Fields of a case by which code of ours trains it, and not DeepSpeed alone."""
OUR_CODE = ("scripts/train.py", "scripts/transformer.py", "readback.py", "transformer_shape.py")


def asked_by(witness: Witness) -> list[str]:
    """What its answer follows from: what asks it, both cases, and what is expected."""
    cases = (witness.broken, witness.repaired)
    ours = texts(*OUR_CODE) if any(runs_our_code(case) for case in cases) else []
    return [*texts(DRIVER), repr(witness), *map(key_of, cases), *ours]


def runs_our_code(case: Case) -> bool:
    is_other = any(getattr(case, name) != getattr(Case(), name) for name in OF_OUR_CODE)
    return is_other or "lora_rank" in case.model or "expert_parallel" in case.ds_config


def further() -> set[str]:
    """Names of witnesses that are noted, or whose rule and consequence another one is asked of."""
    found, shown = set(), set()
    for param in WITNESSES:
        (witness,), rule = param.values, str(param.id).rpartition("-")[0]
        if reason_to_skip(witness):
            continue
        if NOTES.has(param.id, *asked_by(witness)) or (rule, witness.consequence) in shown:
            found.add(param.id)
        else:
            shown.add((rule, witness.consequence))
    return found


FURTHER = further()
MARKED = [
    pytest.param(*param.values, id=param.id, marks=[pytest.mark.thorough] * (param.id in FURTHER))
    for param in WITNESSES
]


@pytest.fixture(scope="module")
def answers(request, tmp_path_factory):
    """What the installed DeepSpeed did with every case of the tests that were selected."""
    cases: list[Case] = []
    for item in request.session.items:
        values = getattr(item, "callspec", None)
        if item.module is not request.module or values is None:
            continue
        witness = values.params.get("witness")
        if witness is not None and not reason_to_skip(witness):
            cases += cases_of(item.originalname, witness)
        cases += UNEVEN_CASES.get(values.params.get("shape", ""), ())
    return run_cases(cases, tmp_path_factory.mktemp("witnesses"))


@pytest.fixture(scope="module")
def noted():
    """Where tests put the witnesses that did what they say, by their names."""
    yield NOTES
    NOTES.write({param.id for param in WITNESSES})


@pytest.mark.parametrize("witness", MARKED)
def test_the_engine_does_what_the_witness_says(witness, answers, noted, request):
    check_witness(witness, answers)
    noted.add(request.node.callspec.id, *asked_by(witness))


def check_witness(witness, answers):
    if reason := reason_to_skip(witness):
        pytest.skip(reason)
    broken = answers[key_of(witness.broken)]
    if witness.consequence == "raised":
        errors = [rank["error"] for rank in broken]
        assert any(error and re.search(witness.raises, error) for error in errors), told(broken)
        return
    repaired = assert_trained(answers[key_of(witness.repaired)])
    if witness.consequence == "differs":
        assert_trained(broken)
        assert {k: v for k, v in broken[0]["read_back"].items() if k in witness.reads} == dict(
            witness.reads
        )
        fixed = {k: v for k, v in repaired[0]["read_back"].items() if k in witness.reads}
        assert (fixed == dict(witness.reads)) == witness.takes_back
    else:
        assert key_of(witness.broken) != key_of(witness.repaired)
        assert what_ran(broken) == what_ran(repaired)
    if both := acting(witness):
        broken, repaired = (answers[key_of(case)] for case in both)
        assert what_ran(broken) != what_ran(repaired)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "witness", [param for param in WITNESSES if param.values[0].consequence == "raised"]
)
def test_what_raises_trains_once_it_is_repaired(witness, answers):
    if reason := reason_to_skip(witness):
        pytest.skip(reason)
    assert_trained(answers[key_of(witness.repaired)])


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=[pytest.mark.thorough] * (shape not in IN_EVERY_RUN))
        for shape in UNEVEN
    ],
)
def test_uneven_tensor_parallelism_trains_the_same(shape, answers):
    """Why no rule asks for divisible heads, widths or vocabularies."""
    if refused := judge(setup_of(UNEVEN_CASES[shape][1], version=INSTALLED)):
        assert release_of(INSTALLED) < release_of(NEWEST)
        pytest.skip(refused[0].message)
    whole, split = (assert_trained(answers[key_of(case)])[0] for case in UNEVEN_CASES[shape])
    assert split["read_back"]["tp"] == 2
    assert split["losses"] == pytest.approx(whole["losses"], abs=2e-5)


def what_ran(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All that is seen of a run: losses, read-back, the optimizer's values, collectives."""
    assert_trained(ranks)
    kinds = ("losses", "read_back", "scalars", "collectives")
    return [{kind: rank[kind] for kind in kinds} for rank in ranks]


def assert_trained(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [rank["error"] for rank in ranks] == [None] * len(ranks), told(ranks)
    return ranks


def told(ranks: list[dict[str, Any]]) -> str:
    """What every rank says: the first is often brought down by another one."""
    said = (f"rank {n}: {r['error']}\n{r.get('traceback', '')}" for n, r in enumerate(ranks))
    return "\n".join(said)
