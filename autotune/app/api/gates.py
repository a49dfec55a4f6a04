"""`autotune.gate`: a stored best, measured again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.app.api.calls import each_of
from autotune.app.gate import run_gate
from autotune.app.session import obtained_fleet
from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.text import Ask, Say
from autotune.fleet.options import options_of
from autotune.record.gate import Gate, GateVerdict
from autotune.report.shown import Shown
from autotune.report.terminal.tables import print_told
from autotune.search.gate import FIRST_LOOK, MOST_ROUNDS


@dataclass(frozen=True, kw_only=True, repr=False)
class Gated(Shown[Gate]):
    """A stored best as it runs now, beside what it was: `value.verdict`, `value.ratio`."""

    @property
    def passes(self) -> bool:
        """Whether it is as fast as it was, within the share, and takes no more memory."""
        return self.value.verdict is GateVerdict.WITHIN


def gate(
    against: str | Path,
    *,
    within: str | float = "5%",
    rounds: int = 6,
    results: str | Path = "results",
    fleet: str = "local",
    fleet_option: str | Sequence[str] = (),
    trust_job: bool = False,
    note: Say | None = None,
    ask: Ask | None = None,
    agree: Say | None = None,
) -> Gated | None:
    """Measure a stored best again, as `autotune compare --against` does; None: Ctrl-C ended it.

    The same call goes on with one that was interrupted some hours ago at most.

    Args:
        against: A file that `autotune search --json` wrote, or a study by name or by folder.
        within: Share that it may be slower, or take more memory: `5%` or 0.05.
        rounds: Runs at the most, where three do not decide.
        results: Folder of all studies.
        fleet: Who runs it, such as `local` or `hostfile:FILE`.
        fleet_option: Options of other machines, `KEY=VALUE` each.
        trust_job: Whether a file from outside this folder may run and read what it names.
        note: Called with everything worth saying.
        ask: Asked whether such a file may; None: it is refused.
        agree: Told what a cluster is asked for, before it is; None: `note` is told.

    Raises:
        JobError: A flag or the reference is not valid, or its job is not trusted.
        StudyError: It is of other devices, or nothing of it was measured, or the runs cannot be
            recorded.
        FleetError: The devices are not there.
        RenderError: Its configuration does not render any more.

    Example:
        autotune.gate("best.json", within="5%").passes
    """
    if not FIRST_LOOK <= rounds <= MOST_ROUNDS:
        allowed = f"a number from {FIRST_LOOK} to {MOST_ROUNDS}"
        raise JobError(f"{flag('rounds')} {rounds}: is not allowed", allowed)
    say, options = note or (lambda _: None), options_of(each_of(fleet_option))
    with obtained_fleet(fleet, options, say=say, agree=agree or say) as held:
        found = run_gate(
            str(against),
            within=str(within),
            rounds=rounds,
            results=Path(results),
            fleet=held,
            options=options,
            note=say,
            trust_job=trust_job,
            ask=ask,
        )
    if found is None:
        return None
    return Gated.of(found, lambda to, one: print_told(to, "gate", {"gate": one}), asdict)
