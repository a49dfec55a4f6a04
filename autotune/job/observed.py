"""What a user's own command trains, as its first run showed it: `observed.json` of its study.

A job of such a command says nothing of the model, the batch or the precision itself: it names this
file, and takes them from here.
"""

import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.base.flags import flag, switch
from autotune.base.nested import look_up
from autotune.contract import (
    ContractError,
    KnobValue,
    Outcome,
    TrialResult,
    read_bounded,
    read_json,
)
from autotune.contract.files import Stored
from autotune.job.command import PLACEHOLDER
from autotune.job.model import Model, model_from_config
from autotune.job.model_shape import ModelShape
from autotune.trial.guest.frameworks import RECOMPUTE_NAMES

OBSERVED_FILE = "observed.json"
"""Name of the file, in the folder of the study."""
_OFF = ("none", "false")
"""Values of a knob at which its flag does not stand in the command."""
_LARGEST_SOURCE_BYTES = 2**20
_UNEXPLAINED_SHARE = 0.1
"""Parameters that the sizes of a model leave unexplained before it counts as of another kind:
norms, biases and learned positions explain less."""
_MICRO, _ACCUM = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_KEYS = {"zero.stage": "zero_optimization.stage", "micro_batch": _MICRO, "grad_accum": _ACCUM}
"""Knobs that a placeholder may name -> their keys in DeepSpeed's configuration."""
_PLAIN = ("trainer", "trl")
_TRAINERS = (*_PLAIN, "llama-factory", "axolotl", "ms-swift")
"""Frameworks that train by transformers' Trainer."""
_READ_BACK = {
    "zero.stage": "stage",
    "precision": "dtype",
    "attention": "attention",
    "offload.optimizer": "offload_optimizer",
}
"""Knobs that a placeholder may name -> what is read back of them."""


