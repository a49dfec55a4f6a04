"""DeepSpeed's advice for what bounds a trial, among that of every engine; see docs/explain.md."""

from autotune.engines.advice import (
    COMMON,
    FEWER_RANKS,
    LARGER_MESSAGES,
    AdviceCase,
    AdviceRules,
    doubled,
)
from autotune.record.bottleneck import Bound


def _stage(case: AdviceCase) -> int:
    return case.number("zero.stage")


ADVICE: AdviceRules = {
    **COMMON,
    Bound.COMMUNICATION: (
        *FEWER_RANKS,
        (
            "micro_batch",
            lambda c: _stage(c) >= 2 and c.accumulates,
            doubled,
            "ZeRO 2 reduces gradients, and ZeRO 3 gathers parameters too, in every micro-batch: "
            "half as many, half as often",
        ),
        LARGER_MESSAGES,
        (
            "reduce_bucket_size",
            lambda c: c.small,
            lambda c: 4 * c.number("reduce_bucket_size"),
            "most of it goes into messages below 1 MiB, which cost their latency: reduce more "
            "gradients at once",
        ),
        (
            "stage3.param_persistence_threshold",
            lambda c: c.small,
            lambda c: max(100_000, 10 * c.number("stage3.param_persistence_threshold")),
            "most of it goes into messages below 1 MiB: keep small parameters gathered, for "
            "their memory",
        ),
        (
            "stage3.prefetch_bucket_size",
            lambda c: c.small,
            lambda c: max(1_000_000, 4 * c.number("stage3.prefetch_bucket_size")),
            "most of it goes into messages below 1 MiB: fetch more parameters at once, ahead",
        ),
        (
            "overlap_comm",
            lambda c: c.is_on_gpu,
            True,
            "reduce gradients while backward still runs",
        ),
        (
            "zero.stage",
            lambda c: _stage(c) == 3,
            2,
            "stage 3 gathers every parameter in forward and in backward; stage 2 once a step, "
            "for the memory of the parameters",
        ),
        (
            "zero.stage",
            lambda c: _stage(c) == 2 and c.accumulates,
            1,
            "stage 1 reduces gradients once a step, stage 2 in every micro-batch; it keeps whole "
            "gradients",
        ),
    ),
    Bound.MEMORY: (
        (
            "zero.stage",
            lambda c: _stage(c) == 0 and c.optimizer_leads and c.layout.dp > 1,
            1,
            "without ZeRO every rank updates every parameter; at stage 1 each updates its part",
        ),
        (
            "optimizer.implementation",
            lambda c: c.optimizer_leads and c.get("optimizer.implementation") == "torch",
            "torch_fused",
            "the update is the larger part of it: one kernel that passes over the states once",
        ),
        *COMMON[Bound.MEMORY],
    ),
    Bound.HOST: (
        (
            "offload.optimizer",
            lambda c: c.is_on_gpu and c.get("offload.optimizer") in ("cpu", "nvme"),
            "none",
            "the host updates the parameters: on the device that is memory bandwidth of the "
            "device's, if its states fit there",
        ),
        (
            "offload.ratio",
            lambda c: float(c.values.get("offload.ratio", 0)) > 0,
            lambda c: float(c.values["offload.ratio"]) / 2,
            "the host updates all of the offloaded parameters: leave a part on the device",
        ),
        *COMMON[Bound.HOST],
    ),
}
