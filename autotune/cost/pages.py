"""What a CPU rank waits for while the kernel clears pages of memory that it handed back."""

import numpy as np

from autotune.cost.activations import activations_of
from autotune.cost.constants import Constants
from autotune.cost.plans import Column, Plans
from autotune.cost.sizes import Sizes

_LARGEST_KEPT_BLOCK_BYTES = 32.0 * 2**20
"""glibc maps a larger block on its own and unmaps it when it is freed: mallopt(3),
M_MMAP_THRESHOLD, whose dynamic threshold goes no higher."""
_KEPT_BYTES = 2.0 * _LARGEST_KEPT_BLOCK_BYTES
"""Free memory at its top that the heap keeps: M_TRIM_THRESHOLD goes up to twice that."""
PAGE_BYTES = 4096.0
_WIDE = 4.0
"""Bytes of a logit in the loss, whatever the layers compute in."""


def pages_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Time of one micro-batch for pages that were the rank's before and have to be cleared anew.

    Blocks above glibc's largest threshold come from the kernel each time: the logits of a long
    vocabulary. All other blocks count as far as a micro-batch holds more than the heap keeps.
    """
    if not np.any(p.clears_pages):
        return 0.0
    a = activations_of(p, s)
    chunk = np.where(np.greater(p.loss_chunk_tokens, 0), p.loss_chunk_tokens, np.inf)
    logit_block = np.minimum(s.tokens, chunk) * s.loss_vocab * _WIDE
    is_mapped = np.greater(logit_block, _LARGEST_KEPT_BLOCK_BYTES)
    mapped = is_mapped * s.tokens * s.loss_vocab * p.logit_bytes
    held = a.first_stage_bytes + a.working_bytes + (1.0 - is_mapped) * a.logits_bytes
    cleared = mapped + np.maximum(0.0, held - _KEPT_BYTES)
    page_s = np.where(np.greater(p.page_s, 0), p.page_s, c.page_s)
    return p.clears_pages * cleared / PAGE_BYTES * page_s
