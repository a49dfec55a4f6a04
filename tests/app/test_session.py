"""The job where nobody names one."""

import pytest

from autotune.app.session import DEMO, _defaults
from autotune.hardware import Environment
from autotune.job import make_job


@pytest.mark.parametrize("accelerator", sorted(DEMO))
@pytest.mark.parametrize("world", [1, 2, 3, 6, 8])
def test_the_small_job_fits_every_world_and_ends_in_minutes(accelerator: str, world: int) -> None:
    environment = Environment(
        accelerator=accelerator,
        n_devices=world,
        device_name="any",
        device_memory_bytes=2**34,
        peak_flops=None,
        deepspeed_version="0",
        torch_version="0",
    )
    job = make_job(_defaults({"world": world}, environment), where="test")
    assert job.world == world
    assert job.global_batch % world == 0
    assert job.budget.time_s == 360
