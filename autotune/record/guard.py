"""The convergence guard: does a candidate still train as the baseline does?

The final comparison runs the best candidates and the baseline with the same seed and the same
samples in the same order, so the losses of their first steps can be laid side by side. How the
verdict is reached, and why so, is told in docs/guard.md.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune import DEFAULT_ENGINE
from autotune.base.student_t import t_quantile
from autotune.base.templates import tell
from autotune.contract import Origin, Role, TrialSpec
from autotune.job.job import DEFAULT_WORKLOAD
from autotune.record.study import Trial, results
from autotune.trial.scripts.lengths import is_drawn

MIN_STEPS = 5
"""With fewer steps the updates have hardly come into the losses yet."""
MIN_RUNS = 2
"""Runs of the baseline without which nobody knows how much it differs from itself."""
CONFIDENCE = 0.995
"""Upper quantile of a two-sided 99% interval: of a hundred candidates that train as the baseline
does, one is refused for nothing."""
LEARNED_SHARE = 0.01
"""A difference below this share of what the baseline's loss moved is no drift, wherever it comes
from. With a learning rate 10% too high it was 5% within 20 steps (docs/guard.md)."""
POWER_SHARE = 0.5
"""Share of what the baseline's loss moved above which the tolerance says nothing: a training that
learns nothing at all would be off by all of it, and half of that in the middle."""
PADDED_VOCAB = "padded_vocab"
"""Name under which an engine expects the number of token ids, where it adds some."""
_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
"""Precision -> largest error of one rounding to nearest, as a share: half the distance of 1 to
the next number (Goldberg, What Every Computer Scientist Should Know About Floating-Point
Arithmetic, ACM Computing Surveys 23, 1991)."""
_SUMMED = 128 * _ROUNDOFF["fp32"]
"""What is summed up in fp32 in any precision: the error of n terms grows like the root of n
roundings (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
Comput. 41, 2019); 128 stands for sums of 16 thousand."""


_STEPS_AT_THE_START = ("FP16_Optimizer", "FP16_UnfusedOptimizer")
"""Wrappers of DeepSpeed (16 bits, stage 0) that make a step with gradients of zero when they are
built (0.19.8, runtime/fp16: `initialize_optimizer_states`); those of ZeRO do not. Adam's count of
steps is one ahead then: its first updates are smaller, by a quarter in the first step."""


class Convergence(StrEnum):
    """What the guard says of a candidate."""

    PASS = "pass"
    FAIL = "fail"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, kw_only=True)
class GuardVerdict:
    """The guard's verdict on one candidate, with the losses that it rests on."""

    verdict: Convergence
    why: str
    """What was seen, or why nothing can be said, in words."""
    tolerance: float | None = None
    """Difference of the losses that is allowed in every step; None: none could be found."""
    deviation: float | None = None
    """Largest difference of the losses."""
    step: int | None = None
    """Step of that difference, from 1."""
    losses: tuple[float, ...] = ()
    """Loss of each step, the mean over the candidate's runs."""
    baseline_losses: tuple[float, ...] = ()
    """The same of the baseline."""

    @property
    def is_drift(self) -> bool:
        """Whether the candidate is not handed out for it."""
        return self.verdict is Convergence.FAIL

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"


NOT_COMPARED = GuardVerdict(
    verdict=Convergence.NOT_COMPARABLE, why="it was not run again beside the baseline"
)


def guards_of(
    trials: Iterable[Trial], baseline_hash: str | None, n_steps: int
) -> dict[str, GuardVerdict]:
    """The verdict on each candidate of the final comparisons, by its hash.

    Losses do not wander with the machine, so that the runs of all comparisons count alike, and the
    baseline's own trial serves as one of its runs where it took as many steps.

    Args:
        trials: The record.
        baseline_hash: The baseline's candidate; None: there is none.
        n_steps: Steps to compare; 0: the guard is off, and there are no verdicts.
    """
    if not n_steps:
        return {}
    runs: dict[str, dict[int, Trial]] = {}
    own_trials: list[Trial] = []
    for trial in trials:
        identity = trial.spec.identity
        explores = identity.role in (Role.BASELINE, Role.SEARCH) and identity.fidelity is None
        if explores and identity.candidate_hash == baseline_hash and _ran(trial):
            own_trials = [trial]  # the last one: a repeat takes the first one's place
        if identity.role is Role.CONFIRM and identity.confirm_round is not None and _ran(trial):
            by_round = runs.setdefault(identity.candidate_hash, {})
            by_round[identity.confirm_round] = trial  # a repeat takes the first one's place
    baseline_runs = list(runs.get(baseline_hash or "", {}).values())
    # A run of round 0 trains in the same order, so that both would show no rounding.
    others = [t for t in baseline_runs if t.spec.identity.confirm_round]
    if own_trials and _n_losses(own_trials[0]) >= n_steps and others:
        baseline_runs = [*own_trials, *others]
    return {
        key: GuardVerdict(verdict=Convergence.PASS, why="it is the baseline itself")
        if key == baseline_hash
        else guard(list(by_round.values()), baseline_runs, n_steps)
        for key, by_round in runs.items()
    }


