"""The changes of a training's arguments with which they mean a candidate."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.devices.hardware import version_of
from autotune.engines.deepspeed.rules.releases import release_of
from autotune.engines.deepspeed.sources.reading import SYNONYMS, as_arguments
from autotune.engines.deepspeed.sources.training import (
    ATTENTION_SWITCHES,
    AXOLOTL,
    CHECKPOINTING,
    DEFAULT_OPTIM,
    EVERY,
    FACTORY,
    FLASH_ATTN,
    NOT_CHECKPOINTING,
    completed,
    optimizer_argument,
    options_of,
    script_knobs,
)
from autotune.patch.wanted import IN_CODE, Left, Wanted
from autotune.space.script import IMPLEMENTATIONS

_NEW_NAME_IN = "5.23"
"""Release of transformers from which on `activation_checkpointing` is taken for its name."""
_BATCH = {
    "micro_batch": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
}


class ArgumentChanges:
    """What has to change in arguments of Trainer's or of a reader that hands them to it."""

    def __init__(
        self, given: Mapping[str, Any], reader: str, wanted: Wanted, *, has_optimizer: bool
    ) -> None:
        """The arguments by the names under which they stand.

        Args:
            given: They.
            reader: Who reads them, where it has a name.
            wanted: The candidate.
            has_optimizer: Whether a ds_config beside them chooses the optimizer.
        """
        self._given, self._reader, self._wanted = given, reader, wanted
        self._has_optimizer = has_optimizer
        self.names: dict[str, Any] = {}
        """Name -> value."""
        self.left: list[Left] = []
        self._batch()
        self._recompute()
        self._attention()
        self._compile()
        self._implementation()

    def _now(self) -> dict[str, Any]:
        arguments = as_arguments({**self._given, **self.names})
        return completed(arguments, self._reader, self._wanted.candidate.world)

    def _name(self, name: str) -> str:
        """The name of an argument here."""
        others = [other for other, meant in SYNONYMS.items() if meant == name]
        is_axolotls = self._reader == AXOLOTL and others
        return next((o for o in others if is_axolotls or o in self._given), name)

    def _batch(self) -> None:
        candidate = self._wanted.candidate
        if self._wanted.keeps_batch:
            return
        sizes = {"micro_batch": candidate.micro_batch, "grad_accum": candidate.grad_accum}
        for is_given in (True, False):  # what is there already may bring the other along
            for knob, name in _BATCH.items():
                own = self._name(name)
                if (own in self._given) is not is_given or self._now()[name] == sizes[knob]:
                    continue
                if own not in self._given and name in self._wanted.in_code:
                    self.left.append(Left(what=f"{name}={sizes[knob]}", place=IN_CODE))
                else:
                    self.names[own] = sizes[knob]

    def _recompute(self) -> None:
        want = str(self._wanted.candidate.get("recompute", "none"))
        have = script_knobs(self._now(), self._reader)["recompute"]
        if want == have:
            return
        if self._reader == FACTORY:
            if want in ("none", "full"):
                self.names[NOT_CHECKPOINTING] = want == "none"
                return
        elif not want.startswith("every_"):
            self._switch(want == "full")
            return
        elif self._reader != AXOLOTL and _knows_every(self._given):
            self._switch(True, every=int(want.removeprefix("every_")))
            return
        who = self._reader or "this release of transformers"
        self.left.append(
            Left(
                what=f"recompute={want}", place=f"the model's code: {who} takes all layers or none"
            )
        )

    def _switch(self, is_on: bool, *, every: int = 1) -> None:
        given = [name for name in CHECKPOINTING if name in self._given]
        name = given[0] if given else _checkpointing(self._reader)
        if self._given.get(name) is not is_on:
            self.names[name] = is_on
        kwargs = next(
            (f"{n}_kwargs" for n in CHECKPOINTING if f"{n}_kwargs" in self._given),
            f"{name}_kwargs",
        )
        options = options_of(self._given.get(kwargs))
        if is_on and options.get(EVERY, 1) != every:
            self.names[kwargs] = {**options, EVERY: every}

    def _attention(self) -> None:
        want = self._wanted.candidate.get("attention")
        have = script_knobs(self._now(), self._reader).get("attention", "default")
        if want in (None, "default", have) or self._wanted.is_own("attention"):
            return  # by default nobody chose one: the user's stays
        if self._reader == FACTORY:
            self.names["flash_attn"] = next(n for n, knob in FLASH_ATTN.items() if knob == want)
            return
        if self._reader == AXOLOTL:
            for name, knob in ATTENTION_SWITCHES.items():
                if knob == want or self._given.get(name) is True:
                    self.names[name] = knob == want
            return
        if "attn_implementation" in self._given:
            self.names["attn_implementation"] = want
            return
        self.left.append(
            Left(
                what=f"attention={want}",
                place="attn_implementation where the script builds the model",
            )
        )

    def _compile(self) -> None:
        want = self._wanted.candidate.get("compile")
        have = script_knobs(self._now(), self._reader)["compile"]
        if want in ("none", "torch") and want != have:
            self.names["torch_compile"] = want == "torch"

    def _implementation(self) -> None:
        """Whose Adam, where no ds_config says."""
        name = "optimizer.implementation"
        want = self._wanted.candidate.get(name)
        if want is None or self._has_optimizer or self._wanted.is_own(name):
            return
        own = optimizer_argument(self._reader)
        have = IMPLEMENTATIONS.get(str(self._given.get(own, DEFAULT_OPTIM)))
        if have is None or self._wanted.alone(name, have) == want:
            return  # another optimizer than Adam is the user's choice, and no knob's
        if self._wanted.candidate.get("offload.optimizer", "none") != "none":
            return  # accelerate brings DeepSpeed's
        there = next((optim for optim, knob in IMPLEMENTATIONS.items() if knob == want), None)
        if there is not None:
            self.names[own] = there
        else:
            self.left.append(
                Left(what=f"{name}={want}", place="a section optimizer of the ds_config")
            )


