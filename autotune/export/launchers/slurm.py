"""slurm: a batch job that starts the ranks of each of its nodes."""

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launch, NodeLauncher
from autotune.export.launchers.shell import job_values


class Slurm(NodeLauncher):
    """`job.sbatch`: one task a node, which runs `launch.sh`."""

    def files(self, handout: Handout, ranks: Launch, templates: Templates) -> dict[str, str]:
        return {"job.sbatch": templates.text("launch/job.sbatch.j2", job_values(handout))}

    def usage(self, handout: Handout, ranks: Launch, templates: Templates) -> str:
        return templates.text("launch/slurm.md.j2", job_values(handout))