def guard(ours: Sequence[Trial], baseline: Sequence[Trial], n_steps: int) -> GuardVerdict:
    """Compare the runs of a candidate with those of the baseline; all have to be measured.

    A study may go on with another seed: only runs with that of the candidate's last one count.
    """
    seed = ours[-1].spec.workload.seed
    ours, baseline = (
        [t for t in runs if t.spec.workload.seed == seed] for runs in (ours, baseline)
    )
    if len(baseline) < MIN_RUNS:
        return _unknown("alone", n=len(baseline))
    if why := _why_not(ours[0].spec, baseline[0].spec):
        return _unknown(why[0], both=why[1:])
    # Runs that only measured took fewer steps than those that are to be compared.
    longest = max(map(_n_losses, ours)), sorted(map(_n_losses, baseline))[-MIN_RUNS]
    n_common = min(n_steps, *longest)
    losses_of = [
        [t.result.losses[:n_steps] for t in runs if t.result and _n_losses(t) >= n_common]
        for runs in (ours, baseline)
    ]
    if n_common < MIN_STEPS:
        return _unknown("short", n=n_common, least=MIN_STEPS)
    candidate, base = ([losses[:n_common] for losses in runs] for runs in losses_of)
    spec = ours[0].spec
    skipped = max(run.losses_skipped for run in results((*ours, *baseline)))
    if skipped and not _is_ours(spec):
        return _unknown("skipped", n=skipped)
    return compare_losses(
        candidate,
        base,
        roundoff=roundoff_of(spec),
        is_same_start=_is_ours(spec) and "config" in spec.workload.model,
        is_seeded=_is_ours(spec),
        lags=_steps_at_the_start(ours[0]) != _steps_at_the_start(baseline[0]),
    )


def _steps_at_the_start(trial: Trial) -> bool:
    """Whether its engine began with a step of gradients of zero."""
    read_back = {} if trial.result is None else trial.result.read_back
    return read_back.get("optimizer_wrapper") in _STEPS_AT_THE_START


def _n_losses(trial: Trial) -> int:
    return 0 if trial.result is None else len(trial.result.losses)


