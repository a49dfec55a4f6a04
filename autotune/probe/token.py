"""The secret by which nodes know each other: where it is from, and whether it can be guessed."""

import itertools
import os
import re
import stat
from pathlib import Path

from autotune.base.errors import JobError

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
    *("please", "temporary", "placeholder", "insert", "your", "here", "the", "this", "is", "my"),
)
"""Words that everybody tries, the longer ones among those that begin alike first."""
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
    if any(low[period:] == low[:-period] for period in range(1, len(low) // 2 + 1)):
        return "it repeats itself"
    steps = [ord(after) - ord(before) for before, after in itertools.pairwise(token)]
    if 2 * sum(abs(step) <= 1 for step in steps) >= len(steps):
        return "it is a sequence, such as 1234 or aaaa"
    # A spelling with digits is tried as well; a year or a sign at the end adds little.
    for spelling in (low, low.translate(_LOOKALIKES)):
        plain = re.sub(r"[\W_]+", "", spelling)
        rest = _WORD.sub("", plain)
        if len(rest) < min(len(plain), _LEAST_BESIDE_WORDS):
            return "it is made of words that everybody tries"
    return ""


def _from_file(file: Path) -> str:
    """The text of a file that is its owner's alone."""
    hint = "write the secret into a file of your own that nobody else may read: chmod 600"
    try:
        # Non-blocking: a pipe without a writer would wait for one for ever.
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode):
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
