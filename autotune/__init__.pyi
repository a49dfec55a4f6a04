from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.app.api.checks import check as check
    from autotune.app.api.gates import gate as gate
    from autotune.app.api.predictions import estimate as estimate
    from autotune.app.api.predictions import estimate_rows as estimate_rows
    from autotune.app.api.predictions import explain as explain
    from autotune.app.api.predictions import plan as plan
    from autotune.app.api.records import compare as compare
    from autotune.app.api.records import load as load
    from autotune.app.api.searches import search as search
    from autotune.base.errors import AutotuneError as AutotuneError
    from autotune.base.errors import FleetError as FleetError
    from autotune.base.errors import JobError as JobError
    from autotune.base.errors import NothingFeasibleError as NothingFeasibleError
    from autotune.base.errors import RenderError as RenderError
    from autotune.base.errors import StudyError as StudyError

__version__: str
DEFAULT_ENGINE: str
