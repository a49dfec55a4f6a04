"""Secrets: what is taken for one, by its name or by how it begins, is written nowhere.

One scrubber for every record, file and message. A secret under a plain name, without a form of
its own, is not seen: SECURITY.md says what is promised.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"
"""Stands where a secret did."""
_SURE = re.compile(
    r"passw|passphrase|secret(?!ar|io)|credential|authorization|cookie(?!cutter)|bearer|"
    r"(?:api|access|private|auth|account|ssh)keys?$|(?:access|auth|hf|gh|refresh)tokens?$"
)
"""What names a secret whatever its value is, in a name without its gaps."""
_LAST = ("token", "key", "pwd", "pass", "auth")
"""Words that name a secret at the end of a name, if its value is a text."""
_NOT_BEFORE = re.compile(
    "bos|eos|pad|unk|sep|cls|mask|image|img|video|audio|start|end|special|boi|eoi|decoder|prefix|"
    "suffix|eot|eod|next|first|last|each|tool|text|think|content|function|call|query|task|role|"
    "sort|primary|foreign|index|dict|cache|dataset|metric|label|group|partition|attention|cross|"
    "head|value|q|k|v|batch|model|config|sample|data|no|input|output|state|param|layer|module|"
    "weight|split|id|score|map|feature|field|prompt|response|message|messages|forward|backward|"
    "compile|unexpected|missing|chosen|rejected|step"
)
"""Words before one of `_LAST` that make it a setting of a model or a place in a table."""
_PLAIN_VALUE = re.compile(
    r"\W*|auto|none|null|true|false|<.*>|\[[^\[\]]*\]|[-+]?[\d.]+(?:e[-+]?\d+)?|\$\{?[A-Z_]+\}?|/.*",
    re.IGNORECASE | re.DOTALL,
)
"""Values of `_LAST` that are no secret: numbers, settings, special tokens, variables, paths."""
_NO_VALUE = re.compile(r"\W*|auto|none|null|true|false|\$\{?[A-Z_]+\}?", re.IGNORECASE)
"""Values that are no secret whatever their name is."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}"
    r"|sk[-_](?=[\w-]{0,99}\d)[\w-]{12,}|xox[a-z]-[\w-]{8,}|A(?:KIA|SIA)[A-Z0-9]{12,}"
    r"|AIza[\w-]{20,}|glpat-[\w-]{10,}|npm_[A-Za-z0-9]{16,}"
    r"|eyJ[\w-]{8,999}\.[\w-]{2,}(?:\.[\w-]*)?)",
    re.DOTALL,
)
"""Private keys, and tokens that begin as Hugging Face, GitHub, OpenAI, Slack, AWS, Google, GitLab,
npm and the makers of web tokens have them begin."""
_AROUND = re.compile(
    r"(://)(?!git@)[^\s\"'<>,;/?#@]{1,600}(?:@[^\s\"'<>,;/?#@]{1,99})?(?=@\S)"  # user:password@
    r"|(\bbearer\s{1,9})(?=[\w.~+/=-]{0,99}[\d=._+/-])[\w.~+/=-]{4,}"
    r"|(\b(?:authorization|cookie)[\"']?+\s{0,9}+:\s{0,9}+[\"']?+)(?![\[{*])[^\"'\n\r]+"
    r"|([?&;](?:sig|signature|key)=)[^\s&#;\"'<>]+",
    re.IGNORECASE,
)
"""An address with a password, headers, and a signature in an address."""
_NAMED = re.compile(
    r"(?P<dash>(?<![\w-])--?)?(?<![\w.])(?P<name>[A-Za-z_][\w.-]{0,120}+)(?P<quote>\\?[\"']?)"
    r"(?P<joint>[ \t]{0,9}[=:]{1,2}>?[ \t]{0,9}(?:[|>][-+]?[ \t]{0,9})?"
    r"(?:\r?\n(?:[ \t]{1,40}(?:-[ ])?|-[ ]))?|,?\s{1,20}(?:-[ ])?)"
)
"""A name and what joins it to its value."""
_VALUE = re.compile(
    r"\\\"[^\"\n]{0,4000}\"?|[bruf]?(?:\"(?:[^\"\\\n]|\\.){0,4000}\"?|'(?:[^'\\\n]|\\.){0,4000}'?)|"
    r"\[[^\]]{0,2000}\]|\{[^}]{0,2000}\}|[^\s\"'`,;&|)}\]<>]{1,4000}"
)
_LEAST_KNOWN = 8
"""Shortest text that is looked for because it is known as a secret: shorter ones are words."""


def is_secret(name: object) -> bool:
    """Whether a variable or a key of this name is taken to hold a secret."""
    return _strength(str(name)) > 0  # YAML has keys that are no text