def _checkpointing(reader: str) -> str:
    """The name that the installed transformers has, where nobody wrote one."""
    new, old = CHECKPOINTING
    return new if not reader and _has_new_name() else old


def _has_new_name() -> bool:
    return release_of(version_of("transformers") or "") >= release_of(_NEW_NAME_IN)


def _knows_every(given: Mapping[str, Any]) -> bool:
    return _has_new_name() or any(EVERY in options_of(v) for v in given.values())


def of_script(wanted: Wanted, *, has_arguments: bool) -> Iterator[Left]:
    """What no file carries: the script does it, or nobody."""
    candidate = wanted.candidate
    for name, chosen in wanted.in_words.items():
        yield Left(
            what=f"{name}={chosen}",
            place=f"the word of your command that the search got as {{{name}=...}}",
        )
    if candidate.pp > 1:
        yield Left(
            what=f"pp={candidate.pp}", place="the script: a PipelineModule of so many stages"
        )
    if candidate.sp > 1:
        yield Left(
            what=f"sp={candidate.sp}",
            place="the script: it splits each sequence over so many ranks",
        )
    if (tokens := candidate.get("loss_chunk_tokens", 0)) != 0:
        yield Left(
            what=f"loss_chunk_tokens={tokens}",
            place="the script: it computes the loss in pieces, as train.py of an export does",
        )
    if (tokens := candidate.get("mlp_chunk_tokens", 0)) != 0:
        yield Left(
            what=f"mlp_chunk_tokens={tokens}",
            place="the script: it computes each MLP in pieces, as train.py of an export does",
        )
    if (where := candidate.get("offload.activations", "none")) != "none":
        yield Left(
            what=f"offload.activations={where}",
            place="the script: forward and backward inside DeepSpeed's "
            "get_checkpoint_hidden_states_offloading_ctx_manager()",
        )
    if candidate.get("compile") == "deepcompile":
        yield Left(what="compile=deepcompile", place="the script: it calls engine.compile()")
    if has_arguments:
        return
    for name in ("recompute", "attention", "compile"):
        value = candidate.get(name)
        if value is None or value == "deepcompile" or wanted.is_untouched(name):
            continue
        yield Left(what=f"{name}={value}", place=f"the script{_HOW[name]}")


_HOW = {
    "recompute": ": model.gradient_checkpointing_enable()",
    "attention": ": attn_implementation where it builds the model",
    "compile": ": torch.compile, or engine.compile()",
}