@dataclass(frozen=True, kw_only=True)
class Observed(Stored):
    """A user's command, and what its first run showed."""

    VERSION: ClassVar[int] = 1

    command: list[str]
    """As it was typed, placeholders included."""
    folder: str
    """Where it runs."""
    world: int
    """Ranks that it starts."""
    description: dict[str, Any]
    """What the first rank read off the live engine: `autotune.trial.guest.describe`."""
    result: dict[str, Any]
    """The trial's result, by the fields of `TrialResult`."""
    sources: list[str] = field(default_factory=list)
    """Files of the user's that the run read as code or as settings: their text is the digest."""
    memory_limit_bytes: int | None = None
    """What a rank was given in that run; None: all there is."""
    observed_digest: str = ""
    """`digest` as it was then: files that have changed since are observed anew."""
    source_digests: dict[str, str] = field(default_factory=dict)
    """Each of `sources` -> hash of its text then."""
    patched: dict[str, str] = field(default_factory=dict)
    """Source that the study's own patch wrote, for whoever exports it -> hash of what it wrote."""
    schema_version: int = 1

    @classmethod
    def read(cls, path: Path) -> "Observed":
        """Read the file of a study.

        Raises:
            JobError: It is missing or damaged.
        """
        try:
            return cls.from_dict(read_json(path))
        except ContractError as error:
            text = f"{error}"
            message = text if text.startswith(f"{path}: ") else f"{path}: {text}"
            again = f"run the same command again with {switch('fresh')}: it is observed anew"
            raise JobError(message, again) from error

    def check(self) -> None:
        TrialResult.from_dict(self.result)
        missing = {"config", "micro_batches", "n_params", "dp"} - self.description.keys()
        if missing or not self.command or self.world < 1:
            raise ContractError(f"Observed: missing {sorted(missing)}, or no command")

    @cached_property
    def measured(self) -> TrialResult:
        return TrialResult.from_dict(self.result)

    @property
    def config(self) -> Mapping[str, Any]:
        """DeepSpeed's configuration as it arrived, every "auto" filled in."""
        return cast(Mapping[str, Any], self.description["config"])

    @property
    def sources_of_config(self) -> list[dict[str, Any]]:
        """Files that the script read its configuration from before it handed that over.

        Of one that hands over a file's path, that file, if it reads it as well. Empty where the
        configuration is of its own code. The keys of each are those of
        `autotune.trial.guest.reading.sources_of`.
        """
        found, file = self.description.get("sources") or (), self.description.get("config_file")
        of_script = file if self.framework == "deepspeed" else None
        return [one for one in found if not file or one["file"] == of_script]

    @property
    def reads_config(self) -> bool:
        """Whether the script itself reads or makes its configuration, and may use keys of it."""
        file = self.description.get("config_file")
        if self.framework != "deepspeed" and not self.sources_of_config:
            return False  # the framework does
        return not file or file in (self.description.get("settings_read") or ())

    def place_of(self, key: str) -> tuple[str, tuple[str, ...]] | None:
        """The file, and the path of keys in it, where a dotted key of the configuration belongs.

        None: no file has it. Whether it arrives from there, a trial of it shows.
        """
        found = self.sources_of_config
        section, _, rest = key.partition(".")
        at = tuple(key.split("."))
        for one in found:
            if _has(one["same"], key):
                return one["file"], (*one["at"], *at)
        written = self.description.get("config_written") or {}
        if any(_has(one["other"], key) for one in found) or look_up(written, key) is not None:
            return None  # the script's code sets it
        for one in found:
            # A reader may refuse what it does not know: new keys stand beside those of DeepSpeed.
            if (rest and section in one["sections"]) or one["is_whole"]:
                return one["file"], (*one["at"], *at)
        return None

    def place_outside_files(self, key: str) -> tuple[str, str]:
        """Where a dotted key that no file brings is set, in words, and its name there."""
        for name in self.placeholders:
            if key == _KEYS.get(name):
                return "your command", f"{{{name}}}"
        for word in self.command:
            *_, name, value = ["", *word.lstrip("-+").split("=")]
            if name and value and f".{name}".endswith(f".{key}"):
                return "your command", word  # a setting such as ds.zero_optimization.stage=2
        if written := self.description.get("written_config"):
            return f"what writes {os.path.relpath(written, self.folder)}", key
        return "the configuration in your code", key

    def in_files(self, configuration: Mapping[str, Any]) -> dict[str, list[tuple[list[str], Any]]]:
        """Changes of the files that hold a configuration: file -> path of keys and its value.

        Args:
            configuration: Dotted key -> value; None: it goes.
        """
        found: dict[str, list[tuple[list[str], Any]]] = {}
        for key, value in configuration.items():
            if (place := self.place_of(key)) is not None and not self.is_set_by_word(key):
                found.setdefault(place[0], []).append((list(place[1]), value))
        return found

    def is_set_by_word(self, key: str) -> bool:
        """Whether a placeholder means a dotted key whose file the command does not name."""
        place = self.place_of(key)
        is_meant = any(_KEYS.get(name) == key for name in self.placeholders)
        return is_meant and place is not None and not self.names(place[0])

    def names(self, path: str) -> bool:
        words = (os.path.join(self.folder, word.rpartition("=")[2]) for word in self.command)
        return path in map(os.path.abspath, words)

    @property
    def framework(self) -> str:
        """Whose training loop it is: `trainer`, `trl`, `accelerate`, `deepspeed`, ..."""
        return str(self.description.get("framework", "deepspeed"))

    @property
    def is_trainer(self) -> bool:
        return self.framework in _TRAINERS and bool(self.arguments)

    @property
    def is_set_up_by_accelerate(self) -> bool:
        """Whether accelerate's own settings make the configuration: no file does, and no code."""
        in_code = self.framework != "accelerate" or self.description.get("brings_plugin")
        if self.is_trainer:  # it hands accelerate a plugin in any case
            in_code = self.arguments.get("deepspeed")
        return not (in_code or self.description.get("config_file") or self.sources_of_config)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its TrainingArguments as the user set them; empty: there are none."""
        return cast(Mapping[str, Any], self.description.get("arguments") or {})

    @property
    def micro_batch(self) -> int:
        """Samples of a rank and a backward pass, as they arrived; their mean where they differ."""
        if self.varies:
            rows: list[list[int]] = self.description["rows"]
            return max(1, round(sum(n * times for n, times in rows) / sum(t for _, t in rows)))
        if self._rows and self.rows_per_sample:
            return self._rows // self.rows_per_sample
        return self._stated_micro_batch or int(self.measured.read_back.get("micro_batch", 1))

    @property
    def varies(self) -> bool:
        """Whether its micro-batches differ in size, and not only the last one of an epoch.

        The last one is at most a quarter of all, or each second or third.
        """
        rows = self.description.get("rows") or []
        if len(rows) != 2:
            return len(rows) > 2
        least, total = min(rows)[1], sum(times for _, times in rows)
        thirds_and_halves = (total // 3, -(-total // 3), total // 2, -(-total // 2))
        return bool(4 * least > total and least not in thirds_and_halves)

    @property
    def rows_per_sample(self) -> int:
        """Rows of the model's input that a sample becomes; 0: nobody can tell.

        A preference is two, its chosen answer and its rejected one. Where samples are laid end to
        end into one row, rows do not count them.
        """
        rows, stated = self._rows, self._stated_micro_batch
        if self.varies:
            return 0
        if not rows or not stated or rows == stated:
            return 1
        if rows == 1:
            return 0
        return 1 if rows % stated else rows // stated

    @property
    def _rows(self) -> int:
        """Rows of the fullest micro-batch of a step; 0: none was counted."""
        return max(map(int, self.description["micro_batches"]), default=0)

    @property
    def _stated_micro_batch(self) -> int:
        """Samples in a micro-batch, as who makes the batches was told; 0: that is not known."""
        description = self.description
        named = placeholders_of(self.command).get("micro_batch")
        if named is not None:
            return int(named) if named.isdecimal() else 0
        stated = int(self.measured.read_back.get("micro_batch", 0))
        takes_micro_batch = description.get("gives_data") or description.get("asks_micro_batch")
        if self.is_trainer or takes_micro_batch or self.batches_by_file:
            return stated
        # Twice as many rows are a preference's two answers, two views of a sample, or beside
        # another model a real sample and a generated one.
        has_other = int(description.get("engines", 1)) > 1
        is_loaded = stated in (description.get("step_batches") or ())
        is_loaded &= self._rows not in (description.get("loader_batches") or ())
        return stated if (has_other or is_loaded) and self._rows == 2 * stated else 0

    @property
    def grad_accum(self) -> int:
        """Micro-batches of a rank in an optimizer step: its backward passes."""
        seen = self.description["micro_batches"]
        return len(seen) or self.measured.read_back.get("grad_accum", 1)

    @property
    def passes_differ(self) -> bool:
        """Whether a step has more or fewer passes than DeepSpeed's configuration says."""
        return bool(self.grad_accum != self.measured.read_back.get("grad_accum", self.grad_accum))

    @cached_property
    def placeholders(self) -> dict[str, str]:
        """Placeholders of the command whose value is what its run had: name -> that value."""
        named, ran = placeholders_of(self.command), self._ran
        return {n: text for n, text in named.items() if n not in ran or is_text_of(text, ran[n])}

    @property
    def placeholders_left_alone(self) -> dict[str, str]:
        """The other placeholders: name -> what its value is not."""
        ran, what = self._ran, {"micro_batch": "samples that arrive", "grad_accum": "passes"}
        return {
            name: f"{{{name}={text}}} in the command is left alone: its run had {ran[name]} "
            f"{what.get(name, '')}".rstrip()
            for name, text in placeholders_of(self.command).items()
            if name not in self.placeholders
        }

    def filled(self, values: Mapping[str, KnobValue]) -> list[str]:
        """The command with a candidate's values in those of its placeholders that mean them."""
        meant = {name: value for name, value in values.items() if name in self.placeholders}
        return filled_in(self.command, meant)

    @property
    def _ran(self) -> dict[str, KnobValue]:
        """Knobs as the first run had them, as far as it was counted or read back."""
        live = self.measured.read_back
        known = {knob: live[name] for knob, name in _READ_BACK.items() if name in live}
        if "recomputes" in live:
            known["recompute"] = "full" if live["recomputes"] else "none"
        return {**known, "micro_batch": self.micro_batch, "grad_accum": self.grad_accum}

    @property
    def dp(self) -> int:
        return max(1, int(self.description["dp"]))

    @property
    def global_batch(self) -> int:
        """Samples of an optimizer step, over all ranks, counted from the tensors."""
        return self.micro_batch * self.grad_accum * self.dp

    @property
    def seq_len(self) -> int:
        """Tokens of the longest sample that was seen; 2 where samples have no length."""
        return max([2, *map(int, self.description.get("lengths", ()))])

    @property
    def has_tokens(self) -> bool:
        return any(self.description.get("lengths", ()))

    @property
    def precision(self) -> str:
        return str(self.measured.read_back.get("dtype", "fp32"))

    @property
    def batches_by_file(self) -> bool:
        """Whether its data loader takes the micro-batch of the file that it reads by itself.

        Another loader may have as many by chance: a trial of another value shows it.
        """
        size = (self.description.get("config_written") or {}).get(_MICRO)
        is_taken = size is not None and size in (self.description.get("loader_batches") or ())
        return is_taken and self.place_of(_MICRO) is not None

    @property
    def switches_recompute(self) -> bool:
        """Whether Trainer's arguments or a placeholder switch recomputation, and not the code."""
        is_on = self.description.get("recomputed_layers") and self.framework in _PLAIN
        is_told = not is_on or any(map(self.arguments.get, RECOMPUTE_NAMES))
        return (self.is_trainer and is_told) or "recompute" in self.placeholders

    @property
    def optimizer(self) -> dict[str, Any]:
        """The optimizer section, or the class that the script brings."""
        section = self.config.get("optimizer")
        if isinstance(section, dict) and section.get("type"):
            return section
        brought = str(self.description.get("client_optimizer") or "AdamW")
        return {"type": brought, "params": {}}

    @property
    def origins(self) -> dict[str, str]:
        """Where each setting came from: a file, an argument, or the script itself."""
        written = self.description.get("config_written") or {}
        file = Path(str(self.description.get("config_file") or "")).name
        by_default = (
            "accelerate's settings" if self.is_set_up_by_accelerate else "the script's code"
        )

        def by_file(key: str) -> str:
            if file:
                return file
            if (place := self.place_of(key)) is not None:
                return Path(place[0]).name
            where, word = self.place_outside_files(key)
            return by_default if word == key else f"{where}, {word}"

        loader = "the script's own batches" if not self.is_trainer else "Trainer's default"
        accumulates = "DeepSpeed's default"
        if written.get("train_batch_size") not in (None, "auto"):
            derived = f"{by_file('train_batch_size')}, from train_batch_size"
            if written.get(_MICRO) not in (None, "auto"):
                accumulates = derived
            elif self.description.get("gives_data") or self.description.get("asks_micro_batch"):
                loader = derived

        def by_argument(name: str, otherwise: str) -> str:
            return f"argument {name}" if name in self.arguments else otherwise

        found = {
            "zero.stage": by_file("zero_optimization.stage")
            if "zero_optimization" in written
            else "DeepSpeed's default"
        }
        for setting, key, argument, otherwise in (
            ("micro_batch", _MICRO, "per_device_train_batch_size", loader),
            ("grad_accum", _ACCUM, _ACCUM, accumulates),
        ):
            is_own = written.get(key) not in (None, "auto")
            found[setting] = by_file(key) if is_own else by_argument(argument, otherwise)
        if self.passes_differ:
            found["grad_accum"] = "the script's own passes"
        by_switch = (written.get(self.precision) or {}).get("enabled") is True
        by_key = by_file(f"{self.precision}.enabled")
        is_unset = self.precision == "fp32" and self.framework != "accelerate"
        by_nobody = by_argument("bf16", "DeepSpeed's default") if is_unset else by_default
        found["precision"] = by_key if by_switch else by_argument(self.precision, by_nobody)
        is_argument = self.description.get("optimizer_by_arguments")
        brought = "argument optim" if is_argument else "the script's code"
        found["optimizer"] = by_file("optimizer.type") if "optimizer" in self.config else brought
        named = found.keys() & self.placeholders.keys()
        return {**found, **{name: f"your command, {{{name}}}" for name in named}}

    def digest(self) -> str:
        is_known = self.source_digests.keys() == set(self.sources)
        if self.patched and is_known and not self.changed():
            return self.observed_digest
        return digest_of(self.command, self.sources)

    def changed(self) -> list[str]:
        """The sources whose text is not as it was then, as far as the record tells.

        A file that holds what a patch of the study wrote has not changed.
        """
        then = self.source_digests
        return [
            name
            for name in self.sources
            if name in then and file_digest(name) not in (then[name], self.patched.get(name))
        ]

    def model(self, path: Path) -> Model:
        """The model that it trains, by the shape that was read.

        What cannot be seen of a model that is none of Hugging Face's is 0 there.
        """
        description = self.description
        counts: dict[str, Any] = {
            "n_params": int(description["n_params"]),
            "n_params_frozen": int(description.get("n_params_frozen", 0)),
            "largest_param": int(description.get("largest_param", 0)),
        }
        config = dict(description.get("model_config") or {})
        name = str(description.get("model_class") or "model")
        shape = _shape_by_sizes(description, counts)
        # What tells it from another model; no path, for a study may be moved.
        source: dict[str, Any] = {"observed": f"{name}, {counts['n_params']}", "vocab": 0}
        if config.get("model_type"):
            try:
                known = model_from_config(name, config, where=str(path)).shape
            except JobError:
                known = shape  # an architecture of their own
            shape = dataclasses.replace(known, **counts)
            source = {**source, "config": config}
        source["vocab"] = shape.vocab
        return Model(
            name=name,
            shape=shape,
            source=source,
            supports_tp=False,
            supports_recompute=self.switches_recompute,
        )


