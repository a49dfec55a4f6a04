"""What is checked: a ds_config, where it lies, and what is known of who reads it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.yaml_file import parse_yaml
from autotune.check.consumers import FILLED, Consumer, autos
from autotune.check.launch import LaunchLine, count, read_launch, text_or_none, typed
from autotune.contract import ContractError, read_json
from autotune.engines.deepspeed.ds_config_file import parse_json, read_text
from autotune.export.dialects.deepspeed import SETTINGS_FILE

ACCELERATE_OWNED = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage"),
    *("offload_optimizer_device", "offload_param_device", "offload_param_nvme_path"),
    *("zero3_save_16bit_model", "mixed_precision"),
)
"""Fields of an accelerate YAML that it refuses beside a `deepspeed_config_file`
(accelerate/utils/dataclasses.py: _deepspeed_config_checks)."""

_TELLING = frozenset(
    name for name in FILLED[Consumer.TRAINER] if not name.startswith("zero_optimization.")
)

_YAML = (".yaml", ".yml")

_UNSAID = -1
"""`num_processes` of an accelerate YAML that leaves it to the launch line (config_args.py)."""

_SYNONYMS = {"micro_batch_size": "per_device_train_batch_size"}
"""Other names of a TrainingArguments field: axolotl's."""


@dataclass(frozen=True, kw_only=True)
class ExportedLayout:
    """How the script beside a ds_config splits the training, and on what: it does not say."""

    pp: int = 1
    """Stages."""
    tp: int = 1
    """Ranks that each layer of a pipeline is split over; without one the ds_config says."""
    sp: int = 1
    """Ranks that share each sequence."""
    accelerator: str | None = None
    """One of `ACCELERATORS`; None: nobody said."""


ACCELERATORS = ("cuda", "cpu")
UNSPLIT = ExportedLayout()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A configuration and its surroundings."""

    asked: Path
    """The file that was named; it may name another one."""
    path: Path
    """The file that holds it."""
    text: str
    at: tuple[str, ...] = ()
    """The keys of the file under which it lies."""
    config: Mapping[str, Any]
    consumer: Consumer
    because: str
    """What tells the consumer."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainingArguments`, as far as they were given."""
    world: int | None = None
    per_node: int | None = None
    """Ranks of one node; None where nobody says."""
    mixed_precision: str | None = None
    """Accelerate's, where it is given."""
    beside_file: tuple[str, ...] = ()
    """Fields of the accelerate YAML that it refuses beside a `deepspeed_config_file`."""
    launched: str | None = None
    """The ds_config that the launch line names, where it is another file."""
    not_for: str = ""
    """What accelerate runs instead of DeepSpeed, where its YAML says so."""
    layout: ExportedLayout = UNSPLIT
    """For an export: how its script splits the training."""

    @property
    def is_yaml(self) -> bool:
        """Whether the text is YAML; else it is JSON."""
        return self.path.suffix in _YAML

    @property
    def can_write(self) -> bool:
        """Whether a fix may be written: into no file but the one that was named."""
        return self.path == self.asked


class _Accelerate:
    """What an accelerate YAML says; of no file: nothing."""

    def __init__(self, data: Mapping[str, Any], path: Path | None) -> None:
        self.path, self.data = path, data
        section = data.get("deepspeed_config")
        if section is not None and not isinstance(section, Mapping):
            raise JobError(
                f"{path}: deepspeed_config: {section!r} is no section",
                "write `key: value` lines below it, such as `zero_stage: 2`, or "
                "`deepspeed_config_file: ds_config.json`",
            )
        self.section: Mapping[str, Any] = section or {}
        named = text_or_none(self.section.get("deepspeed_config_file"))
        self.file = None if named == "none" else named
        at = f"{path}: num_processes"
        self.n_processes = count(data.get("num_processes"), name=at, words=(_UNSAID,))
        self.n_machines = count(data.get("num_machines"), name=f"{path}: num_machines")
        self.mixed_precision = text_or_none(data.get("mixed_precision"))

    @property
    def beside_file(self) -> tuple[str, ...]:
        if self.file is None:
            return ()
        fields = {*self.section, *({"mixed_precision"} & self.data.keys())}
        return tuple(name for name in ACCELERATE_OWNED if name in fields)

    @property
    def not_for(self) -> str:
        kind = str(self.data.get("distributed_type", "DEEPSPEED"))
        return "" if kind == "DEEPSPEED" else kind


