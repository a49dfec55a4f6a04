"""The price of an accelerator as it is typed: one for all, or one for each kind."""

import re
from contextlib import suppress

from autotune.base.errors import JobError


def price_for(text: str, device_name: str, *, where: str) -> float | None:
    """Price of an hour of an accelerator; None: the text names none of its kind.

    Args:
        text: `2.5`, or `H100=2.5,A100=1.2`, where words of a device's name come first.
        device_name: The accelerator's. Where several kinds fit, the longest counts; `H200` is no
            word of `GH200`.
        where: Flag or key that the text is from.

    Raises:
        JobError: It is neither.
    """
    with suppress(ValueError):
        return float(text)
    prices: dict[str, float] = {}
    for part in text.split(","):
        words, _, number = part.rpartition("=")
        try:
            prices[words.strip().casefold()] = float(number)
        except ValueError:
            prices[""] = 0.0
    if "" in prices or not all(price > 0 for price in prices.values()):
        raise JobError.of("job.no_price", where=where, text=text)
    name = device_name.casefold()
    fits = (kind for kind in prices if re.search(rf"(?<!\w){re.escape(kind)}(?!\d)", name))
    return prices.get(max(fits, key=len, default=""))
