"""Pipeline parallelism: what DeepSpeed's PipelineModule and our transformer's layers cannot do.

With pp=1 nothing here applies: the model is Hugging Face's, and AutoTP splits it.
"""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule


@rule("autotune/trial/scripts/transformer.py: make_pipeline")
def _heads(setup: Setup) -> Finding | None:
    model = setup.model
    if setup.pp == 1 or model is None:
        return None
    sizes = {"heads": model.n_heads, "key-value heads": model.n_kv_heads}
    if not any(size % setup.tp for size in sizes.values()):
        return None
    uneven = [f"{size} % {setup.tp} = {size % setup.tp} ({name})" for name, size in sizes.items()]
    return Finding(
        message=f"tp={setup.tp} with pp={setup.pp}: the pipeline's transformer splits whole heads "
        f"evenly, and {' and '.join(uneven)}",
        advice="choose a tp that divides both",
    )
