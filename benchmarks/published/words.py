"""Words that published tables use, and the word of `autotune` that each means.

Each column has patterns, of which the first that is found decides. A new word is a line here; a
setting that a row's `settings`, `kernels` or `notes` name is a line in `settings.py`.
"""

import re
from collections.abc import Mapping

from autotune.cost.traits import FRAMEWORKS

WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "loss": (
        # A product with the head inside, so that no logits are kept: Liger's, cut cross entropy.
        (r"chunk|linear|liger|cut|tiled", "chunked"),
        (r"\bno\b|unfused|not fused|eager|plain|torch|none", "eager"),
        (r"fused|inplace|in-place|compile|triton|parallel", "fused"),
    ),
    "attention": (
        (r"\bno\b|unfused|not fused|eager|naive|math|none|core|written", "eager"),
        (r"flash.?(attn|attention)?.?3|fa.?3|cudnn|te\b|transformer.?engine", "flash 3"),
        (r"flash.?(attn|attention)?.?1|fa.?1|triton|xformers|efficient", "flash 1"),
        (r"flash|fa.?2|sdpa|fused|flex|torch|ring|yes", "flash"),
    ),
    "kernels": (
        (r"compile|inductor", "compiled"),
        (r"\bno\b|unfused|not fused|eager|plain|torch|none|\bhf\b", "eager"),
        (r"graph", "graphs"),
        (r"fused|liger|te\b|transformer.?engine|apex|megatron|triton", "fused"),
    ),
    "optimizer": (
        (r"8.?bit|int8|fp8", "adamw 8-bit"),
        (r"adafactor|galore", "adafactor"),
        (r"momentum|adagrad|signum", "sgd momentum"),
        (r"lion", "lion"),
        (r"muon", "muon"),
        (r"sgd", "sgd"),
        (r"adam|lamb", "adamw"),
    ),
    "precision": (
        (r"fp4", "fp4"),
        (r"(fp8|float8).*rowwise", "fp8-rowwise"),
        (r"fp8|float8", "fp8"),
        (r"bf16|bfloat16|amp", "bf16"),
        (r"fp16|float16|half", "fp16"),
        (r"tf32", "tf32"),
        (r"fp32|float32", "fp32"),
    ),
    "memory_meter": (
        (r"reserved", "reserved"),
        (r"allocated|active", "allocated"),
        (r"smi", "device"),
    ),
}
"""Column -> (regular expression, word)."""

STAGES = (
    (r"grad_op", "2"),  # FSDP's SHARD_GRAD_OP
    (r"no_shard", "0"),
    (r"shard|fsdp", "3"),
    (r"dist-opt|distributed.?opt", "1"),
    (r"^(ddp|none|no)$", "0"),
)
NUMBERED_STAGE = re.compile(r"(?:zero|stage|z)?[ _-]*(?:stage[ _-]*)?([0-3])(?:\.0)?(?!\d)")
"""A stage as people write it: 3, zero-3, ZeRO3, stage 2."""

HUGGING_FACE = re.compile(
    r"\bhf\b|hugging|transformers|accelerate|trainer|\btrl\b|lightning|axolotl|llama.?factory"
    r"|\bswift\b"
)
"""Names of what trains Hugging Face's modules. It runs on the assumed framework, FSDP or DDP, as
the stage tells."""
_ANY_TORCH = re.compile(rf"{HUGGING_FACE.pattern}|^(py)?torch$")
WRITTEN_SCORES = re.compile(r"attention[- ]backend[= ]unfused|transformer[- ]impl[= ]local")
"""Words of `notes`: flags of Megatron."""
PURE = (
    re.compile(r"\bpure\b|\btrue\b"),
    re.compile(
        r"\bpure b?f(loat)?16|\bno (fp32|32-bit) master|states in bf(loat)?16|adam in bf16"
    ),
)
"""Words of `precision`, and of `notes`: weights, gradients and moments are all in 16 bits."""
TILED_MLP = re.compile(r"(?<!no )(?<!without )\b(tiled?[ -_]?mlps?|mlp tiles|alst)\b")
"""Words of `kernels`, `loss`, `settings`, `notes` and `framework`: an MLP works on as many tokens
as the model is wide. Source: DeepSpeed, runtime/sequence_parallel/ulysses_sp.py (TiledMLP)."""
AGE = re.compile(r"20[12]\d|\d\d\.\d\d")
RELEASE_IN_NOTES = re.compile(r"\b(?:nemo|container|nv) ?(\d\d\.\d\d)")
"""A year or a container's release, in `software`; such a release, in `notes`."""
FREED_GRADS = re.compile(r"(fused into|step in) backward")
"""Words of `optimizer` and `notes`: each gradient is used and freed as soon as it is there."""
STAGE_LAYOUT = re.compile(r"pipeline-model-parallel-layout=([\w*|()]+)")
REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,3})")
"""Words of `notes`: a layout of stages, which `|` parts, as `Et*3|(tt|)*6L`, so that it says how
many chunks each has."""
NOTED = (
    (re.compile(r"\bdropout on\b"), {"has_dropout": "1"}),
    (re.compile(r"(?<!cured by )expandable_segments"), {"allocator": "expandable_segments"}),
    # PrimeIntellect-ai/prime-rl: log-probabilities of tokens come in chunks, behind no logits.
    (re.compile(r"\btrainer type rl\b"), {"loss": "chunked"}),
    # NVIDIA-NeMo/Automodel, nemo_automodel/components/models/common: `attn: te` unless named else.
    (re.compile(r"\bte \+ (?!.*(flexattn|torchsdpa))"), {"attention": "flash 3"}),
)
"""Words of `notes` -> cells."""


def framework_word(text: str) -> str | None:
    """The word for a framework; empty where the stage has to tell; None: it is not known."""
    spelled = text.lower()
    for traits in FRAMEWORKS:
        if traits.word in spelled:
            return traits.word
    return "" if _ANY_TORCH.search(spelled) else None


def word_of(column: str, text: str) -> str | None:
    """The word of `autotune` for a cell's text in lower case; None: it is not known."""
    return next((word for p, word in WORDS[column] if re.search(p, text)), None)
