"""How long the job's samples are: all alike, packed rows, or drawn from a histogram."""

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.base.user_text import unread
from autotune.base.yaml_file import number_of
from autotune.contract import read_bounded
from autotune.trial.scripts.lengths import batch_lengths, is_drawn, rounded_up

SHORTEST = 2
"""Tokens: a sample of one has no next token to predict, so a micro-batch of it has no loss."""
_LONGEST = 2**31 - 1
_WORDS = ("fixed", "packed")
_KEYS = ("histogram", "pad_to_multiple")
_ALLOWED = (
    "write `lengths: fixed`, `lengths: packed`, `lengths: {histogram: {128: 0.5, 2048: 0.5}}` or "
    "the name of a CSV file of length,count"
)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The lengths of the samples; `docs/job.md` says what each kind trains on."""

    kind: Literal["fixed", "packed", "histogram"] = "fixed"
    histogram: tuple[tuple[int, float], ...] = ()
    """(tokens, weight), shortest first; weights above 0, of any sum. Empty for other kinds."""
    pad_to_multiple: int = 1
    """A micro-batch is padded to its longest sample, rounded up to a multiple of this."""

    def as_spec(self) -> dict[str, Any]:
        if self.kind != "histogram":
            return {} if self.kind == "fixed" else {"kind": "packed"}
        return {
            "kind": "histogram",
            "histogram": [list(pair) for pair in self.histogram],
            "pad_to_multiple": self.pad_to_multiple,
        }

    def as_yaml(self) -> Any:
        """The job's `lengths` key, without the file that it may have come from."""
        if self.kind != "histogram":
            return self.kind
        return {"histogram": dict(self.histogram), "pad_to_multiple": self.pad_to_multiple}

    def mean_tokens(self, global_batch: int, seq_len: int) -> float:
        """Tokens of a sample of a batch, without padding; `seq_len` where all are alike."""
        if self.kind != "histogram":
            return float(seq_len)
        return sum(batch_lengths(self.as_spec(), global_batch)) / global_batch

    @property
    def longest_padded(self) -> int:
        """Tokens of the longest sample of a histogram, as padded; all of a warm-up step are so."""
        return rounded_up(self.histogram[-1][0], self.pad_to_multiple)

    def mean_padded(self, global_batch: int, micro_batch: int) -> float:
        """Tokens of a sample of a histogram as padded, on average over the micro-batches.

        A micro-batch is padded to its longest sample. Of B samples in order, the k-th is the
        longest of m drawn ones with the probability C(k - 1, m - 1) / C(B, m).
        """
        drawn = batch_lengths(self.as_spec(), global_batch)
        share, mean = micro_batch / global_batch, 0.0
        for k in range(global_batch, micro_batch - 1, -1):
            mean += share * rounded_up(drawn[k - 1], self.pad_to_multiple)
            share *= (k - micro_batch) / max(1, k - 1)
        return mean

    def describe(self, global_batch: int) -> str:
        """In a few words, with what a batch cannot show of the histogram; empty for `fixed`."""
        if self.kind != "histogram":
            return "" if self.kind == "fixed" else "packed rows"
        drawn = batch_lengths(self.as_spec(), global_batch)
        total = sum(weight for _, weight in self.histogram)
        mean = sum(length * weight for length, weight in self.histogram) / total
        rare = [str(length) for length, _ in self.histogram if length not in drawn]
        more = f" and {len(rare) - 3} more" if len(rare) > 3 else ""
        text = (
            f"{len(self.histogram)} lengths from {self.histogram[0][0]} to "
            f"{self.histogram[-1][0]} tokens, mean {mean:.0f}, in a batch of {global_batch} "
            f"{sum(drawn) / len(drawn):.0f}"
        )
        return text + (f"; too rare for it: {', '.join(rare[-3:])}{more}" if rare else "")


FIXED = Lengths()


def attended_tokens(lengths: Mapping[str, Any], global_batch: int, seq_len: int) -> float:
    """Tokens that an average token of a batch attends among; `lengths` as in `TrialSpec`."""
    if not is_drawn(lengths):
        return seq_len
    drawn = batch_lengths(lengths, global_batch)
    return sum(length * length for length in drawn) / sum(drawn)


