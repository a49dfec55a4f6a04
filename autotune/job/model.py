"""The model to train: a preset, a Hugging Face config, or a factory; and its shape.

Weights are never read: speed and memory follow from the shape. Nothing here imports torch; what
only the built model can tell is asked of a process of its own (`autotune.job.model_probe`).
"""

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.base.child_process import ask
from autotune.base.errors import JobError
from autotune.base.files import write_whole
from autotune.base.names import did_you_mean
from autotune.base.nested import kind_in_words
from autotune.base.private import refuse_prepared, user_cache
from autotune.base.secrecy import scrubbed
from autotune.base.units import format_count
from autotune.base.user_text import unread
from autotune.contract import read_bounded
from autotune.devices.hardware import version_of
from autotune.job.adapters import ALL_LINEAR
from autotune.job.model_families import (
    BESIDE_TEXT,
    Family,
    as_transformers_names_it,
    family_of,
    has_closed_form,
    has_plain_loss,
    is_split_by_ulysses,
    peft_widths,
    shape_by_formula,
)
from autotune.job.model_shape import ModelShape
from autotune.job.published import PUBLISHED, preset_of_repository, unsaid_layers

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""How a callable that builds a model is named: `package.module:factory`."""
_PROBE_TIMEOUT_S = 300.0
_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names that configs have for the number of layers; transformers maps the others to the first."""

_INDEX_KEYS = ("mlp_only_layers", "moe_layers")
"""Keys of configs that list some of the layers by their index."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model by name, with what a trial needs to build it."""

    name: str
    shape: ModelShape
    source: dict[str, Any]
    """`TrialSpec.model`: `{"config": {...}}` or `{"factory": "package.module:name",
    "path": [...]}`, each with `vocab`, the number of token ids, and maybe `lora`."""
    supports_tp: bool
    """Whether DeepSpeed's AutoTP splits it (most Hugging Face architectures, no others)."""
    supports_recompute: bool
    attention: Sequence[str] = Family().attention
    """Values of `attn_implementation` that train it, as far as is known of its architecture."""
    left_out: tuple[str, ...] = ()
    """Models that its config has beside the one of text, which alone is trained: vision."""
    adapts_experts: bool | None = None
    """Whether adapters are on its experts as well; None: it has no adapters, or no experts."""
    expert_blocks: tuple[str, ...] = ()
    """Classes of its blocks whose experts are modules of their own. transformers 5 has a layer's
    experts in one tensor."""

    @property
    def balances_routers(self) -> bool:
        return bool(self.source.get("config", {}).get("output_router_logits"))

    def supports_sp(self, seq_len: int) -> bool:
        """Whether Ulysses is known to split its attention over so many tokens right."""
        config = self.source.get("config")
        return config is not None and is_split_by_ulysses(config, seq_len)

    @property
    def supports_loss_chunks(self) -> bool:
        """Whether its loss is known to be the plain cross entropy of its output head's logits."""
        config = self.source.get("config")
        return config is not None and has_plain_loss(config)

    @property
    def supports_mlp_chunks(self) -> bool:
        """Whether each MLP is known to be a module that takes one token after the other."""
        config = self.source.get("config")
        return config is not None and family_of(config).plain_mlps


def load_model(text: str) -> Model:
    """Find a model by preset name, folder, config.json, repository or `package.module:factory`.

    A repository's name, such as `meta-llama/Llama-3.1-8B`, is looked for in the local cache of
    Hugging Face, then among the presets: nothing is fetched.

    A factory is a callable without arguments that returns a `torch.nn.Module` whose
    `forward(input_ids=, labels=)` returns the loss or an object with `.loss`.

    Raises:
        JobError: There is no such model, or its config or factory is not usable.
    """
    text = without_address(text)
    found = find_model(text)
    if isinstance(found, Path):
        if is_repository(text):
            return model_from_config(text.rpartition("/")[2], _read_config(found), where=text)
        is_whole = found.name == "config.json"
        name = Path(os.path.realpath(found.parent)).name if is_whole else found.stem
        return model_from_config(name, _read_config(found), where=str(found))
    if FACTORY.fullmatch(found):
        source = {"factory": found, "path": [str(Path.cwd())]}
        return _built(found.rpartition(":")[2], source, where=found)
    file = resources.files("autotune.job") / "presets" / f"{found}.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    model = model_from_config(found, config, where=str(file))
    if text == found or PUBLISHED[found].repository.lower().endswith(text.lower()):
        return model
    # What has a preset's sizes may be configured for other positions: Qwen2.5-Math has fewer.
    return replace(model, shape=replace(model.shape, configured_positions=0))


