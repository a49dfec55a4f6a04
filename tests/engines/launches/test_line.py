"""A launch line in short: what may be a secret is left out."""

import shlex

import pytest

from autotune.engines.launches.line import in_short


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("torchrun --nproc 2 train.py --note x", "torchrun --nproc ... train.py --note ..."),
        ("python -m torch.distributed.run t.py --k=v", "python -m torch.distributed.run t.py --k"),
        ("torchrun -m my.trainer --key v", "torchrun -m my.trainer --key ..."),
        ("python train.py -m hunter2", "python train.py -m ..."),
        ("mytool -m hunter2", "mytool -m ..."),
        ("python train.py one two --x 3", "python train.py ... --x ..."),
    ],
)
def test_a_command_in_short_shows_no_values(line: str, short: str) -> None:
    assert in_short(shlex.split(line)) == short
