"""What goes into a trial and what comes out of it: TrialSpec, RankReport, TrialResult, Outcome.

The ranks of a trial import this and `autotune.trial` and nothing else of ours, so it uses the
standard library alone.
"""

from autotune.contract.files import *  # noqa: F403
from autotune.contract.plausible import *  # noqa: F403
from autotune.contract.result import *  # noqa: F403
from autotune.contract.spec import *  # noqa: F403
from autotune.contract.words import *  # noqa: F403
