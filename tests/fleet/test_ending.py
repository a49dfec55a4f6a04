"""How a trial ends on this machine, without a rank: its processes are made up."""

from pathlib import Path

import pytest

from autotune.base.errors import FleetError
from autotune.contract import RANKS_DIR, Outcome
from autotune.fleet import local
from autotune.fleet.local import LocalFleet
from tests.trials import CPU, spec


class Ended:
    """A torchrun that has ended."""

    def poll(self) -> int:
        return 1

    def wait(self) -> int:
        return 1


def test_a_driver_that_stops_answering_keeps_no_gang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(gang: object, before: object) -> int:
        raise FleetError("the NVIDIA driver does not answer for a GPU: lost", "see nvidia-smi")

    monkeypatch.setattr(local, "wait_until_drained", lost)
    monkeypatch.setattr(local.LocalTrial, "_start", lambda *_: Ended())
    (tmp_path / RANKS_DIR).mkdir()
    fleet = LocalFleet(CPU, world=2)
    trial = fleet.submit(spec(), tmp_path)
    result = trial.poll()
    assert result is not None
    assert result.outcome is Outcome.LAUNCH
    assert "does not answer for a GPU: lost" in result.evidence
    assert trial.poll() is result
    fleet.submit(spec(), tmp_path).cancel()
    fleet.close()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('{"0": 1, "1": -9}', {0: 1, 1: -9}),
        ('{"0": [1], "1": -9, "2": Infinity}', {1: -9}),
        ('{"x": 1}', {}),
        ('{"0": ', {}),
        ("[]", {}),
    ],
)
def test_exit_codes_that_are_none_are_left_out(tmp_path, text, codes):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "exit.json").write_text(text)
    assert local._exit_codes(tmp_path) == codes