@lru_cache(maxsize=4096)
def _strength(name: str) -> int:
    """How surely a name is that of a secret: 2 whatever the value, 1 for a text, 0 none."""
    words = [word.lower() for word in _WORD.findall(name[-200:])] or [""]
    if _SURE.search("".join(words)):
        return 2
    if words[-1] not in _LAST or words in (["key"], ["pass"], ["auth"]):
        return 0
    return int(_NOT_BEFORE.fullmatch(words[-2:][0]) is None)


def holds_secret(name: object, value: Any) -> bool:
    """Whether a key with this value is taken to hold a secret.

    A switch holds none, and a number only where the name leaves no doubt and it has some digits.
    """
    strength = _strength(str(name))
    if isinstance(value, int | float):
        return strength == 2 and value >= 1000
    plain = _NO_VALUE if strength == 2 else _PLAIN_VALUE
    return strength > 0 and any(plain.fullmatch(text) is None for text in texts_of(value))


def scrubbed_text(text: str, known: Iterable[str] = ()) -> str:
    """A text with `***` for what is taken for a secret in it; all else as it is written.

    Args:
        text: Any text.
        known: Texts that are secrets, such as `withheld` found in a file that the text tells of.
    """
    return _without(text, (*known, *_known_secrets(tuple(os.environ.items()))))


@lru_cache(maxsize=4096)
def _without(text: str, known: tuple[str, ...]) -> str:
    for secret in known:
        if len(secret) >= _LEAST_KNOWN:
            text = text.replace(secret, HIDDEN)
    text = _FORMS.sub(HIDDEN, text)
    text = _AROUND.sub(lambda found: f"{found[found.lastindex or 0]}{HIDDEN}", text)
    parts, at = [], 0
    for named in _NAMED.finditer(text):
        is_looked_at = named.start() >= at and is_secret(named["name"])
        value = _VALUE.match(text, named.end()) if is_looked_at else None
        if value is not None and _tells(named, value[0]):
            first = value[0][0]
            quote = first if first in "\"'" else named["quote"] * (first in "[{\\")
            parts += [text[at : value.start()], quote, HIDDEN, quote]
            at = value.end()
    return "".join((*parts, text[at:]))


def _tells(named: re.Match[str], written: str) -> bool:
    """Whether the name of a secret and what follows it are taken for a secret."""
    value, joint = written.strip("\"'[]{}\\ "), named["joint"].strip(" \t\r\n|>+")
    if value.startswith(HIDDEN) or not holds_secret(named["name"], value):
        return False
    if joint in ("", ",", "-"):  # --token x, and ['--token', 'x']
        is_flag = named["dash"] is not None and (joint == ",") == bool(named["quote"])
        return is_flag and value[0] != "-"
    # `invalid token: expected a name` is prose.
    is_prose = joint == ":" and written[-1] not in "\"']}" and "_" not in named["name"]
    return not is_prose or _strength(named["name"]) == 2


def scrubbed(data: Any) -> Any:
    """A copy of what JSON or YAML may hold, without secrets: values, items of lists, and keys."""
    return _scrubbed(data, _known_secrets(tuple(os.environ.items())))


def _scrubbed(data: Any, known: tuple[str, ...]) -> Any:
    if isinstance(data, str):
        return _without(data, known)
    if isinstance(data, Mapping):
        return {
            _scrubbed(key, known): HIDDEN if holds_secret(key, value) else _scrubbed(value, known)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        # Items may be the words of a command line: `--token`, then its value.
        return [
            HIDDEN if _is_value_of(flag, item) else _scrubbed(item, known)
            for flag, item in zip(("", *data), data, strict=False)
        ]
    return data


def _is_value_of(flag: Any, item: Any) -> bool:
    is_flag = isinstance(flag, str) and flag[:1] == "-" and "=" not in flag
    return is_flag and str(item)[:2] != "--" and holds_secret(flag, item)


def scrubbed_document(name: str, text: str) -> str:
    """A file's text without secrets, by its kind; one that holds none stays as it is written."""
    if not name.endswith(".json"):
        return text if name.endswith(".py") else scrubbed_text(text)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return scrubbed_text(text)
    clean = scrubbed(data)
    return text if clean == data else json.dumps(clean, indent=2, sort_keys=True) + "\n"


def withheld(data: Any) -> Iterator[str]:
    """The texts that `scrubbed` withholds under their names, wherever they are; line by line."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if holds_secret(key, value):
                yield from (line.strip() for text in texts_of(value) for line in text.splitlines())
            else:
                yield from withheld(value)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from withheld(item)


def texts_of(value: Any) -> Iterator[str]:
    """All texts in what JSON may hold, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_of(inner)


@lru_cache(maxsize=4)
def _known_secrets(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Values of the variables whose names are those of secrets, the longest first."""
    values = {
        value
        for name, value in variables
        if is_secret(name) and not (value[:1] == "/" and os.path.lexists(value))
    }
    return tuple(sorted(values, key=len, reverse=True))
