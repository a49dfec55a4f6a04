"""What the tests of several transports share."""

import pytest

from autotune.record.study import Study
from tests.searches import Demo


@pytest.fixture(scope="session")
def answer_here(tmp_path_factory) -> Study:
    """The study of `Demo` on this machine, with which those of other fleets are compared."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_KNOWLEDGE", str(folder / "knowledge.json"))
        demo = Demo(folder)
        code, _, stderr = demo.run()
    assert code == 0, stderr
    return demo.study