def find_model(text: str) -> Path | str:
    """The config.json, preset or factory that a model's name stands for; nothing is read.

    Raises:
        JobError: There is no such model.
    """
    text = without_address(text)
    found = config_of(text) if is_repository(text) else text
    if isinstance(found, Path) or found in presets():
        return found
    if is_path(text):
        path = Path(os.path.expanduser(text))
        return path / "config.json" if os.path.isdir(path) else path
    if FACTORY.fullmatch(text):
        return text
    if preset := preset_of_repository(text):
        return preset
    if unsaid := unsaid_layers(text):
        raise JobError.of("job.unsaid_model", text=text, unsaid=unsaid)
    raise JobError.of("job.no_model", text=text, near=did_you_mean(text, presets(), alike=0.4))


def is_path(text: str) -> bool:
    """Whether a model that is no preset is named by a file or a folder."""
    return os.path.exists(os.path.expanduser(text)) or "/" in text or text.endswith(".json")


def with_layers(model: Model, n_layers: int) -> Model:
    """The same model with fewer layers, its first ones; everything else stays as it is.

    Of a mixture of experts at least one layer has experts: dense first layers make room.

    Raises:
        JobError: A factory decides on its layers itself, the config does not obey, or a kind of
            layer would be lost.
    """
    if "config" not in model.source:
        raise JobError.of("job.layers_of_factory", name=model.name)
    if n_layers >= model.shape.n_layers:
        raise JobError.of("job.model_layers_not_fewer", model=model, n=n_layers)
    found = _reduced(model, n_layers)
    if model.shape.n_expert_layers and not found.shape.n_expert_layers:
        raise JobError.of("job.experts_lost", model=model, few=format_count(n_layers, "layer"))
    return found


def _reduced(model: Model, n_layers: int) -> Model:
    name, config, n_before = model.name, model.source["config"], model.shape.n_layers
    layer_keys = {key for key in _LAYERS_KEYS if key in config}
    cut = {**config, **dict.fromkeys(layer_keys or _LAYERS_KEYS[:1], n_layers)}
    for key, value in config.items():
        if key in _INDEX_KEYS and isinstance(value, list):
            cut[key] = [index for index in value if index < n_layers]
        elif isinstance(value, list) and len(value) == n_before and not key.endswith("token_id"):
            cut[key] = value[:n_layers]  # such as `layer_types`: a word for every layer
    if type(first := config.get("first_k_dense_replace")) is int:
        cut["first_k_dense_replace"] = min(first, n_layers - 1)
    if family_of(config).dense == "mlp_layer_types":
        kinds = cut.get("mlp_layer_types") or ["dense", *["sparse"] * (n_layers - 1)]
        cut["mlp_layer_types"] = kinds if "sparse" in kinds else [*kinds[:-1], "sparse"]
    found = model_from_config(name, cut, where=f"{name} with {n_layers} layers")
    if found.shape.n_layers != n_layers:
        has = found.shape.n_layers
        raise JobError.of("job.layers_not_obeyed", name=name, n_layers=n_layers, has=has)
    return with_adapters(found, model.source["lora"]) if "lora" in model.source else found


def with_adapters(model: Model, lora: dict[str, Any]) -> Model:
    """The same model with frozen weights and LoRA adapters, as of `Lora.as_source`, counted.

    Raises:
        JobError: The model has none of the target modules, or peft, which counts some, is not
            installed.
    """
    source, shape = {**model.source, "lora": lora}, model.shape
    widths = peft_widths(source["config"], shape) if "config" in source else None
    if widths is None or lora["target_modules"] != ALL_LINEAR:
        if importlib.util.find_spec("peft") is None:
            raise JobError.of("job.no_peft")
        found = _probe(source, where=model.name)
        shape, adapts_experts = _shape(found["shape"]), found["adapts_experts"]
    else:
        trained, passed = (lora["rank"] * width for width in widths)
        widest = max(shape.hidden, shape.attention_width, shape.ffn_hidden)
        shape = replace(
            shape,
            n_params=trained,
            n_params_frozen=shape.n_params,
            n_params_active=shape.n_params_active + passed,
            largest_param=max(shape.largest_param, lora["rank"] * widest),
        )
        adapts_experts = family_of(source["config"]).adapts_experts
    known = adapts_experts if shape.n_experts > 1 else None
    return replace(model, shape=shape, source=source, adapts_experts=known)


def presets() -> list[str]:
    """Names of the models that are shipped."""
    folder = resources.files("autotune.job") / "presets"
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


_NEEDLESS = re.compile(
    r"_name_or_path|_commit_hash|_auto_class|.*(comment|note|description|readme)s?"
    r"|transformers_version|task_specific_params|custom_pipelines|chat_template|generation_config"
    r"|prompts?|env|environ|environment|(name|model|tokenizer)_(or_)?(path|file|class)|license.*"
    r"|author\w*|user(name)?|urls?|homepage|citation|tags"
)
"""Keys of a model's config that say whose it is and where from: its shape follows from others."""


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_bounded(path).decode("utf-8"))
    except FileNotFoundError as error:
        raise JobError.of("job.no_config", path=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"model: {path}: {unread(error)}", "name a readable config.json") from error
    except (ValueError, RecursionError) as error:
        raise JobError(f"model: {path}: not valid JSON: {error}", "mend it there") from error
    if not isinstance(config, dict):
        raise JobError.of("job.config_no_object", path=path, kind=kind_in_words(config))
    # No weights are asked for, so no key to them: what looks like one is neither kept nor shown.
    needed = {key: value for key, value in config.items() if not _NEEDLESS.fullmatch(key)}
    clean: dict[str, Any] = scrubbed(needed)
    return clean