def parse_lengths(value: Any) -> Lengths:
    """Read the job's `lengths`.

    Raises:
        JobError: It is none of the forms, or a length, weight or file is not usable.
    """
    if isinstance(value, Lengths):
        return value
    word: Any = value.lower() if isinstance(value, str) else value
    if word in _WORDS:
        return Lengths(kind=word)
    if isinstance(value, str | Path):
        value = {"histogram": value}
    if not isinstance(value, Mapping) or "histogram" not in value:
        raise JobError(f"lengths: {value!r} is not allowed", _ALLOWED)
    unknown = [str(key) for key in value if key not in _KEYS]
    if unknown:
        known = ", ".join(_KEYS)
        raise JobError(f"lengths.{unknown[0]}: there is no such key", f"known keys: {known}")
    multiple = value.get("pad_to_multiple", 1)
    if type(multiple) is not int or not 1 <= multiple <= _LONGEST:
        raise JobError.of("job.no_multiple", multiple=multiple)
    found = value["histogram"]
    if isinstance(found, str | Path):
        pairs = _from_csv(Path(found))
    elif isinstance(found, Mapping) and found:
        pairs = _checked(found, where="")
    else:
        raise JobError(f"lengths: histogram: {found!r} is not allowed", _ALLOWED)
    return Lengths(kind="histogram", histogram=pairs, pad_to_multiple=multiple)


def check_fits(lengths: Lengths, seq_len: int) -> None:
    """Refuse samples that are longer than the job's sequence.

    Raises:
        JobError: The longest sample, padded, is longer than `seq_len`.
    """
    if lengths.kind != "histogram":
        return
    longest, padded = lengths.histogram[-1][0], lengths.longest_padded
    if padded <= seq_len:
        return
    what = f"the longest sample has {longest} tokens"
    if padded != longest:
        what += f", padded to a multiple of {lengths.pad_to_multiple}: {padded}"
    raise JobError.of("job.longer_samples", what=what, seq_len=seq_len, padded=padded)


def resolve(value: Any, folder: Path) -> Any:
    """The job's `lengths` with the file that it names relative to a folder."""
    if isinstance(value, str) and value.lower() not in _WORDS:
        return os.path.realpath(folder / value)
    if isinstance(value, dict) and isinstance(value.get("histogram"), str):
        return {**value, "histogram": os.path.realpath(folder / value["histogram"])}
    return value


def file_of(value: Any) -> str | None:
    """The file that the job's `lengths` names; None: it names none."""
    if isinstance(value, Mapping):
        value = value.get("histogram")
    return value if isinstance(value, str) and value.lower() not in _WORDS else None


def _checked(found: Mapping[Any, Any], *, where: str) -> tuple[tuple[int, float], ...]:
    for length, weight in found.items():
        if type(length) is not int or not SHORTEST <= length <= _LONGEST:
            raise JobError.of("job.no_length", where=where, length=length, least=SHORTEST)
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise JobError.of("job.no_weight", where=where, length=length, weight=weight)
    return tuple(sorted((length, float(weight)) for length, weight in found.items()))


def _from_csv(path: Path) -> tuple[tuple[int, float], ...]:
    """Lines of length,count; a first line without a digit is a header."""
    try:
        rows = list(csv.reader(read_bounded(path).decode("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        hint = did_you_mean(path.name, _WORDS, most=1) + _ALLOWED
        raise JobError(f"lengths: {path}: {unread(error)}", hint) from error
    weights: dict[int, float] = {}
    for number, row in enumerate(rows, start=1):
        if not row:
            continue
        try:
            length, weight = (number_of(cell.strip()) for cell in row[:2])
            if len(row) != 2 or not isinstance(length, int) or weight is None:
                raise ValueError
            weights[length] = weights.get(length, 0.0) + float(weight)
        except (ValueError, OverflowError) as error:
            if number == 1 and not any(letter.isdigit() for letter in "".join(row)):
                continue
            line = ",".join(row)
            raise JobError.of("job.no_count", path=path, number=number, line=line) from error
    if not weights:
        raise JobError(f"lengths: {path}: holds no lengths", "write lines such as 128,5000")
    return _checked(weights, where=f"{path}: ")
