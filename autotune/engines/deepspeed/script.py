"""DeepSpeed under a user's own script: a candidate as edits of the configuration that arrived.

What the user set and no knob touches stays exactly as it is: the edits are what two rendered
configurations differ by, the candidate's and that of the command as it is.
"""

import copy
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autotune.base.errors import JobError
from autotune.base.nested import MISSING, differences, leaves, look_up
from autotune.base.templates import canonical_json
from autotune.contract import KnobValue
from autotune.cost.plans import Plans
from autotune.devices.hardware import Environment
from autotune.engines.base import Exported, RankSettings
from autotune.engines.deepspeed.ds_config_file import knobs_of, leftover
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.expected import expected
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import offloads_optimizer
from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.rules.zero import inert_keys
from autotune.engines.deepspeed.sources.accelerate import FIELDS, SECTION
from autotune.engines.deepspeed.sources.sections import own_keys
from autotune.engines.launches.line import flags_of, parts_of
from autotune.engines.releases import is_at_least
from autotune.job.job import SCRIPT_SPACE, Job
from autotune.job.observed import Observed, flags_named
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical, choices_of
from autotune.space.rule import Violation
from autotune.space.script import (
    IMPLEMENTATION,
    IMPLEMENTATIONS,
    attention_of,
    implementation_of,
    layout_of,
    reach_of,
    recompute_name,
)
from autotune.space.space_file import Domain, Space, load_space
from autotune.space.workload import Reach
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.edits import EDITS_FILE, Edits, put
from autotune.trial.guest.frameworks import ATTENTION_ARGUMENT
from autotune.trial.statistics import SHOWN_BEYOND_MEDIAN, share_beyond_median

MICRO_BATCH_ARGUMENT = "per_device_train_batch_size"
ACCUMULATION_ARGUMENT = "gradient_accumulation_steps"
OPTIMIZER_ARGUMENT = "optim"
_BUCKET = "reduce_bucket_size"
_SWITCHED = ("none", "full", "torch", False, True)
"""Values of knobs that a flag without a value can say."""
_FUSED_ON_CPU = "2.4"
"""Release of torch that brought a fused Adam for CPUs."""
_BATCH_KEYS = BATCH_KEYS[:2]
"""Samples of a pass, and passes of a step."""
_GLOBAL_BATCH = "batch.global_batch"
"""The rule that a configuration makes the job's global batch."""