def read_source(
    path: Path,
    *,
    world: int | None = None,
    launch: str | None = None,
    accelerate: Path | None = None,
    consumer: Consumer | None = None,
) -> Source:
    """Read a configuration and whatever goes with it.

    Args:
        path: A ds_config.json; a file with a `deepspeed` key (a path or the section itself)
            beside Hugging Face arguments; or an accelerate YAML.
        world: Ranks; comes before what the others say.
        launch: The line that starts the training.
        accelerate: The accelerate YAML.
        consumer: Who reads the configuration, where nothing else tells.

    Raises:
        RenderError: A file cannot be read.
        JobError: The launch line or the YAML is not one, or says twice what it says, or a value in
            them is none of those that are allowed there.
    """
    asked = path
    line = LaunchLine() if launch is None else read_launch(launch)
    if accelerate is None and line.accelerate_config is not None:
        accelerate = Path(line.accelerate_config)
    text = read_text(path)
    data = _parse(text, path)
    told = {} if accelerate is None else _parse(read_text(accelerate), accelerate)
    yaml_file = _Accelerate(told, accelerate)
    arguments: dict[str, Any] = {}
    at: tuple[str, ...] = ()
    because = ""
    config: Mapping[str, Any] = data
    if accelerate is None and "deepspeed_config" in data and "zero_optimization" not in data:
        yaml_file = _Accelerate(data, path)
        if yaml_file.file is not None:
            path, text, config = _follow(yaml_file.file, path)
        else:
            config, at = _section_as_config(yaml_file), ("deepspeed_config",)
    elif "deepspeed" in data and "zero_optimization" not in data:
        arguments = {
            _SYNONYMS.get(str(name), str(name)): typed(value) if isinstance(value, str) else value
            for name, value in data.items()
        }
        inner = arguments.pop("deepspeed")
        because = f"the deepspeed key of {path}"
        if isinstance(inner, str):
            path, text, config = _follow(inner, path)
        elif isinstance(inner, Mapping):
            config, at = inner, ("deepspeed",)
        else:
            raise JobError(
                f"{path}: deepspeed is {inner!r}, so it has no DeepSpeed configuration",
                "name a ds_config.json there",
            )
    found, why = _consumer(consumer, because, line, launch is not None, yaml_file, config)
    ranks = line.world or yaml_file.n_processes
    nodes = line.n_nodes or yaml_file.n_machines
    return Source(
        asked=asked,
        path=path,
        text=text,
        at=at,
        config=config,
        consumer=found,
        because=why,
        arguments={**arguments, **line.arguments},
        world=world or ranks,
        per_node=line.per_node
        or (ranks // nodes if ranks and nodes and ranks % nodes == 0 else None),
        mixed_precision=line.mixed_precision or yaml_file.mixed_precision,
        launched=_another(line.config, path),
        beside_file=yaml_file.beside_file,
        not_for="" if "--use_deepspeed" in (launch or "") else yaml_file.not_for,
        layout=_layout_beside(path),
    )


def _parse(text: str, path: Path) -> dict[str, Any]:
    is_yaml = path.suffix in _YAML
    return parse_yaml(text, path) if is_yaml else parse_json(text, path)


def _follow(name: str, base: Path) -> tuple[Path, str, dict[str, Any]]:
    """The ds_config that another file names.

    From where one stands, else from beside that file, else from a folder above it.
    """
    near = [Path(name), *(folder / name for folder in base.parents)]
    path = next((one for one in near if os.path.isfile(one)), None)
    if path is None:
        raise RenderError(
            f"{base}: names {name!r}, which is not there", "check the ds_config.json itself"
        )
    text = read_text(path)
    return path, text, parse_json(text, path)


def _section_as_config(file: _Accelerate) -> dict[str, Any]:
    """What accelerate makes of a section without a file (DeepSpeedPlugin.__post_init__)."""
    section = file.section
    devices = {
        kind: section.get(f"offload_{kind}_device", "none") for kind in ("optimizer", "param")
    }
    offload = {
        f"offload_{kind}": {"device": device}
        | ({"nvme_path": section.get(f"offload_{kind}_nvme_path")} if device == "nvme" else {})
        for kind, device in devices.items()
    }
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": section.get("gradient_accumulation_steps", "auto"),
        "zero_optimization": {
            "stage": section.get("zero_stage", 2),
            **offload,
            "stage3_gather_16bit_weights_on_model_save": bool(
                section.get("zero3_save_16bit_model")
            ),
        },
        "gradient_clipping": section.get("gradient_clipping", "auto"),
    }
    if file.mixed_precision in ("fp16", "bf16"):
        config[file.mixed_precision] = {"enabled": True}
    return config


def _consumer(
    given: Consumer | None,
    because: str,
    line: LaunchLine,
    has_line: bool,
    file: _Accelerate,
    config: Mapping[str, Any],
) -> tuple[Consumer, str]:
    """Who reads it, and what tells."""
    if given is not None:
        return given, "it was said"
    if because:
        return Consumer.TRAINER, because
    if line.consumer is not None:
        return line.consumer, "the launch line"
    if file.path is not None:
        return Consumer.ACCELERATE, f"{file.path}"
    if has_line:
        return Consumer.DEEPSPEED, "the launch line"
    said = [".".join(path) for path in autos(config)]
    # Those of zero_optimization tell nothing: DeepSpeed alone runs with them, too.
    told = [name for name in said if name in _TELLING]
    if told:
        return Consumer.TRAINER, f'"auto" at {told[0]}'
    return Consumer.DEEPSPEED, 'nothing is "auto" that somebody else fills in'


def _another(named: str | None, path: Path) -> str | None:
    """The name, where it is certain to be another file.

    A line may be meant for another folder, and a variable for anything.
    """
    if named is None or "$" in named:
        return None
    there = Path(named)
    if os.path.isfile(there):
        return None if there.samefile(path) else named
    return None if there.name == path.name else named


def _layout_beside(path: Path) -> ExportedLayout:
    """The layout of an export, by the settings beside its ds_config; of other files `UNSPLIT`."""
    try:
        settings = read_json(path.parent / SETTINGS_FILE)
    except ContractError:
        return UNSPLIT
    pp, tp, sp = (settings.get(name, 1) for name in ("pp", "tp", "sp"))
    if any(type(degree) is not int or degree < 1 for degree in (pp, tp, sp)):
        return UNSPLIT
    named = settings.get("accelerator")
    accelerator = named if named in ACCELERATORS else None
    if pp == 1:
        return ExportedLayout(sp=sp, accelerator=accelerator)
    if "transformer" in settings:
        return ExportedLayout(pp=pp, tp=tp, accelerator=accelerator)
    return UNSPLIT