def _has(keys: Sequence[str], key: str) -> bool:
    return any(one == key or one.startswith(f"{key}.") for one in keys)


def digest_of(command: list[str], sources: list[str]) -> str:
    """Hash of a command and of the text of some files: 12 hex digits; a lost file is empty."""
    found = hashlib.sha256("\0".join(command).encode())
    for name in sources:
        found.update(name.encode() + b"\0")
        try:
            found.update(read_bounded(Path(name), _LARGEST_SOURCE_BYTES))
        except OSError:
            continue
    return found.hexdigest()[:12]


def file_digest(place: str | Path) -> str:
    """Hash of the text of one file; empty where it is lost or too large to be a source."""
    try:
        return text_digest(read_bounded(Path(place), _LARGEST_SOURCE_BYTES))
    except OSError:
        return ""


def text_digest(text: bytes) -> str:
    """Hash of a text: 12 hex digits."""
    return hashlib.sha256(text).hexdigest()[:12]


def filled_in(command: list[str], values: Mapping[str, KnobValue]) -> list[str]:
    """A command with its placeholders replaced: by a candidate's values, else by their own.

    A value that is the user's own stays in the user's words.
    """

    def value(match: re.Match[str]) -> str:
        name, default, flag_word = match.groups()
        chosen = values.get(name)
        if chosen is None or (default is not None and is_text_of(default, chosen)):
            text = str(default if default is not None else match[0])
        else:
            text = str(chosen)
        if flag_word is None:
            return text
        return "" if text.lower() in _OFF else str(flag_word)

    words = ((part, PLACEHOLDER.sub(value, part)) for part in command)
    return [word for part, word in words if word or not part]


