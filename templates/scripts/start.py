"""What a training from a model's config alone needs: a tokenizer, and text for it.

`prepare` writes both to the folder `start`, which the configuration names: replace the names there
by those of your model and your data, and this file is not needed.
"""

import json
import os
import random
import shutil
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
START = HERE / "start"
WORDS = 256
"""Most words that the tokenizer knows: numbers in brackets."""


def prepare() -> None:
    """Write the folder, once: every other rank of this machine waits for it."""
    settings = json.loads((HERE / "settings.json").read_text(encoding="utf-8"))
    if settings["accelerator"] == "cpu":
        cores, rank = sorted(os.sched_getaffinity(0)), int(os.environ.get("LOCAL_RANK", "0"))
        os.sched_setaffinity(0, [cores[rank % len(cores)]])
    if int(os.environ.get("LOCAL_RANK", "0")) == 0 and not START.exists():
        beside = START.with_name(f"start.{os.uname().nodename}.{os.getpid()}")
        _write(beside, settings)
        try:
            beside.rename(START)
        except OSError:  # another machine was first, in a folder that both see
            shutil.rmtree(beside)
    while not START.exists():
        time.sleep(0.1)


def _write(folder: Path, settings: dict[str, int]) -> None:
    shutil.copytree(HERE / "model", folder)
    words = {f"<{number}>": number for number in range(min(WORDS, settings["vocab"]))}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<0>", "special": True, **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<0>"},
    }
    names = {f"{name}_token": "<0>" for name in ("eos", "pad", "unk")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    drawn = random.Random(settings["seed"])
    known = [word for word in words if word != "<0>"]
    rows = [
        json.dumps({"text": " ".join(drawn.choices(known, k=settings["seq_len"]))})
        for _ in range(8 * settings["global_batch"])
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "text.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    columns = {"text": {"file_name": "text.jsonl", "columns": {"prompt": "text"}}}
    (folder / "dataset_info.json").write_text(json.dumps(columns), encoding="utf-8")
