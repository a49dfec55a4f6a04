"""Folders that look like checkouts of Megatron-LM."""

from pathlib import Path


def checkout_in(folder: Path, minor: int = 16) -> Path:
    """A folder that looks like a checkout of a release, as far as nothing of it is run."""
    (folder / "megatron/core").mkdir(parents=True)
    (folder / "megatron/core/package_info.py").write_text(f"MAJOR = 0\nMINOR = {minor}\n")
    (folder / "pretrain_gpt.py").write_text("")
    return folder
