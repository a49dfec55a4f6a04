"""kubernetes: a PyTorchJob of the Kubeflow training operator."""

from autotune.export.launchers.shell import JobLauncher


class Kubernetes(JobLauncher):
    """`pytorchjob.yaml`, and what puts the export into the cluster and submits it."""

    templates = (("pytorchjob.yaml", "pytorchjob.yaml.j2"), ("submit.sh", "submit.sh.j2"))
    about = "kubernetes.md.j2"
