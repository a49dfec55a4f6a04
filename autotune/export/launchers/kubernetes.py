"""kubernetes: a PyTorchJob of the Kubeflow training operator."""

from typing import Any

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launch, NodeLauncher
from autotune.export.launchers.shell import job_values


class Kubernetes(NodeLauncher):
    """`pytorchjob.yaml`, and what puts the export into the cluster and submits it."""

    def files(self, handout: Handout, ranks: Launch, templates: Templates) -> dict[str, str]:
        values = _values(handout)
        return {
            "pytorchjob.yaml": templates.text("launch/pytorchjob.yaml.j2", values),
            "submit.sh": templates.text("launch/submit.sh.j2", values),
        }

    def usage(self, handout: Handout, ranks: Launch, templates: Templates) -> str:
        return templates.text("launch/kubernetes.md.j2", _values(handout))


def _values(handout: Handout) -> dict[str, Any]:
    values = job_values(handout)
    replicas = [("Master", 1), ("Worker", handout.n_nodes - 1)]
    return {
        **values,
        "replicas": [(role, count) for role, count in replicas if count],
        "master": f"{values['name']}-master-0",
    }
