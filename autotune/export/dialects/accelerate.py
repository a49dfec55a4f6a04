"""The dialect of accelerate: a YAML for `accelerate launch`, and the ds_config that it names."""

from autotune.base.nested import look_up
from autotune.base.templates import Templates, canonical_json
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.dialects.hf import BY_SCRIPT
from autotune.export.material import SCRIPT, material, readme
from autotune.export.trainer import family_config, refuse_unsaid
from autotune.trial.engines.deepspeed import CONFIG_FILE


class AccelerateFiles(Dialect):
    """For `Accelerator.prepare`: concrete numbers, since a script's own loader is not asked.

    The YAML is written by the launcher of the same name, which alone reads it.
    """

    engines = ("deepspeed",)
    script = SCRIPT
    launcher = "accelerate"
    only_launcher = "accelerate.yaml is read by `accelerate launch` alone"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        assert launch is not None, "it has a script"
        refuse_unsaid(handout, "accelerate", says=BY_SCRIPT)
        config = family_config(handout)
        config["train_micro_batch_size_per_gpu"] = handout.candidate.micro_batch
        more = {
            "is_sharded": look_up(config, "zero_optimization.stage") == 3,
            "recompute": handout.workload.settings.get("recompute", "none"),
        }
        return {
            CONFIG_FILE: canonical_json(config),
            **material(handout, "accelerate/train.py", templates),
            **readme(handout, launch, templates, "accelerate/README.md.j2", more),
        }
