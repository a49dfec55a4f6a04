"""slurm: a batch job that starts the ranks of each of its nodes."""

from autotune.export.launchers.shell import JobLauncher


class Slurm(JobLauncher):
    """`job.sbatch`: one task a node, which runs `launch.sh`."""

    templates = (("job.sbatch", "job.sbatch.j2"),)
    about = "slurm.md.j2"
