"""A launch line in short: what may be a secret is left out."""

import shlex
from pathlib import Path

import pytest

from autotune.engines.launches.line import in_short


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("torchrun --nproc 2 t.py --note x", "torchrun --nproc 2 t.py --note ..."),
        ("python -m torch.distributed.run t.py --k=v", "python -m torch.distributed.run t.py --k"),
        ("torchrun -m my.trainer --key v", "torchrun -m my.trainer --key ..."),
        ("python train.py -m hunter2", "python train.py -m ..."),
        ("mytool -m hunter2", "mytool -m ..."),
        ("mytool login 1234 --pin 1234 ds.json", "mytool ... --pin ..."),
        ("python train.py one two --x 3", "python train.py ... --x 3"),
        ("python t.py --api-key 123 --hf_token=1", "python t.py --api-key ... --hf_token"),
        ("python t.py --port 123456789", "python t.py --port ..."),
        ("python t.py --pin 1234 -p 31337 12345678", "python t.py --pin ... -p ..."),
        ("python t.py --token ds.json --lr=3e-4", "python t.py --token ... --lr=3e-4"),
        ("torchrun t.py --c=ds.json --d lost.json", "torchrun t.py --c=ds.json --d ..."),
        ("torchrun t.py {a=4} --k {k=hunter2}", "torchrun t.py {a=4} --k ..."),
        ("torchrun t.py {recompute=none:--ckpt}", "torchrun t.py {recompute=none:--ckpt}"),
        ("accelerate launch --c ds.json t.py go", "accelerate launch --c ds.json t.py ..."),
        ("llamafactory-cli train ds.json", "llamafactory-cli train ds.json"),
    ],
)
def test_a_command_in_short_shows_no_values_but_numbers_and_files(
    tmp_path: Path, line: str, short: str
) -> None:
    (tmp_path / "ds.json").touch()
    assert in_short(shlex.split(line), tmp_path) == short
