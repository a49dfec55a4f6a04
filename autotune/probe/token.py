"""The secret by which nodes know each other: where it is from, and whether it can be guessed."""

import base64
import contextlib
import functools
import hashlib
import itertools
import os
import re
import stat
from collections import Counter
from pathlib import Path

from autotune.base.errors import JobError
from autotune.base.secrecy import is_worded
from autotune.contract import NotAFileError, open_regular

TOKEN_ENV = "AUTOTUNE_TOKEN"
LEAST_CHARACTERS = 16
_LEAST_DIFFERENT = 8
_LEAST_BESIDE_WORDS = 12
"""Characters that are left without words that everybody tries."""
_MOST_BYTES = 4096
_HINT = (
    "`openssl rand -hex 16` prints a good one once: give it to all nodes, by the variable or by "
    "--token-file"
)
_WORDS = (
    *("password", "passwort", "passphrase", "passwd", "secret", "token", "admin", "administrator"),
    *("letmein", "welcome", "changeme", "default", "example", "login", "master", "root", "user"),
    *("hello", "world", "test", "cluster", "node", "probe", "autotune", "neural"),
    *("training", "qwertyuiop", "qwerty", "asdfghjkl", "asdfgh", "zxcvbnm", "iloveyou", "dragon"),
    *("monkey", "football", "sunshine", "princess", "trustno", "nvidia", "pytorch", "slurm"),
    *("correct", "horse", "battery", "staple", "quick", "brown", "fox", "jumps", "lazy", "dog"),
    *("january", "february", "march", "april", "june", "july", "august", "september", "october"),
    *("november", "december", "summer", "winter", "spring", "autumn", "hunter", "localhost"),
    *("openssl", "rand", "hex", "google", "azure", "amazon", "ubuntu"),
    *("please", "temporary", "placeholder", "insert", "your", "here", "the", "this", "is", "my"),
)
"""Words that everybody tries, the longer ones among those that begin alike first."""
_KEYS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_ROWS = (
    *_KEYS,
    "0123456789abcdef",
    "abcdefghijklmnopqrstuvwxyz",
    '!@#$%^&*()_+{}|:"<>?',
    "qwertzuiopasdfghjklyxcvbnm",
    "azertyuiopqsdfghjklmwxcvbn",
    "pyfgcrlaoeuidhtnsqjkxbmwvz",
    *("".join(column) for column in zip(*(row[:7] for row in _KEYS), strict=True)),
    "".join(itertools.chain.from_iterable(zip(*(row[:7] for row in _KEYS), strict=True))),
)
"""Letters and keys as they follow each other."""
_ROW = re.compile(
    "|".join(
        re.escape(way[at : at + 4])
        for row in _ROWS
        for way in (row, row[::-1])
        for at in range(len(way) - 3)
    )
)
_PRINTED = re.compile(
    r"[\d.,:/+ -]{1,24}(t[\d.,:/+ -]{0,20})?(utc|gmt|z)?"
    r"|[\w.-]*[a-z][\w.-]*:\d{1,5}\W*[\w.-]{0,8}"
)
"""Dates, numbers, and addresses with a port: what one copies from a screen."""
_MOSTLY = 0.75
_KNOWN = frozenset(
    (
        "d41d8cd98f00b204e9800998ecf8427e",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "5f4dcc3b5aa765d61d8327deb882cf99",
        "550e8400-e29b-41d4-a716-446655440000",
        "123e4567-e89b-12d3-a456-426614174000",
        "deadbeefcafebabe",
        "akiaiosfodnn7example",
    )
)
"""Digests of nothing and of `password`, and examples of manuals."""
_USUAL = (
    *("", "0", "1", "a", "abc", "abc123", "123", "1234", "12345", "123456", "1234567", "12345678"),
    *("123456789", "1234567890", "123123", "111111", "000000", "666666", "654321", "987654321"),
    *("qwerty123", "1q2w3e4r", "1qaz2wsx", "password12", "password1234", "foo", "bar", "foobar"),
    *("hello world", "hello, world", "hello, world!", "pass", "deepspeed", "megatron", "torch"),
    *("the quick brown fox jumps over the lazy dog", "trustno1", "iloveyou1", "gpu", "hostname"),
)
_COPIED = re.compile(
    r"://|^[~.]?/(?:home|root|etc|usr|var|tmp|opt|data|mnt|srv|users|proc|dev|scratch|work)/|"
    r"@[\w-]{3,}\.[a-z]{2,}|^\w?:?\\{1,2}\w+\\|"
    r"\$[({]\w{3,}|`\w{3,}|\{\{\s*\w{3,}|<[\w -]{4,}>|%[a-z_]{4,}%|"
    r"example|replace_?me|"
    r"^(?:[0-9a-f]{0,4}[:.-]){5,}[0-9a-f]{0,4}$|^(?:[0-9a-f]{1,4}:{1,2}){3,}|"
    r"(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}|^aaaa[bce]3nza|^ssh-|^eyj|^v?\d+\.\d+\.\d+|"
    r"^gpu-[0-9a-f]{8}-|(?:nvidia|tesla|radeon|instinct|geforce|epyc|xeon)"
)
_HEX_WORDS = re.compile("deadbeef|cafebabe|8badf00d|feedface|c0ffee|decafbad|baadf00d|0ff1ce")
_SAID = re.compile(r"[\x20-\x7e]{8,}")
_LOOKALIKES = str.maketrans("013457@$!", "oleastasi")
_WORD = re.compile("|".join(sorted(_WORDS, key=len, reverse=True)))


