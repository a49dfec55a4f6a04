"""The closed list of knobs, and the canonical form in which two candidates never mean one run.

A knob that changes nothing in some situation is not a knob there (`acts`), and values that mean
the same run fold into one (`fold`). Adding a knob is one entry here and one line in the engine's
template. The evidence beside the entries is DeepSpeed 0.19.8, as `file: function`.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from autotune.contract import KnobValue
from autotune.errors import JobError
from autotune.knob import Context, Knob, Knobs

__all__ = ["KNOBS", "Context", "Knob", "canonical", "explain", "knob_named", "parse_settings"]


def knob_named(name: str, *, where: str) -> Knob:
    """Find a knob.

    Raises:
        JobError: There is none of that name; the hint names the nearest.
    """
    knob = KNOBS.get(name)
    if knob is None:
        near = get_close_matches(name, KNOBS, n=3, cutoff=0.4)
        near += [known for known in KNOBS if known.endswith(f".{name}") and known not in near]
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise JobError(
            f"{where}: {name!r} is not a knob", f"{guess}known knobs: {', '.join(KNOBS)}"
        )
    return knob


def parse_settings(settings: Iterable[str]) -> dict[str, KnobValue]:
    """Read `--set name=value` flags.

    Raises:
        JobError: One is not `name=value`, names no knob or no legal value, or is there twice.
    """
    values: dict[str, KnobValue] = {}
    for setting in settings:
        where = f"--set {setting}"
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not (name and equals and text):
            raise JobError(f"{where}: not name=value", "write it as --set zero.stage=2")
        value = knob_named(name, where=where).check(text, where=where)
        if name in values:
            raise JobError(f"{where}: {name} was already set to {values[name]}", "set it once")
        values[name] = value
    return values


def canonical(values: Knobs, context: Context) -> dict[str, KnobValue]:
    """One value for every knob that acts; equal for any two mappings that mean the same run.

    Knobs that are not named get the base configuration's value or the engine's default, those
    that change nothing here are left out, and values that mean the same run become one.

    Args:
        values: Legal values by knob name (see `Knob.check`).
        context: The job's shapes.

    Raises:
        JobError: A name is not a knob.
    """
    for name in values.keys() - KNOBS.keys():
        knob_named(name, where="candidate")
    settled: dict[str, KnobValue] = {}
    for name, knob in KNOBS.items():
        if name in values:
            settled[name] = values[name]
        elif name in context.base:
            settled[name] = context.base[name]
        else:
            settled[name] = knob.default_for(settled)
    for name, knob in KNOBS.items():
        if knob.is_active(settled, context):
            settled[name] = knob.fold(settled[name], settled, context)
        else:
            del settled[name]
    return settled


def explain(values: Knobs, context: Context) -> dict[str, str]:
    """Why a user's setting does not reach the run as it was written; empty where all do.

    Returns:
        Knob name -> one sentence.
    """
    settled = canonical(values, context)
    reasons = {}
    for name, value in values.items():
        if name not in settled:
            reasons[name] = f"{name}={value} changes nothing here: it acts {KNOBS[name].scope}"
        elif settled[name] != value:
            reasons[name] = f"{name}={value} means the same run as {settled[name]}, which is used"
    return reasons


def _degree(values: Knobs, name: str) -> int:
    return int(values.get(name, 1))


def _data_parallel(values: Knobs, context: Context) -> int:
    return max(1, context.world // (_degree(values, "tp") * _degree(values, "pp")))


def _elements_per_rank(values: Knobs, context: Context) -> int:
    """Parameter elements that one tensor-parallel rank trains; exact for tp=1, else not below it.

    AutoTP splits the linear layers inside the blocks (auto_tp.py: _replace). Embeddings, the
    head, norms and biases may stay whole, as do uneven heads and fused experts: counted whole.
    """
    model, tp = context.model, _degree(values, "tp")
    uneven = model.n_heads % tp or model.n_kv_heads % tp or model.ffn_hidden % tp
    if tp == 1 or uneven or model.n_experts:
        return model.n_params
    tables = (1 if model.tied_embeddings else 2) * model.vocab + (model.max_seq_len or 0)
    vectors = model.n_layers * (16 * model.hidden + 4 * model.ffn_hidden)
    whole = min(model.n_params, tables * model.hidden + vectors)
    return whole + -(-(model.n_params - whole) // tp)


def _fold_elements(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), _elements_per_rank(values, context))


def _gathered_elements(values: Knobs, context: Context) -> int:
    """Parameter elements that stage 3 gathers on a rank: frozen ones like all others."""
    return _elements_per_rank(values, context) + context.model.n_params_frozen


def _fold_gathered(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    return min(int(value), _gathered_elements(values, context))


def _fold_prefetch(value: KnobValue, values: Knobs, context: Context) -> KnobValue:
    # The amount is min(max_live - live, prefetch), so more than max_live is max_live.
    # partitioned_param_coordinator.py: fetch_sub_module
    live = values.get("stage3.max_live_parameters", value)
    return min(int(value), int(live), _gathered_elements(values, context))


def _fold_persistence(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    return min(int(value), context.model.largest_param)


def _fold_recompute(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    # Layers 0, K, 2K, ...: from K = n_layers on it is the first layer alone.
    if not str(value).startswith("every_"):
        return value
    every = min(int(str(value).removeprefix("every_")), context.model.n_layers)
    return "full" if every == 1 else f"every_{every}"


def _fold_communication(value: KnobValue, _: Knobs, context: Context) -> KnobValue:
    # engine.py: communication_data_type answers the training precision where none is set.
    return "model" if value == context.precision else value


def _fetches_parameters(values: Knobs, context: Context) -> bool:
    # A group of one rank gathers nothing (partition_parameters.py: _no_gather_coalesced); what is
    # left is the copy from the host, which is none where the device is the host.
    copies = values.get("offload.param", "none") != "none" and context.accelerator != "cpu"
    return _data_parallel(values, context) > 1 or copies


def _releases_parameters(values: Knobs, context: Context) -> bool:
    # Persistent parameters are never released (partitioned_param_coordinator.py:
    # __params_to_release): with all of them persistent there is nothing to fetch ahead.
    if not _fetches_parameters(values, context):
        return False
    return int(values["stage3.param_persistence_threshold"]) < context.model.largest_param


def _caps_prefetch(values: Knobs, context: Context) -> bool:
    # Its only reader is the prefetcher (fetch_sub_module); releasing goes by reuse distance.
    prefetch = int(values["stage3.prefetch_bucket_size"])
    return _releases_parameters(values, context) and prefetch > 0


def _overlaps(values: Knobs, context: Context) -> bool:
    # Stage 3 only picks a stream with it (stage3.py: __init__), and a CPU has no streams
    # (cpu_accelerator.py: Stream). Stages 1 and 2 also double the bucket and, at stage 1, reduce
    # inside backward (stage_1_and_2.py: setup_buckets, process_gradients).
    return values["zero.stage"] != 3 or context.accelerator != "cpu"


def _communicates(values: Knobs, context: Context) -> bool:
    # With one rank the reduction is a copy; another data type would only add two casts.
    return _data_parallel(values, context) > 1


def _never(_: Knobs, __: Context) -> bool:
    return False


_ENTRIES = (
    Knob(
        name="zero.stage",
        kind="int",
        default=0,
        choices=(0, 1, 2, 3),
        help="ZeRO stage: what is sharded over the data-parallel ranks (0 nothing, 1 optimizer "
        "states, 2 and gradients, 3 and parameters)",
    ),
    Knob(
        name="tp",
        kind="int",
        default=1,
        minimum=1,
        help="tensor parallel degree (DeepSpeed AutoTP)",
    ),
    Knob(
        name="micro_batch",
        kind="int",
        default=1,
        minimum=1,
        help="samples per rank and forward pass; gradient accumulation follows from the global "
        "batch",
    ),
    Knob(
        name="recompute",
        kind="choice",
        default="none",
        choices=("none", "full"),
        pattern=r"every_([2-9]|[1-9]\d{1,3})",
        fold=_fold_recompute,
        help="activation recomputation: none, full, or every_K (layers 0, K, 2K, ...)",
    ),
    Knob(
        # At stage 0 it would swap the optimizer's kernel and offload nothing
        # (engine.py: _configure_basic_optimizer).
        name="offload.optimizer",
        kind="choice",
        default="none",
        choices=("none", "cpu"),
        scope="at stages 1 to 3",
        stages=(1, 2, 3),
        help="where optimizer states live and are updated",
    ),
    Knob(
        # Nothing but the stage 3 branch hands it on (engine.py: _configure_zero_optimizer).
        name="offload.param",
        kind="choice",
        default="none",
        choices=("none", "cpu"),
        scope="at stage 3",
        stages=(3,),
        help="where sharded parameters live between uses",
    ),
    Knob(
        # Stage 0 reduces by a constant of its own (engine.py: MEMORY_OPT_ALLREDUCE_SIZE). Above
        # all gradients of a rank nothing changes but an allocation that is never filled
        # (stage_1_and_2.py: setup_buckets; stage3.py: _setup_for_real_optimizer).
        name="reduce_bucket_size",
        kind="int",
        default=500_000_000,
        minimum=1,
        scope="at stages 1 to 3",
        stages=(1, 2, 3),
        fold=_fold_elements,
        help="gradient elements reduced at once",
    ),
    Knob(
        # Read only where torch lacks all_gather_into_tensor (utils.py: all_gather_dp_groups);
        # every torch that this package supports has it. Stage 3 is not even given it.
        name="allgather_bucket_size",
        kind="int",
        default=500_000_000,
        minimum=2,
        scope="nowhere with torch 1.13 or newer",
        stages=(1, 2),
        acts=_never,
        fold=_fold_elements,
        help="parameter elements gathered at once after the optimizer step",
    ),
    Knob(
        # config.py: overlap_comm_valid
        name="overlap_comm",
        kind="bool",
        default=False,
        default_at_stage={3: True},
        scope="at stages 1 and 2, and on a GPU at stage 3",
        stages=(1, 2, 3),
        acts=_overlaps,
        help="reduce gradients while backward still runs; doubles the bucket at stages 1 and 2",
    ),
    Knob(
        # parameter_offload.py: mark_persistent_parameters
        name="stage3.param_persistence_threshold",
        kind="int",
        default=100_000,
        scope="at stage 3 where parameters are fetched (dp above 1, or offloaded to the host)",
        stages=(3,),
        acts=_fetches_parameters,
        fold=_fold_persistence,
        help="parameters of at most this many elements stay gathered",
    ),
    Knob(
        name="stage3.max_live_parameters",
        kind="int",
        default=1_000_000_000,
        minimum=1,
        scope="at stage 3 where parameters are fetched ahead",
        stages=(3,),
        acts=_caps_prefetch,
        fold=_fold_gathered,
        help="fetch ahead only while fewer parameter elements than this are gathered",
    ),
    Knob(
        name="stage3.prefetch_bucket_size",
        kind="int",
        default=50_000_000,
        scope="at stage 3 where parameters are fetched and some are not persistent",
        stages=(3,),
        acts=_releases_parameters,
        fold=_fold_prefetch,
        help="parameter elements fetched ahead of use; 0 fetches none ahead",
    ),
    Knob(
        # Stage 0: engine.py: allreduce_bucket; 1 and 2: stage_1_and_2.py: allreduce_bucket;
        # 3: stage3.py: __avg_scatter_grads.
        name="communication_dtype",
        kind="choice",
        default="model",
        choices=("model", "fp32", "fp16", "bf16"),
        scope="where gradients are reduced over more than one rank",
        acts=_communicates,
        fold=_fold_communication,
        help="data type of gradient reduction; model: the training precision",
    ),
)

KNOBS: Mapping[str, Knob] = {knob.name: knob for knob in _ENTRIES}
"""By name, in an order in which a knob comes after those that its fold looks at."""
