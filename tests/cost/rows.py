"""A row of a table of training runs, for the tests to change."""

ROW = {
    "id": "a-1",
    "source": "someone/somewhere@1 README.md:1",
    "model_name": "GPT-8B",
    "n_layers": "40.0",
    "hidden": "4096.0",
    "ffn_hidden": "16384",
    "n_heads": "32",
    "n_kv_heads": "32",
    "vocab": "50000",
    "gated_mlp": "no",
    "tied_embeddings": "yes",
    "seq_len": "2048",
    "gpu_type": "A100",
    "gpu_mem_gb": "80",
    "n_gpus": "64",
    "gpus_per_node": "8",
    "interconnect": "8x200Gb",
    "tp": "4",
    "pp": "2",
    "vp": "1",
    "cp": "1",
    "ep": "",
    "dp": "8",
    "zero_stage": "1",
    "sp": "no",
    "micro_batch": "2",
    "global_batch": "128",
    "recompute": "full",
    "offload": "none",
    "precision": "bf16",
    "framework": "megatron",
    "step_time_s": "12.5",
    "peak_mem_gb": "40",
    "status": "ok",
}


def row(**changes: str) -> dict[str, str]:
    """The row with some cells changed."""
    return {**ROW, **changes}


def csv_text(*rows: dict[str, str], columns: tuple[str, ...] = tuple(ROW)) -> str:
    """A table with a header."""
    lines = [columns, *([one.get(name, "") for name in columns] for one in rows)]
    return "\n".join(",".join(cells) for cells in lines) + "\n"