def compare_losses(
    ours: Sequence[Sequence[float]],
    baseline: Sequence[Sequence[float]],
    *,
    roundoff: float,
    is_same_start: bool,
    is_seeded: bool,
    lags: bool = False,
) -> GuardVerdict:
    """Compare the losses of a candidate's runs with those of the baseline's.

    The candidate passes if in every step its mean loss is within the tolerance of the baseline's.
    With n and m runs of the two that is the largest of

    - repeat: t(n - 1) s sqrt(1/n + 1/m), where s is the standard deviation of the baseline's runs
      in the step where they differ most, and t the quantile of Student's distribution at
      `CONFIDENCE`. For a difference that grows from step to step in the same way in every run
      this is the two-sample t test at 99%; where steps differ independently of one another, the
      largest s of many makes it stricter than that.
    - rounding: two roundings of the loss.
    - `LEARNED_SHARE` of the range of the baseline's mean losses.
    - lag: where the engines count their steps from another start, the most by which the baseline's
      mean loss fell in one step.

    Args:
        ours: Losses by run and step, as many steps in each.
        baseline: The baseline's, of `MIN_RUNS` at least.
        roundoff: Error of rounding a loss once, as a share.
        is_same_start: Whether both are known to begin with the same weights and samples.
        is_seeded: Whether the baseline is known to train the same samples in each of its runs.
        lags: Whether one of the two is behind the other by a part of an update.
    """
    if not all(math.isfinite(loss) for runs in (ours, baseline) for one in runs for loss in one):
        return GuardVerdict(verdict=Convergence.FAIL, why="a loss is not finite")
    mean, base = _by_step(ours, statistics.fmean), _by_step(baseline, statistics.fmean)
    rounding = 2 * roundoff * max(map(abs, base))
    first = [losses[0] for losses in baseline]
    if not is_seeded and max(first) - min(first) > rounding:
        return _unknown("unseeded", first=first)
    spread = max(_by_step(baseline, statistics.stdev))
    errors = spread * math.sqrt(1 / len(ours) + 1 / len(baseline))
    learned = max(base) - min(base)
    sources = {
        "repeat": t_quantile(CONFIDENCE, len(baseline) - 1) * errors,
        "rounding": rounding,
        "learned": LEARNED_SHARE * learned,
    }
    if lags:
        sources["lag"] = max(before - after for before, after in itertools.pairwise(base))
    source = max(sources, key=lambda name: sources[name])
    tolerance = sources[source]
    apart = [abs(one - other) for one, other in zip(mean, base, strict=True)]
    step = max(range(len(apart)), key=lambda n: apart[n])
    is_other_start = apart[0] > tolerance and not is_same_start
    is_blind = apart[step] <= tolerance and tolerance > POWER_SHARE * learned
    verdict = Convergence.PASS if apart[step] <= tolerance else Convergence.FAIL
    values = {"mean": mean, "base": base, "apart": apart, "step": step, "tolerance": tolerance}
    values |= {"source": source, "share": LEARNED_SHARE, "learned": learned}
    values |= {"is_other_start": is_other_start, "is_blind": is_blind}
    return GuardVerdict(
        verdict=Convergence.NOT_COMPARABLE if is_other_start or is_blind else verdict,
        why=_in_words(**values),
        tolerance=tolerance,
        deviation=apart[step],
        step=step + 1,
        losses=tuple(mean),
        baseline_losses=tuple(base),
    )


def roundoff_of(spec: TrialSpec) -> float:
    """Error of rounding a trial's loss once, as a share.

    A script may compute its loss in the training precision. The built-in one sums up those of all
    tokens in fp32, where the roundings of N tokens' logits average out to 1 / sqrt(N) of one.
    """
    roundoff = _ROUNDOFF.get(spec.workload.precision, _ROUNDOFF["bf16"])
    n_tokens = spec.workload.seq_len * spec.layout.global_batch if _is_ours(spec) else 1
    return roundoff / math.sqrt(n_tokens) + _SUMMED


def _why_not(ours: TrialSpec, baseline: TrialSpec) -> tuple[Any, ...]:
    """Why the losses of two trials cannot be compared to the last digits, as of `guard.j2`."""
    padded = [spec.engine.expected.get(PADDED_VOCAB) for spec in (ours, baseline)]
    if None not in padded and padded[0] != padded[1]:
        return ("padded", *padded)
    if not _is_ours(ours):
        return ()
    # Megatron's trials draw weights by their names, whatever the layout.
    if ours.engine.name == DEFAULT_ENGINE and (ours.layout.pp > 1) != (baseline.layout.pp > 1):
        return ("pipeline",)
    sizes = [spec.layout.micro_batch for spec in (ours, baseline)]
    return ("drawn", *sizes) if is_drawn(ours.workload.lengths) and sizes[0] != sizes[1] else ()


def _ran(trial: Trial) -> bool:
    """Whether a trial trained here; what answers instead of running has no losses."""
    return trial.measured is not None and trial.measured.origin is Origin.MEASURED


def _is_ours(spec: TrialSpec) -> bool:
    """Whether the trial ran the built-in script, which seeds all that it draws."""
    return spec.workload.name == DEFAULT_WORKLOAD and not spec.workload.script


def _by_step(
    runs: Sequence[Sequence[float]], of: Callable[[Sequence[float]], float]
) -> list[float]:
    return [of(step) for step in zip(*runs, strict=True)]


def _in_words(**values: Any) -> str:
    """What `guard.j2` says of a comparison, or of the `case` in which there is none."""
    return dict(tell("guard", {"case": "", **values}))["why"]


def _unknown(case: str, **values: Any) -> GuardVerdict:
    return GuardVerdict(verdict=Convergence.NOT_COMPARABLE, why=_in_words(case=case, **values))