def model_from_config(name: str, config: dict[str, Any], *, where: str) -> Model:
    """The model of a Hugging Face config; errors say `where` it came from.

    Raises:
        JobError: It names no architecture, or sizes that cannot be.
    """
    whole, config = config, as_transformers_names_it(config, where)
    left_out = tuple(n for key, n in BESIDE_TEXT.items() if key in whole and key not in config)
    is_inside = "text_config" in whole and "text_config" not in config
    if not has_closed_form(config):
        return _built(name, {"config": config}, where=where)
    shape = shape_by_formula(config, f"{where}: text_config" if is_inside else where)
    return Model(
        name=name,
        left_out=left_out,
        shape=shape,
        source={"config": config, "vocab": shape.vocab},
        supports_tp=family_of(config).autotp,
        supports_recompute=True,
        attention=family_of(config).attention,
    )


def _built(name: str, source: dict[str, Any], *, where: str) -> Model:
    found = _probe(source, where=where)
    shape = _shape(found.pop("shape"))
    found["expert_blocks"] = tuple(found["expert_blocks"])
    return Model(name=name, shape=shape, source={**source, "vocab": shape.vocab}, **found)


def _shape(answer: dict[str, Any]) -> ModelShape:
    return ModelShape(**{**answer, "dense_layers": tuple(answer.get("dense_layers", ()))})


def _probe(source: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Build the model without memory in a process of its own and ask it for its shape.

    The answer of a config is kept in the user's cache: to build it takes up to a minute.
    """
    asked = functools.partial(
        ask,
        module="autotune.job.model_probe",
        request=source,
        about=f"model: {where}",
        doing="building it",
        timeout_s=_PROBE_TIMEOUT_S,
        if_slow="a factory builds the module alone: no data, no weights, no network",
        if_dead="build it in a Python shell to see why",
    )
    if "config" not in source:  # a factory is code, which may have changed
        return asked()
    kept = user_cache() / "shapes" / f"{_fingerprint(source)}.json"
    with contextlib.suppress(OSError, ValueError):
        refuse_prepared(kept)
        found: dict[str, Any] = json.loads(read_bounded(kept))
        return found
    found = asked()
    with contextlib.suppress(OSError):  # it is built anew next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, lambda aside: aside.write_text(json.dumps(found)))
    return found


def _fingerprint(source: dict[str, Any]) -> str:
    """Digest of a source and of what decides on its shape: our code, what is installed."""
    installed = map(str, map(version_of, ("torch", "transformers", "peft")))
    beside = ("model_probe.py", "model_shape.py", "names.json")
    code = (Path(__file__).with_name(name).read_text() for name in beside)
    facts = (json.dumps(source, sort_keys=True), *installed, *code)
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_ADDRESS = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"(?P<name>[\w.-]+(?:/(?!(?:tree|blob|resolve)\b)[\w.-]+)?)(?:[/?#].*)?",
    re.IGNORECASE,
)


def without_address(text: str) -> str:
    """The name of the repository whose page an address shows; any other text as it is."""
    page = _ADDRESS.fullmatch(text.strip())
    return text if page is None else page["name"]


def is_repository(text: str) -> bool:
    """Whether a model is named as a repository is, and no file or folder has the name."""
    is_name = _REPOSITORY.fullmatch(text) is not None and not text.endswith(".json")
    return is_name and not os.path.exists(text)


def config_of(repository: str) -> Path | str:
    """The config.json of a repository in the local cache, or the name of the preset like it.

    Raises:
        JobError: Neither is there, and the hint is the command that fetches it; or no repository
            has such a name.
    """
    path: object = None
    try:
        from huggingface_hub import try_to_load_from_cache  # heavy, and only for such names

        path = try_to_load_from_cache(repository, "config.json")
    except ImportError:  # whoever lacks it has no such cache either
        pass
    except ValueError as error:  # HFValidationError: no repository can have the name
        raise JobError.of("job.no_repository", repository=repository, error=error) from error
    if isinstance(path, str):
        return Path(path)
    if preset := preset_of_repository(repository):
        return preset
    unsaid = unsaid_layers(repository)
    alike = preset_of_repository(repository.rpartition("/")[2])
    other = f"the preset {alike} has another owner's model of that name; or " if alike else ""
    only = f"; its {unsaid} cannot be predicted, only traced and trained" if unsaid else ""
    raise JobError.of("job.not_in_cache", repository=repository, other=other, only=only)
