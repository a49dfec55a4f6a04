"""The dialect of Megatron-LM: a run of its `pretrain_gpt.py`, as arguments for the shell."""

from autotune.base.templates import Templates
from autotune.engines.megatron.pretrain_gpt import data_words, own_words, tokenizer_words
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.material import trial_script
from autotune.export.megatron import lines_of, megatron_readme, release_of, run_of
from autotune.export.readme import figures_file

ARGUMENTS_FILE = "megatron_args.sh"
_MOCK_TOKENS = 4096
"""Token ids that `--mock-data` draws from, whatever the vocabulary, before Megatron Core 0.16.

Source: NVIDIA/Megatron-LM, megatron/core/datasets/gpt_dataset.py, MockGPTLowLevelDataset."""
_WITH_ALL_OF_THEM = ("0.14", "0.15")
ON_CPU_FILE = "megatron_cpu.py"
"""Script that starts another one with the host in CUDA's place."""


class MegatronArguments(Dialect):
    """For Megatron-LM's pretrain_gpt.py: every argument of the run, and what starts it."""

    engines = ("megatron",)
    has_releases = True
    script = ARGUMENTS_FILE
    only_launcher = "it starts scripts with a configuration of DeepSpeed"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        assert launch is not None, "it has a script"
        run, release = run_of(handout), release_of(handout)
        own = own_words(handout.job)
        is_on_cpu = handout.environment.accelerator == "cpu"
        groups = {
            "MODEL_ARGS": lines_of(run.model, release),
            "LAYOUT_ARGS": lines_of(run.layout, release),
            "TRAINING_ARGS": lines_of(run.training, release),
        }
        values = {
            "world": handout.candidate.world,
            "release": release,
            "groups": groups,
            "data": data_words(own),
            "exceeds_vocab": release in _WITH_ALL_OF_THEM and run.vocab < _MOCK_TOKENS,
            "tokenizer": tokenizer_words(run.vocab, release, own),
            "own": own,
            "checkout": str(handout.job.megatron_path or ""),
            "on_cpu": ON_CPU_FILE if is_on_cpu else "",
            "variables": sorted(handout.variables.items()),
        }
        told = {"release": release, "arguments_file": ARGUMENTS_FILE}
        return {
            **handout.files,
            ARGUMENTS_FILE: templates.text("megatron/megatron_args.sh.j2", values),
            "README.md": megatron_readme(
                handout, run, launch, templates, "megatron/README.md.j2", told
            ),
            **({ON_CPU_FILE: trial_script(ON_CPU_FILE)} if is_on_cpu else {}),
            **figures_file(handout),
        }
