"""A launch line with other flags and variables; the rest of its file as it was written."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.check.edit import Edit, spliced
from autotune.engines.launches.line import parts_of
from autotune.engines.launches.shell import Command, ShellText, Word
from autotune.patch.wanted import FileChange

_FLAG = re.compile(r"--?([A-Za-z_][\w-]*)(=)?")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:[eE][-+]?\d+)?")


def edited_line(
    text: str, shell: ShellText, command: Command, changes: Sequence[FileChange]
) -> str:
    """The text of a shell file after changes of one of its commands."""
    return spliced(text, _ShellLine(text, shell, command).edits(changes))


class _ShellLine:
    def __init__(self, text: str, shell: ShellText, command: Command) -> None:
        self._text, self._shell, self._command = text, shell, command
        self._words = command.words
        self._parts = parts_of([word.text for word in self._words])

    def edits(self, changes: Sequence[FileChange]) -> Iterator[Edit]:
        new: dict[str, list[str]] = {"script": [], "launcher": [], "variables": []}
        for change in changes:
            name = change.at[-1]
            if change.of == "variables":
                found = self._command.variables.get(name) or self._shell.exported.get(name)
                if found is None:
                    new["variables"].append(f"{name}={_quoted(change.value)} ")
                else:
                    yield Edit(start=found.start, end=found.end, text=_quoted(change.value))
                continue
            there = self._flag(name, change.of)
            if there is not None:
                yield self._replaced(there, change.value)
            elif change.value is not None:
                new[change.of].append(_flag_text(name, change.value, change.of))
        if new["variables"]:
            start = self._command.start
            yield Edit(start=start, end=start, text="".join(new["variables"]))
        if new["launcher"]:
            at = self._words[max(self._parts.launcher_at, 0)].own_end
            yield Edit(start=at, end=at, text="".join(f" {one}" for one in new["launcher"]))
        if new["script"]:
            at = self._words[max(self._parts.script_flags.stop - 1, 0)].own_end
            gap = self._gap()
            yield Edit(start=at, end=at, text="".join(f"{gap}{one}" for one in new["script"]))

    def _flag(self, name: str, of: str) -> int | None:
        """The number of the word with a flag; of one that is there twice, the last counts."""
        parts = self._parts
        numbers = parts.script_flags if of == "script" else parts.launcher_flags
        for number in reversed(numbers):
            found = _FLAG.match(self._words[number].text)
            if found is not None and found[1].replace("-", "_") == name:
                return number
        return None

    def _replaced(self, number: int, value: Any) -> Edit:
        word = self._words[number]
        name, equals, _ = word.text.partition("=")
        following = self._words[number + 1] if number + 1 < len(self._words) else None
        takes = following is not None and _is_value(following.text)
        if equals:
            return self._put(word, f"{name}={_quoted(_as_text(value))}")
        if takes and following is not None:
            return self._put(following, _quoted(_as_text(value)))
        return Edit(start=word.end, end=word.end, text=f" {_quoted(_as_text(value))}")

    @staticmethod
    def _put(word: Word, text: str) -> Edit:
        return Edit(start=word.start, end=word.end, text=text)

    def _gap(self) -> str:
        """What stands between the last two words: a new line where each has one of its own."""
        for before, word in zip(self._words[-2::-1], self._words[:0:-1], strict=False):
            gap = self._text[before.own_end : word.start] if before.own_end <= word.start else ""
            if "\\" in gap and not gap.strip(" \t\r\n\\"):
                return gap
        return " "


def _is_value(text: str) -> bool:
    return not text.startswith("-") or _NUMBER.fullmatch(text) is not None


def _flag_text(name: str, value: Any, of: str) -> str:
    if value is True and of == "launcher":
        return f"--{name}"
    return f"--{name} {_quoted(_as_text(value))}"


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(value)


def _quoted(text: Any) -> str:
    return shlex.quote(str(text))