def read_token(file: Path | None) -> str:
    """The secret from a file, or else from the environment; never from the command line.

    Raises:
        JobError: There is none, it can be guessed, or others can read the file.
    """
    if file is None:
        where, token = TOKEN_ENV, os.environ.get(TOKEN_ENV, "")
    else:
        where, token = f"--token-file {file}", _from_file(file)
    if why := weakness(token):
        raise JobError(f"{where}: {why}; nodes know each other by it", _HINT)
    return token


def weakness(token: str) -> str:
    """Why a secret can be guessed; empty: nothing is known against it. Never shows any of it."""
    if not token.strip():
        return "not set, or empty"
    if len(token) < LEAST_CHARACTERS:
        return f"{len(token)} characters; at least {LEAST_CHARACTERS} are needed"
    if not token.isprintable():
        return "it has characters that cannot be printed"
    n_different = len(set(token.lower()))
    if n_different < _LEAST_DIFFERENT:
        return f"only {n_different} different characters; at least {_LEAST_DIFFERENT} are needed"
    low = token.lower()
    for period in range(1, len(low) // 2 + 1):
        n_same = sum(a == b for a, b in zip(low, low[period:], strict=False))
        if n_same >= _MOSTLY * (len(low) - period):
            return "it repeats itself"
    if _stepped(token) >= 1 / 2:
        return "it is a sequence, such as 1234 or aaaa"
    # Two that alternate: a1b2c3d4, or q1w2e3r4 on the keyboard.
    if all(_is_row(low[start::2]) for start in (0, 1)):
        return "it is two sequences, such as a1b2c3d4"
    if _PRINTED.fullmatch(low):
        return "it is an address, a date or a number"
    if low in _KNOWN:
        return "it is one that stands in books"
    # A spelling with digits is tried as well; a year or a sign at the end adds little.
    for spelling in {low, low.translate(_LOOKALIKES), low[::-1], *_decoded(token)}:
        plain = re.sub(r"[\W_]+", "", spelling)
        rest = _WORD.sub("", plain)
        if len(rest) < len(plain):
            rest = _ROW.sub("", rest)
        if len(rest) < min(len(plain), _LEAST_BESIDE_WORDS):
            return "it is made of words that everybody tries"
        if 2 * len(_ROW.sub("", spelling)) <= len(spelling):
            return "it is made of rows of keys or letters"
    return _made_by_people(token)


def _made_by_people(token: str) -> str:
    """Why a secret is one that somebody made up or copied; empty: only a generator makes such."""
    low = token.lower()
    if _is_digest_of_a_word(re.sub(r"[^0-9a-f]", "", low)):
        return "it is the digest of a word that everybody tries"
    if _COPIED.search(low):
        return "it is an address, a path, a placeholder or an example of a manual"
    if any(_SAID.fullmatch(told) for told in _decoded(token)):
        return "it is plain text in another spelling"
    if re.fullmatch(r"[0-9a-f-]+", low):
        return "it spells words in hexadecimal" if _HEX_WORDS.search(low) else ""
    if _is_phrase(low):
        return ""
    spelled = low.translate(_LOOKALIKES)
    if any(len(word) >= 6 and (word in low or word in spelled) for word in _WORDS):
        return "it has a word in it that everybody tries"
    # Digits in the place of letters make a text of letters alone, so more is asked of it.
    if is_worded(token) or is_worded(spelled, least=0.6):
        return "it is made of words or names: four words with gaps between them, or more, hold"
    return ""


def _is_phrase(low: str) -> bool:
    """Whether it is drawn words: four or more, apart from each other, none of them a usual one."""
    words = re.split(r"[\W\d_]+", low)
    return len({word for word in words if len(word) >= 4 and word not in _WORDS}) >= 4


def _is_digest_of_a_word(digits: str) -> bool:
    return digits in _digests() if len(digits) in (32, 40, 56, 64, 96, 128) else False


@functools.cache
def _digests() -> frozenset[str]:
    plain = {*_WORDS, *_USUAL, *(f"{word}{end}" for word in _WORDS for end in ("1", "123", "!"))}
    spelled = {way for word in plain for way in (word, word.upper(), word.capitalize())}
    texts = [text.encode() + end for text in spelled for end in (b"", b"\n")]
    kinds = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")
    return frozenset(
        hashlib.new(kind, text, usedforsecurity=False).hexdigest()
        for kind in kinds
        for text in texts
    )


def _is_row(text: str) -> bool:
    """Whether characters stand side by side, or at one distance, in an alphabet or on keys."""
    return _stepped(text) >= _MOSTLY or any(text in row or text in row[::-1] for row in _ROWS)


def _stepped(text: str) -> float:
    """Share of a text's steps that lead nowhere, to a neighbour, or as far as most others."""
    steps = [ord(after) - ord(before) for before, after in itertools.pairwise(text)]
    near = sum(abs(step) <= 1 for step in steps)
    return max(near, *Counter(steps).values()) / len(steps)


def _decoded(token: str) -> list[str]:
    """What a token is the hexadecimal or base 64 spelling of, where that is text."""
    found = []
    for decode in (bytes.fromhex, base64.urlsafe_b64decode, base64.b64decode):
        with contextlib.suppress(ValueError):
            text = decode(token).decode("ascii").strip()
            if text.isprintable():
                found.append(text.lower())
    return found


def _from_file(file: Path) -> str:
    """The text of a file that is its owner's alone."""
    hint = "write the secret into a file of your own that nobody else may read: chmod 600"
    try:
        opened = open_regular(file)
        try:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode):  # a pipe that a shell hands over
                raise JobError(f"--token-file {file}: is no regular file", hint)
            if about.st_uid not in (os.getuid(), 0):
                raise JobError(f"--token-file {file}: belongs to somebody else", hint)
            if about.st_mode & 0o077:
                raise JobError(
                    f"--token-file {file}: others may read or write it "
                    f"(mode {stat.S_IMODE(about.st_mode):o})",
                    hint,
                )
            data = os.read(opened, _MOST_BYTES + 1)
        finally:
            os.close(opened)
    except NotAFileError as error:
        raise JobError(f"--token-file {file}: is no regular file", hint) from error
    except OSError as error:
        raise JobError(f"--token-file {file}: {error.strerror or error}", hint) from error
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError
        return data.decode("utf-8").strip()
    except ValueError as error:
        raise JobError(
            f"--token-file {file}: is no text of at most {_MOST_BYTES} bytes", hint
        ) from error
