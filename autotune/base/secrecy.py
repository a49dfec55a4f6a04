"""The scrubber: hides secrets by their names and by how they begin; see SECURITY.md."""

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from autotune.base.text import texts_of

HIDDEN = "***"
"""Stands where a secret did."""
_SURE = re.compile(
    r"passw|passphrase|secret(?!ar|io)|credential|(?:api|access|private|auth|account|ssh)keys?$"
)
"""What names a secret, in a name without its gaps."""
_LIKELY = ("token", "key", "pwd", "pass", "auth")
"""Words that name a secret at the end of a name."""
_SETTING = re.compile(
    "attention|audio|backward|bos|cache|cls|cross|data|dataset|decoder|dict|each|end|eod|eos|eot|"
    "field|first|foreign|forward|function|group|head|id|image|index|input|k|label|last|layer|map|"
    "mask|message|metric|missing|model|next|no|output|pad|partition|prefix|primary|prompt|q|query|"
    "role|sample|sep|sort|special|split|start|state|suffix|task|text|tool|unk|v|value|video|weight"
)
"""Words before one of `_LIKELY` that make it a setting of a model or a place in a table."""
_PLAIN_VALUE = re.compile(
    r"(?is)\W*|auto|none|null|true|false|<.*>|\[[^\[\]]*\]|[-+]?[\d.]{1,5}(?:e[-+]?\d+)?|\$\{?[A-Z_]+\}?"
)
"""Texts that are no secret: settings, special tokens, short numbers, variables."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_FORMS = re.compile(
    r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}"
    r"|sk[-_](?=[\w-]{0,99}\d)[\w-]{12,}|xox[a-z]-[\w-]{8,}|A(?:KIA|SIA)[A-Z0-9]{12,}"
    r"|AIza[\w-]{20,}|glpat-[\w-]{10,}|npm_[A-Za-z0-9]{16,}"
    r"|eyJ[\w-]{8,999}\.[\w-]{2,}(?:\.[\w-]*)?)"
)
"""Private keys; tokens of Hugging Face, GitHub, OpenAI, Slack, AWS, Google, GitLab, npm, JWT."""
_ADDRESS = re.compile(
    r"(?<=://)(?!git@)[^\s\"'<>,;/?#@]{1,600}(?:@[^\s\"'<>,;/?#@]{1,99})?(?=@\S)"
)
"""`user:password` in an address."""
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
_BLOCK = re.compile(r"[|>][-+]?[ \t]*\r?\n([ \t]+)\Z")
"""The end of a joint behind which a text of several lines stands, with their indent."""


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a variable or a key of this name is taken to hold a secret."""
    words = [word.lower() for word in _WORD.findall(name[-200:])] or [""]
    is_bare = name == "PWD" or words in (["key"], ["pass"], ["auth"])
    if words in (["pin"], ["otp"]):
        return True
    is_setting = is_bare or _SETTING.fullmatch(words[-2:][0])
    return (words[-1] in _LIKELY and not is_setting) or _SURE.search("".join(words)) is not None


def holds_secret(name: object, value: Any) -> bool:
    """Whether a key with this value is taken to hold a secret: numbers and switches are none."""
    return is_secret(str(name)) and any(
        _PLAIN_VALUE.fullmatch(text) is None for text in texts_of(value)
    )


def scrubbed_text(text: str) -> str:
    """A text with `***` for what is taken for a secret in it; all else as it is written."""
    return _without(text, _known_secrets(tuple(os.environ.items())))


@lru_cache(maxsize=4)
def _known_secrets(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Values of the variables whose names are those of secrets; shorter ones are words."""
    named = (value for name, value in variables if len(value) >= 8 and is_secret(name))
    return tuple(one for one in sorted(named, key=len, reverse=True) if not os.path.exists(one))


@lru_cache(maxsize=4096)
def _without(text: str, known: tuple[str, ...]) -> str:
    for secret in known:
        text = text.replace(secret, HIDDEN)
    text = _ADDRESS.sub(HIDDEN, _FORMS.sub(HIDDEN, text))
    parts, at = [], 0
    for named in _NAMED.finditer(text):
        if named.start() < at or not is_secret(named["name"]):
            continue
        block = _BLOCK.search(named["joint"])
        lines = re.compile(rf".+(?:[\r\n]+{block[1]}.*){{0,999}}") if block else _VALUE
        value = lines.match(text, named.end())
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
    return joint != ":" or written[-1] in "\"']}" or named["name"].lower() not in _LIKELY


def scrubbed(data: Any, known: tuple[str, ...] | None = None) -> Any:
    """A copy of what JSON or YAML may hold, without secrets: values, items of lists, and keys."""
    known = _known_secrets(tuple(os.environ.items())) if known is None else known
    if isinstance(data, str):
        return _without(data, known)
    if isinstance(data, Mapping):
        return {
            scrubbed(key, known): HIDDEN if holds_secret(key, value) else scrubbed(value, known)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        # Items may be the words of a command line: `--token`, then its value.
        pairs = zip(("", *data), data, strict=False)
        return [HIDDEN if _is_value_of(*pair) else scrubbed(pair[1], known) for pair in pairs]
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
