"""What a file says to Slurm."""

import pytest

from autotune.engines.launches.slurm import options_of, variables_of


@pytest.mark.cases("gres", "gpus")
def test_the_gpus_of_a_node_are_those_among_its_resources(gres, gpus):
    options = options_of(f"#!/bin/bash\n#SBATCH -N 2 --gres={gres}\n")
    assert variables_of(options).get("SLURM_GPUS_ON_NODE") == gpus
    assert variables_of(options)["SLURM_NNODES"] == "2"
