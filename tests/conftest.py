"""What holds for every test."""

import pytest
from hypothesis import HealthCheck, settings

from autotune.extensions import build

# How long an example takes says more of the machine than of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def built_extensions(request: pytest.FixtureRequest) -> None:
    """Real ranks find DeepSpeed's extensions built, and no lock that something killed has left.

    A search sees to it itself; a test that starts ranks without one would compile in their middle.
    """
    if request.node.get_closest_marker("real") is not None:
        build("cpu", print)