def is_text_of(text: str, value: KnobValue) -> bool:
    """Whether a word of a command means a knob's value."""
    if isinstance(value, bool | str):
        return text.lower() == str(value).lower()
    try:
        return float(text) == value
    except ValueError:
        return False


def placeholders_of(command: list[str]) -> dict[str, str]:
    """Names in the placeholders of a command, each with its own value; empty where it has none."""
    return {name: text for part in command for name, text, _ in PLACEHOLDER.findall(part)}


def flags_named(command: list[str]) -> set[str]:
    """Names in the placeholders that stand for a whole flag."""
    return {name for part in command for name, _, word in PLACEHOLDER.findall(part) if word}


def _shape_by_sizes(description: Mapping[str, Any], counts: Mapping[str, Any]) -> ModelShape:
    """The shape by the sizes that were seen: with or without a gated MLP and a head of its own.

    The one is taken whose matrices come nearest to the parameters that there are.
    """
    names = ("n_layers", "hidden", "ffn_hidden", "n_heads", "vocab")
    seen = description.get("sizes") or {}
    sizes: dict[str, Any] = {name: int(seen.get(name, 0)) for name in names}
    n_params: int = counts["n_params"] + counts["n_params_frozen"]
    plain = ModelShape(
        **sizes,
        n_kv_heads=int(seen.get("n_kv_heads", 0)) or sizes["n_heads"],
        tied_embeddings=False,
        gated_mlp=False,
        n_experts=0,
        experts_per_token=0,
        n_params_active=n_params,
        **counts,
    )
    if not all(sizes.values()):
        return plain  # refused for the sizes that cannot be seen

    def n_unexplained(shape: ModelShape) -> int:
        n_matrices = 1 if shape.tied_embeddings else 2
        return abs(n_params - shape.layer_weights - n_matrices * shape.vocab * shape.hidden)

    kinds = itertools.product((False, True), repeat=2)
    shapes = (dataclasses.replace(plain, gated_mlp=g, tied_embeddings=t) for g, t in kinds)
    nearest = min(shapes, key=n_unexplained)
    if n_unexplained(nearest) <= _UNEXPLAINED_SHARE * n_params:
        return nearest
    unsaid = f"{n_params:,} parameters, which attention and MLPs of its sizes would not have"
    return dataclasses.replace(plain, unsaid=unsaid)


def refuse_unobserved(result: TrialResult, log: Path) -> None:
    """Refuse to go on where the first run of a command measured nothing.

    Raises:
        JobError: It did not; the message says how the run ended, and what helps.
    """
    if result.outcome.is_measured:
        return
    rows = table_beside(__file__, "hints.json")
    found = (row["hint"] for row in rows if all(word in result.evidence for word in row["words"]))
    by_outcome = {
        Outcome.OOM: "it runs out of memory as it is: lower its micro-batch in the command",
        Outcome.TIMEOUT: "see where it stood; if it trains, give it longer with "
        f"{flag('trial_timeout')}",
        Outcome.COMM: "see the log; if it hangs before its first step, try it without autotune",
    }
    otherwise = "see the log, and try the same command without autotune"
    hint = next(found, by_outcome.get(result.outcome, otherwise))
    where = f" [{result.evidence_source}]" if result.evidence_source else ""
    raise JobError.of("job.not_measured", result=result, where=where, log=log, hint=hint)
