"""The dialect of Megatron-LM: a run of its `pretrain_gpt.py`, as arguments for the shell."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.templates import Templates, canonical_json
from autotune.contract import SETTINGS_FILE, Layout, Workload
from autotune.contract import parts_of as spec_parts
from autotune.devices.hardware import Environment
from autotune.engines.megatron.arguments import SCRIPT_ON_CPU
from autotune.engines.megatron.model_arguments import check_release
from autotune.engines.megatron.pretrain_gpt import (
    SCRIPT,
    data_words,
    digest_of,
    script_arguments,
    tokenizer_words,
    user_words,
)
from autotune.export.base import Handout, Launch
from autotune.export.material import settings, trial_script
from autotune.export.megatron import MegatronRuns, lines_of, megatron_readme, release_of, run_of
from autotune.job.job import CHECKOUT_WORKLOAD
from autotune.space.built_in import NEUTRAL

ARGUMENTS_FILE = "megatron_args.sh"
_MOCK_TOKENS = 4096
"""Token ids that `--mock-data` draws from, whatever the vocabulary, before Megatron Core 0.16.

Source: NVIDIA/Megatron-LM, megatron/core/datasets/gpt_dataset.py, MockGPTLowLevelDataset."""
_WITH_ALL_OF_THEM = ("0.14", "0.15")
_CHECKOUT = "MEGATRON_PATH"
"""Variable that names the checkout, in the export's scripts as well."""
ON_CPU_FILE = "megatron_cpu.py"
"""Script that starts another one with the host in CUDA's place."""


class MegatronArguments(MegatronRuns):
    """For Megatron-LM's pretrain_gpt.py: every argument of the run, and what starts it."""

    name = "megatron"
    has_releases = True
    script = ARGUMENTS_FILE

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        release = release_of(handout)
        run = run_of(handout, release)
        check_release(handout.job.model, release, by_script=True)
        words = user_words(handout.job)
        is_on_cpu = handout.environment.accelerator == "cpu"
        groups = {
            "MODEL_ARGS": lines_of({**run.model, **run.kernels}, release),
            "LAYOUT_ARGS": lines_of(run.layout, release),
            "TRAINING_ARGS": lines_of(run.training, release),
        }
        values = {
            "world": handout.candidate.world,
            "release": release,
            "groups": groups,
            "data": data_words(words),
            "exceeds_vocab": release in _WITH_ALL_OF_THEM and run.vocab < _MOCK_TOKENS,
            "tokenizer": tokenizer_words(run.vocab, release, words),
            "user_words": words,
            "checkout": str(handout.job.megatron_path or ""),
            "on_cpu": ON_CPU_FILE if is_on_cpu else "",
            "variables": sorted(handout.variables.items()),
        }
        names = {"release": release, "arguments_file": ARGUMENTS_FILE}
        of_script = {"megatron_path": values["checkout"], "megatron_arguments": words}
        return {
            **handout.exported,
            SETTINGS_FILE: canonical_json({**NEUTRAL, **settings(handout), **of_script}),
            ARGUMENTS_FILE: templates.text("megatron/megatron_args.sh.j2", values),
            **megatron_readme(handout, run, launch, templates, "megatron/README.md.j2", names),
            **({ON_CPU_FILE: trial_script(ON_CPU_FILE)} if is_on_cpu else {}),
        }

    def trained(
        self, settings: Mapping[str, Any], arguments: dict[str, Any], environment: Environment
    ) -> tuple[Workload, Layout]:
        checkout = Path(os.environ.get(_CHECKOUT) or str(settings["megatron_path"])).absolute()
        if not (checkout / SCRIPT).is_file():
            raise JobError.of("export.no_folder_named", script=SCRIPT, checkout=_CHECKOUT)
        workload, layout = spec_parts(settings, digest=digest_of(checkout))
        if environment.accelerator == "cpu":
            arguments |= SCRIPT_ON_CPU
        words = list(map(str, settings["megatron_arguments"]))
        of_checkout = dataclasses.replace(
            workload,
            name=CHECKOUT_WORKLOAD,
            settings={},
            script=str(checkout / SCRIPT),
            arguments=script_arguments(checkout, int(arguments["vocab_size"]), words),
        )
        return of_checkout, layout
