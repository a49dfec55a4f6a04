"""ray: a job of a Ray cluster that holds whole nodes and starts the ranks of each."""

from autotune.base.templates import Templates, canonical_json
from autotune.export.base import Handout, Launch, NodeLauncher
from autotune.export.launchers.shell import job_values


class Ray(NodeLauncher):
    """`ray_job.py` and what it asks the cluster for."""

    def files(self, handout: Handout, ranks: Launch, templates: Templates) -> dict[str, str]:
        device = "CPU" if handout.environment.accelerator == "cpu" else "GPU"
        asked = {"nodes": handout.n_nodes, "bundle": {device: handout.per_node}}
        return {
            "ray_job.py": templates.text("launch/ray_job.py", {}),
            "ray_job.json": canonical_json(asked),
        }

    def usage(self, handout: Handout, ranks: Launch, templates: Templates) -> str:
        return templates.text("launch/ray.md.j2", job_values(handout))
