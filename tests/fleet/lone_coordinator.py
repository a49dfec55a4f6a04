"""A coordinator that waits for one trial that hangs: `lone_coordinator.py RESULTS START`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from autotune.contract import Start
from autotune.fleet.transports.local import local_fleet
from autotune.record.study import Study
from tests.trials import CPU, ds_config, files, spec

if __name__ == "__main__":
    study, trial = (
        Study(Path(sys.argv[1]), "test"),
        spec(factory="hangs", start=Start(sys.argv[2])),
    )
    folder = study.write_spec(trial, files(ds_config()))
    local_fleet(CPU, world=2).submit(trial, folder).wait()
