"""ray: a job of a Ray cluster that holds whole nodes and starts the ranks of each."""

from autotune.base.templates import Templates, canonical_json
from autotune.export.base import Handout, Launch
from autotune.export.launchers.shell import JobLauncher


class Ray(JobLauncher):
    """`ray_job.py` and what it asks the cluster for."""

    templates = (("ray_job.py", "ray_job.py"),)
    about = "ray.md.j2"

    def files(self, handout: Handout, ranks: Launch, templates: Templates) -> dict[str, str]:
        device = "CPU" if handout.environment.accelerator == "cpu" else "GPU"
        asked = {"nodes": handout.n_nodes, "bundle": {device: handout.per_node}}
        made = super().files(handout, ranks, templates)
        return {**made, "ray_job.json": canonical_json(asked)}
