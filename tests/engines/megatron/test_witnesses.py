"""Each rule of Megatron's own is refused by the real Megatron, or says why nobody sees it here."""

from autotune.engines.megatron.rules import OF_TRANSFORMER_ENGINE, RULES
from tests.engines.megatron.test_reality import REFUSED


def test_rules_of_megatrons_own_have_a_witness() -> None:
    """All but those that its script checks before it builds anything, and that CPU ranks lack."""
    unseen = {
        "sequence.positions": "rotary positions go on for ever; Megatron-LM's script refuses",
        "cp.sequence": "context parallelism needs kernels of a GPU",
        "cp.fused_attention": "context parallelism needs kernels of a GPU",
        "ep.ranks": "the grid of experts: more than two axes at once",
        "vp.pipeline": "Megatron-LM's script refuses",
        "vp.groups": "no knob sets the group: launches alone do",
        "batch.product": "Megatron-LM's script refuses",
        "recompute.block": "more layers than there are are all of them",
        "uneven.pipeline": "with one stage nothing asks for its size",
        "uneven.ends": "Megatron-LM's script and configuration refuse",
        "etp.experts": "the width of an expert, as `tp.ffn`",
        "etp.replicas": "it trains on, with gradients that are summed over other ranks",
        **dict.fromkeys(
            ("stages.alone", "stages.count", "stages.layers", "stages.ends", "stages.mtp"),
            "tests/engines/megatron/test_stages.py asks Megatron Core's own class",
        ),
        "dispatcher.ranks": "DeepEP and HybridEP need a GPU",
        **dict.fromkeys(
            ("fused_experts.split", "fused_experts.recompute"),
            "the kernel needs Transformer Engine",
        ),
        "stages.mtp_on_first_rank": "it hangs, or trains with an embedding that differs",
        "stages.tracked_losses": "Megatron-LM's script alone sums them",
        **dict.fromkeys(
            (
                *("overlap_experts.precision", "overlap_experts.chunks"),
                *("overlap_experts.dispatcher", "overlap_experts.mtp", "overlap_experts.ranks"),
                *("overlap_experts.recompute", "overlap_experts.shared"),
                *("delay_weight_grads.overlap", "overlap_shared_experts.dispatcher"),
                *("recompute_modules.latent", "recompute_modules.grouped", "cuda_graphs.offload"),
                *("cuda_graphs.recompute", "cuda_graphs.moe_recompute", "cuda_graphs.experts"),
                "cuda_graphs.overlap",
                "recompute_modules.shared_overlap",
            ),
            "tests/engines/megatron/test_stages.py asks Megatron Core's configuration",
        ),
        "fsdp.sharded": "Megatron-LM's script turns it on",
        **dict.fromkeys(
            (
                *("overlap.gather_needs_reduce", "overlap.p2p", "fp8.gather"),
                *("overlap.tp_needs_sequence_parallel", "optimizer_offload.fp8"),
            ),
            "Megatron-LM's script refuses",
        ),
        "optimizer_offload.sharded": "the hybrid optimizer needs a GPU",
        "adam_moments.sharded": "Megatron-LM's script refuses",
        "fp4.fp8": "Megatron-LM's script refuses",
        **dict.fromkeys(
            (
                f"{knob}.transformer_engine"
                for knob in (*OF_TRANSFORMER_ENGINE, "recompute_modules", "sequence_parallel")
            ),
            "they are about GPUs alone",
        ),
    }
    of_megatron = {rule.name for rule in RULES if not rule.source.startswith("ours")}
    assert of_megatron == REFUSED.keys() | unseen.keys()