class ScriptEngine(DeepSpeedEngine):
    """DeepSpeed for the command that a job observed."""

    def __init__(self, job: Job, environment: Environment) -> None:
        """Take the configuration that arrived for the base of all candidates."""
        assert job.script is not None, "the job has a command"
        super().__init__(job, environment)
        self._script: Observed = job.script
        self._reach = reach_of(job.script)
        where = Path(str(job.script.description.get("config_file") or "the command"))
        arrived = dict(job.script.config)
        named = {
            name: KNOBS[name].check(value, where=f"{{{name}={value}}} in the command")
            for name, value in job.script.placeholders.items()
            if value and name in KNOBS
        }
        self._base_knobs = {
            **knobs_of(arrived, where, skips_wrong=True),
            **_switched(job.script, self._reach),
            **named,
        }
        self._use_base(leftover(arrived), {}, optimizer=job.optimizer)

    @cached_property
    def _own_knobs(self) -> dict[str, KnobValue]:
        return {
            **self._base_knobs,
            **layout_of(self._script),
            "micro_batch": self._script.micro_batch,
        }

    @cached_property
    def unchanged(self) -> Candidate:
        knobs, job = canonical(self._own_knobs, self.context), self._job
        return Candidate.of(knobs, world=job.world, global_batch=job.global_batch)

    def as_written(self, candidate: Candidate) -> dict[str, KnobValue]:
        """A candidate's knobs with the values that DeepSpeed gets.

        In a candidate one value stands for all that run alike, as the model's size does for all
        larger buckets. What is not edited stays as the user or DeepSpeed has it.
        """
        before, values = self.unchanged.values, candidate.values
        found = dict(values)
        for name in self._defaults_at(candidate):
            found[name] = KNOBS[name].default_for(values)
        for name in [name for name in found if name in before and before[name] == values[name]]:
            found[name] = self._own_knobs.get(name, KNOBS[name].default_for(before))
        return found

    def _defaults_at(self, candidate: Candidate) -> list[str]:
        """Knobs that nobody chose, and that DeepSpeed sets so by itself.

        Its default bucket runs alike, but takes more memory: that is written.
        """
        chosen = {_BUCKET, *self._own_knobs, *choices_of(candidate.values, self.context)}
        return [name for name in candidate.values if KNOBS[name].is_plain and name not in chosen]

    @property
    def space(self) -> Space:
        """The job's space without what does not reach the command."""
        space = load_space(self._job.space, KNOBS, self.name)
        domains = {n: d for n, d in space.domains.items() if n not in self._reach.left_out}
        # Every candidate has the ranks as the script lays them out.
        domains |= {
            n: Domain(values=(value,), when=()) for n, value in layout_of(self._script).items()
        }
        for name in flags_named(self._script.command) & domains.keys():
            values = tuple(value for value in domains[name].values if value in _SWITCHED)
            domains[name] = replace(domains[name], values=values)
        if self._environment.accelerator == "cpu" and self._job.space == SCRIPT_SPACE:
            # A CPU rank's memory is the host's: what goes there frees nothing.
            for name in {"offload.optimizer", "offload.param"} & domains.keys():
                allowed = {*domains[name].values} - {"cpu"} | {self.unchanged.get(name, "none")}
                values = tuple(value for value in domains[name].values if value in allowed)
                domains[name] = replace(domains[name], values=values)
        if "zero.stage" in self._reach.left_out:
            domains["zero.stage"] = Domain(values=(self.unchanged["zero.stage"],), when=())
        domains.setdefault("micro_batch", Domain(values=(self._script.micro_batch,), when=()))
        for name in domains.keys() & self._own_knobs.keys() & self.unchanged.values.keys():
            usual, values = self._own_knobs[name], domains[name].values
            if usual not in values:  # else no change would be tried without one of it as well
                in_order = (*values, usual) if isinstance(usual, str) else sorted((*values, usual))
                domains[name] = replace(domains[name], values=tuple(in_order))
        if attention := self._base_knobs.get("attention"):
            domains = _with_attention_named(domains, attention)
        if self._switches_optimizer and (domain := domains.get(IMPLEMENTATION)):
            wanted = {*domain.values, implementation_of(self._script)} & self._implementations
            values = tuple(v for v in IMPLEMENTATIONS.values() if v in wanted)
            # Of offloaded states accelerate makes DeepSpeed's Adam, whatever the argument says.
            when = (*domain.when, ("offload.optimizer", frozenset({"none"})))
            domains[IMPLEMENTATION] = Domain(values=values, when=when)
        return replace(space, domains=domains)

    def ladder(self) -> Iterator[list[Candidate]]:
        yield [self.unchanged]

    def steps(self, candidate: Candidate) -> Iterator[tuple[str, KnobValue]]:
        for name, value in super().steps(candidate):
            is_implementation = name == IMPLEMENTATION and self._switches_optimizer
            if name in self._reach.left_out:
                continue
            if not is_implementation or value in self._implementations:
                yield name, value

    def baseline(self, path: Path) -> tuple[DeepSpeedEngine, Candidate]:
        """Refuse: the command is the baseline."""
        raise JobError.of("engines.deepspeed.baseline_of_a_command", path=path)

    def judge(self, candidate: Candidate) -> list[Violation]:
        """What the candidate breaks, and the command as it is does not: that has run."""
        found = judge(self.setup(candidate))
        return [violation for violation in found if violation.rule not in self._broken]

    @property
    def decided_by(self) -> Mapping[tuple[str, ...], Collection[str]]:
        return {}

    def setup(self, candidate: Candidate) -> Setup:
        """What would run: what arrived, with the candidate's edits."""
        base = super().setup(candidate)
        return replace(
            base,
            environment=replace(
                base.environment,
                # A fleet that is described has no release: what is installed here decides nothing.
                has_flash_attention=bool(
                    not base.environment.torch_version
                    or self._script.description.get("has_flash_attention")
                ),
            ),
            ds_config=self._edited(candidate),
            sp_by_script=1,
            pipeline_refusal="",
            brings_cpu_adam=self._script.framework != "deepspeed" or None,
            # Whether a model can recompute, the script's own framework knows.
            supports_recompute=self._script.switches_recompute,
        )

    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        """See `Engine.plans`: with the bucket of the user's file at its full size.

        A candidate's bucket is at most what a rank trains, since larger ones run alike. Where it
        is not edited the user's own stays, and DeepSpeed allocates all of that.
        """
        found = super().plans(candidates, needs_shape=needs_shape)
        if _BUCKET not in self.unchanged.values:
            return found
        is_own = [candidate.get(_BUCKET) == self.unchanged[_BUCKET] for candidate in candidates]
        arrived = float(self.as_written(self.unchanged)[_BUCKET])
        elements = np.where(is_own, arrived, found.reduce_bucket_elements)
        return replace(found, reduce_bucket_elements=elements)

    def files(self, candidate: Candidate) -> dict[str, str]:
        return {
            CONFIG_FILE: canonical_json(self._edited(candidate)),
            EDITS_FILE: canonical_json(self.edits(candidate).written()),
        }

    def edits(self, candidate: Candidate) -> Edits:
        """What a candidate changes of the command as it is; nothing for that itself."""
        by_word = self._reach.ways.get("recompute") == "placeholders"
        recomputes = candidate.get("recompute", "none") != "none" if by_word else None
        if candidate == self.unchanged:
            return Edits(rows_per_sample=self._script.rows_per_sample, recomputes=recomputes)
        before, after = self._rendered(self.unchanged), self._rendered(candidate)
        defaults = {KNOBS[name].key for name in self._defaults_at(candidate)}
        configuration = {
            key: value
            for key, value in _differences(before, after)
            # The global batch is no knob. What is not there need not be removed, nor a default
            # be written.
            if key != "train_batch_size"
            and not (self._script.passes_differ and key in _BATCH_KEYS)
            and not (self._switches_optimizer and key.startswith("optimizer."))
            and not (
                (value is None or key in defaults) and look_up(self._script.config, key) is None
            )
        }
        inert, values = self._made_inert(configuration), configuration.items()
        if self._script.reads_config:  # it may use them
            configuration = {
                key: new for key, new in values if new is not None or key not in inert
            }
        else:
            configuration |= dict.fromkeys(inert)
        return Edits(
            configuration=configuration,
            arguments=self._arguments(candidate),
            files=self._script.in_files(configuration),
            trained_file=self._script.description.get("trained_file") or "",
            rows_per_sample=self._script.rows_per_sample,
            recomputes=recomputes,
        )

    def _arguments(self, candidate: Candidate) -> dict[str, KnobValue]:
        def differs(knob: str) -> bool:
            is_argument = self._reach.ways.get(knob) == "arguments"
            return is_argument and candidate.get(knob) != self.unchanged.get(knob)

        found: dict[str, KnobValue] = {}
        if differs("micro_batch"):
            found[MICRO_BATCH_ARGUMENT] = candidate.micro_batch
            found[ACCUMULATION_ARGUMENT] = candidate.grad_accum
        if differs("recompute"):
            found[recompute_name(self._script)] = candidate.get("recompute") == "full"
        if differs("compile"):
            found["torch_compile"] = candidate.get("compile") == "torch"
        if self._switches_optimizer and (optim := self._optim(candidate)) != self._optim(
            self.unchanged
        ):
            found[OPTIMIZER_ARGUMENT] = optim
        if differs("attention"):
            found[ATTENTION_ARGUMENT] = candidate["attention"]
        if self._reach.ways.get("precision") == "arguments" and candidate.get("precision"):
            found |= {name: candidate["precision"] == name for name in ("bf16", "fp16")}
        return found

    def _made_inert(self, configuration: Mapping[str, Any]) -> list[str]:
        """Keys of the user's that nothing reads any more at an edited stage.

        A bucket that holds all gradients is no value of a knob: no candidate differs by it.
        """
        after: dict[str, Any] = copy.deepcopy(dict(self._script.config))
        values = {key: value for key, value in configuration.items() if value is not None}
        Edits(configuration=values).apply(after)
        was, now = (
            inert_keys(c.get("zero_optimization", {})) for c in (self._script.config, after)
        )
        return [f"zero_optimization.{name}" for name in now if name not in was]

    def expected(self, candidate: Candidate) -> dict[str, Any]:
        """What the live engine must say: what it said of the command, but for what is edited.

        What nobody foresaw of the user's own settings was read back when the command ran.
        """
        reported = self._script.measured.read_back
        of_own, asked = self._foretold(self.unchanged), self._foretold(candidate)
        if self._script.passes_differ:  # its configuration says what it always did
            asked |= {name: of_own[name] for name in ("micro_batch", "grad_accum")}
        found = {
            name: reported[name] if name in reported and of_own.get(name) == value else value
            for name, value in asked.items()
        }
        return {
            **{n: reported[n] for n in ("n_params", "n_params_frozen") if n in reported},
            **found,
        }

    def ranks(self, candidate: Candidate) -> RankSettings:
        return replace(super().ranks(candidate), binds_cores=False, may_start_warm=False)

    def preparation(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """Extensions are built for the command's own Python, if that is this one."""
        if self._script.description.get("executable") == sys.executable:
            return super().preparation(candidates)
        return ()

    def exported(self, candidate: Candidate) -> Exported:
        """What its trial has: the dialects put the edits into the command's own files."""
        return Exported(files=self.files(candidate), overridden=self.overridden(candidate))

    def overridden(self, candidate: Candidate) -> Mapping[str, tuple[Any, Any]]:
        """Keys of the command's configuration that change: key -> (theirs, ours).

        As they were written: what "auto" was filled in with is not the user's.
        """
        written = self._script.description.get("config_written") or self._script.config
        return {
            key: (look_up(written, key), value)
            for key, value in self.edits(candidate).configuration.items()
            if look_up(written, key) is not None
        }

    def edits_in_words(self, candidate: Candidate) -> list[str]:
        edits = self.edits(candidate)
        written = self._script.description.get("config_written") or {}
        changed = {
            key: value
            for key, value in edits.configuration.items()
            if not (edits.arguments and key in _BATCH_KEYS and written.get(key, AUTO) == AUTO)
        }
        lines = [
            f"{where}: " + (f"remove {named}" if value is None else f"{named}: {_json(value)}")
            for where, named, value in self._places(changed)
        ]
        lines += [f"argument: {name}={_json(value)}" for name, value in edits.arguments.items()]
        variables = self.ranks(candidate).environment
        return lines + [f"environment: {name}={value}" for name, value in variables.items()]

    def _places(self, configuration: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        flags = _accelerates_flags(self._script)
        if flags is not None:
            yield from _in_accelerates_file(configuration, flags)
            return
        file = Path(str(self._script.description.get("config_file") or "")).name
        for key, value in configuration.items():
            if (place := self._script.place_of(key)) is not None:
                yield Path(place[0]).name, ".".join(place[1]), value
            else:
                named = (file, key) if file else self._script.place_outside_files(key)
                yield *named, value

    def remarks(self) -> list[str]:
        """See `Engine.remarks`: what the rules say of what ran, and what did not arrive."""
        setup = self.setup(self.unchanged)
        if self._script.reads_config:  # keys of its own are none of DeepSpeed's
            setup = setup.with_config(own_keys(setup.ds_config))
        found = [
            f"{violation.message}; {violation.fix}"
            for violation in judge(setup)
            # The script makes its batches: more steps in the file would change what it trains.
            if violation.rule != _GLOBAL_BATCH
        ]
        stated = int(self._script.measured.read_back.get("micro_batch", 0))
        if self._script.varies:
            fewest, most = (pick(self._script.description["rows"])[0] for pick in (min, max))
            mean = self._script.micro_batch
            found.append(f"its passes have {fewest} to {most} samples, which count as {mean} each")
        elif not self._script.description["micro_batches"]:
            found.append(
                "the samples of its passes cannot be counted: the configuration's number is taken"
            )
        elif stated and stated != self._script.micro_batch:
            found.append(
                f"the configuration says {stated} samples a pass, and {self._script.micro_batch} "
                "arrived: DeepSpeed does not look at the batch; write that into "
                f"{_BATCH_KEYS[0]}"
            )
        written = self._script.description.get("config_written") or {}
        for path, value in leaves(written):
            key = ".".join(path)
            arrived = look_up(self._script.config, key)
            # accelerate sets it to infinity.
            is_print = key == "steps_per_print" and self._script.framework != "deepspeed"
            if value not in ("auto", arrived) and value != {} and not is_print:
                found.append(f"{key}: your file says {_json(value)}, and {_json(arrived)} arrived")
        if (why := self._reach.left_out.get("micro_batch")) is not None:
            found.append(f"no trial changes micro_batch: {why}")
        beyond = share_beyond_median(self._script.measured.step_times_s)
        if beyond >= SHOWN_BEYOND_MEDIAN:
            found.append(
                f"{beyond:.0%} of its time is what steps take beyond the median one, as those "
                "with an evaluation do: samples/s go by the median, and over the whole run a gain "
                "is smaller where that time stays"
            )
        n_trained = int(self._script.description.get("engines_trained", 1))
        if n_trained > 1:
            found.append(
                f"{n_trained} of its {self._script.description['engines']} engines train: the "
                "figures are those of the first, with all that happens between two of its steps; "
                "an edit of the configuration reaches each of them"
            )
        if self._script.passes_differ:
            made, stated = self._script.grad_accum, self._script.measured.read_back["grad_accum"]
            found.append(
                f"the script makes {made} passes in a step by itself: DeepSpeed reduces the "
                "gradients after each of them, unless under no_sync"
                if made > stated
                else f"the configuration says {stated} passes a step, and the script makes {made}"
            )
        found += self._script.placeholders_left_alone.values()
        if (n_rows := self._script.rows_per_sample) > 1:
            found.append(f"a sample goes through the model as {n_rows} rows; samples are counted")
        elif not n_rows and not self._script.varies:
            found.append(
                "samples are laid end to end into one row: whether a micro-batch arrived as it "
                "was asked for cannot be counted"
            )
        return found

    @cached_property
    def _broken(self) -> frozenset[str]:
        return frozenset(violation.rule for violation in judge(self.setup(self.unchanged)))

    @property
    def _switches_optimizer(self) -> bool:
        """Whether Trainer's argument chooses whose Adam updates."""
        return self._reach.ways.get(IMPLEMENTATION) == "arguments"

    @cached_property
    def _implementations(self) -> frozenset[KnobValue]:
        """Values of the knob that the argument can say, and this torch has on this device."""
        found = set(IMPLEMENTATIONS.values())
        here = self._environment
        if here.accelerator == "cpu" and not is_at_least(here.torch_version, _FUSED_ON_CPU):
            found.discard("torch_fused")
        return frozenset({*found, implementation_of(self._script)})

    def _optim(self, candidate: Candidate) -> str:
        """Trainer's argument for a candidate; where it says nothing, the user's own."""
        chosen = candidate.get(IMPLEMENTATION)
        if not offloads_optimizer(candidate.values):
            for name, implementation in IMPLEMENTATIONS.items():
                if implementation == chosen:
                    return name
        return str(self._script.arguments.get(OPTIMIZER_ARGUMENT))

    def _foretold(self, candidate: Candidate) -> dict[str, Any]:
        setup = replace(self.setup(candidate), model=None)
        sizes = zip(_BATCH_KEYS, (candidate.micro_batch, candidate.grad_accum), strict=True)
        setup = setup.with_config({**setup.ds_config, **dict(sizes)})
        foretold = expected(setup, self._job.model.source)
        foretold.pop("loss_chunk_tokens", None)
        if self._switches_optimizer and not offloads_optimizer(candidate.values):
            fused = IMPLEMENTATIONS[self._optim(candidate)] == "torch_fused"
            foretold |= {"optimizer": "AdamW", "optimizer_fused": fused}
        shape = self._job.model.shape
        if self._reach.ways.get("recompute") == "arguments" and shape.n_layers:
            full = candidate.get("recompute") == "full"
            foretold["recomputed_layers"] = shape.n_layers if full else 0
        return foretold

    def _edited(self, candidate: Candidate) -> dict[str, Any]:
        config: dict[str, Any] = copy.deepcopy(dict(self._script.config))
        edits = self.edits(candidate)
        edits.apply(config)
        if self._script.reads_config and candidate != self.unchanged:
            for key in self._made_inert(edits.configuration):
                put(config, key.split("."), None)  # nothing acts on what stays in the user's own
        return config

    @cached_property
    def _rendered(self) -> Callable[[Candidate], dict[str, Any]]:
        return lru_cache(maxsize=1024)(lambda candidate: self._render(candidate)[0])


def _accelerates_flags(script: Observed) -> Mapping[str, Any] | None:
    """Flags of the `accelerate launch` that sets DeepSpeed up by its settings; None: none does."""
    parts = parts_of(script.command)
    if parts.kind != "accelerate" or not script.is_set_up_by_accelerate:
        return None
    return dict(flags_of([script.command[at] for at in parts.launcher_flags]))


def _in_accelerates_file(
    configuration: Mapping[str, Any], flags: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """Where accelerate is told of keys of the configuration, each with its name and value there.

    Beside a ds_config it takes none of its own fields: what one of them cannot say, it says alone.
    """
    file = Path(str(flags.get("config_file", "default_config.yaml"))).name
    found = {
        ".".join(path): there
        for key, value in configuration.items()
        for path, there in leaves(value, (key,))
        if there is not None or value is None
    }
    for key, value in found.items():
        if not found.keys() <= FIELDS.keys():
            yield f"a ds_config that deepspeed_config_file in {file} names", key, value
        elif FIELDS[key] in flags:
            yield "your command", f"--{FIELDS[key]}", value
        else:
            yield file, f"{SECTION}.{FIELDS[key]}", value


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _with_attention_named(
    domains: Mapping[str, Domain], in_command: KnobValue
) -> dict[str, Domain]:
    """Domains in which the command's own attention stands for transformers' choice.

    `default` is no word that a command takes.
    """
    found = {}
    for name, domain in domains.items():
        when = dict(domain.when)
        if "default" in when.get("attention", ()):
            when["attention"] |= {in_command}
        found[name] = replace(domain, when=tuple(when.items()))
    if attention := found.get("attention"):
        given = {in_command, *attention.values} - {"default"}
        named = tuple(value for value in KNOBS["attention"].choices if value in given)
        found["attention"] = replace(attention, values=named)
    return found


def _switched(script: Observed, reach: Reach) -> dict[str, KnobValue]:
    """Knobs that the command sets outside of DeepSpeed's configuration."""
    found: dict[str, KnobValue] = {}
    if script.description.get("recomputed_layers"):
        found["recompute"] = "full"
    if script.description.get("is_compiled"):
        found["compile"] = "torch"
    if reach.ways.get("attention") == "arguments":
        found["attention"] = attention_of(script)
    if implementation := implementation_of(script):
        found[IMPLEMENTATION] = implementation
    return found


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys whose values differ, each with its new value; None: it is gone."""
    for path, _, new in differences(before, after):
        yield ".".join(path), None if new is MISSING else new
