"""Secrets: what is taken for one by its name, its form or its randomness is written nowhere.

One scrubber for every record, file and message. It is wrong now and then, on the safe side: `***`
stands where something was withheld, under the key that held it.
"""

import base64
import binascii
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

HIDDEN = "***"
"""Stands where a secret did."""

# Names, word by word.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CERTAIN = _words(
    "password passwords passwd passphrase passcode passwort kennwort pwd secret secrets "
    "credential credentials creds bearer authorization cookie cookies setcookie webhook "
    "webhooks dsn apikey apikeys authkey authtoken accesstoken accesskey privatekey "
    "secretkey sshkey sessionid sessionkey sessiontoken connectionstring connstr connstring "
    "clientsecret mnemonic htpasswd netrc csrf xsrf jwt sas"
)
"""Words that name a secret wherever they stand in a name."""
_PARTS = re.compile(
    r"passwor[dt]|passwd|passphrase|secret(?!ar|io)|credential|apikey|accesskey|privatekey|authtoken|"
    r"accesstoken|connectionstring|webhook|hftoken|githubtoken|ghtoken|wandbkey"
)
"""Words that name a secret within a word that was written without a gap."""
_PAIRS = frozenset(
    [
        *(("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str")),
        *(("pass", "word"), ("pass", "phrase"), ("pass", "code"), ("seed", "phrase")),
        *(("recovery", "phrase"), ("access", "key"), ("private", "key"), ("api", "key")),
        *(("session", "id"), ("hook", "url"), ("auth", "token"), ("access", "token")),
        *(("account", "key"), ("storage", "key"), ("shared", "key"), ("encryption", "key")),
    ]
)
"""Neighbouring words that name one."""
_LAST = _words("pass token key auth oauth session sig signature pat otp hmac authentication")
"""Words that name one at the end of a name, for a text."""
_ALSO_LAST = _words("keys tokens")
"""The same after one of `_HOLDERS`: `api_keys`, but not `max_tokens`."""
_HOLDERS = _words(
    "api access auth bearer refresh secret private ssh hf huggingface github gitlab gh gl "
    "aws wandb comet openai anthropic slack oauth encryption signing bot personal deploy"
)
_NO_PASS = _words(
    "forward backward fwd bwd first second third last one two single multi by low high band "
    "all num n per next prev previous each compile compiler z1 z3 optimizer"
)
_NO_TOKEN = _words(
    "bos eos pad unk sep cls mask image img video audio vision speech start end stop "
    "special boi eoi boa eoa bov eov decoder encoder prefix suffix middle newline fim eot "
    "eom eod eoh im per next last first each tool sot space blank word text think thinking "
    "additional placeholder tile row col break content function call python ctc extra query "
    "task mem soft visual pixel point box ref quad object eop sop gmask patch silence turn "
    "role layer attn"
)
_NO_KEY = _words(
    "sort primary foreign index dict cache query dataset column lookup metric label image "
    "text group partition shard parent cross attention head value q k v batch model config "
    "sample data no input output state param layer module weight target logging log monitor "
    "split id score reward map feature field prompt response message messages unknown "
    "missing unexpected invalid checkpoint thinking another this that any"
)
"""Words before `key` that make it a place in a table."""
_NO_SIGNATURE = _words("call forward method function kernel type")
_NOT_BEFORE: Mapping[str, frozenset[str]] = {
    "pass": _NO_PASS,
    "token": _NO_TOKEN,
    "key": _NO_KEY,
    "signature": _NO_SIGNATURE,
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONGEST_NAME = 200


@lru_cache(maxsize=4096)
def _strength(name: str) -> int:
    """How surely a name is that of a secret: 2 whatever the value, 1 for a text, 0 none."""
    words = [word.lower() for word in _WORD.findall(name[-_LONGEST_NAME:])]
    if not words:
        return 0
    if not _CERTAIN.isdisjoint(words) or any(_PARTS.search(word) for word in words):
        return 2
    pairs = list(pairwise(words))
    if not _PAIRS.isdisjoint(pairs):
        return 2
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _ALSO_LAST:
        return 1 if before in _HOLDERS else 0
    if last in _LAST:
        return 0 if before in _NOT_BEFORE.get(last, ()) else 1
    return 1 if last.endswith(("token", "apikey")) and last not in ("detoken",) else 0


def is_secret(name: object) -> bool:
    """Whether a variable or a key of this name is taken to hold a secret."""
    return _strength(str(name)) > 0  # YAML has keys that are no text


def holds_secret(name: object, value: Any) -> bool:
    """Whether a key with this value is taken to hold a secret.

    A switch holds none, and a number only where the name leaves no doubt.
    """
    strength = _strength(str(name))
    if not strength or value is None or isinstance(value, bool) or value in ("", HIDDEN):
        return False
    if isinstance(value, str) and _is_working_folder(str(name), value):
        return False
    if isinstance(value, Mapping):
        return strength == 2
    if isinstance(value, str):
        return strength == 2 or not _PLAIN_TOKEN.fullmatch(value)
    if isinstance(value, list | tuple):
        return strength == 2 or any(isinstance(one, str) for one in value)
    return strength == 2 and isinstance(value, int | float)


def _is_working_folder(name: str, value: str) -> bool:
    """Shells name it `PWD`."""
    return name.lower() in ("pwd", "oldpwd") and value.startswith("/")


_PLAIN_TOKEN = re.compile(
    r"\s*|auto|none|null|<.*>|\[[^\[\]]*\]|true|false", re.IGNORECASE | re.DOTALL
)
"""Values that no secret has: special tokens (`<s>`, `[PAD]`) and the words of settings."""


# Values that show what they are.

_EDGE = r"(?<![A-Za-z0-9])"
_FORMS = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z0-9 ]{0,40}-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)",
            _EDGE + r"(?:AGE-SECRET-KEY-1[A-Z0-9]{10,})",
            _EDGE
            + r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]{0,15}\d[A-Za-z]+\d)[A-Za-z0-9]{8,15}"
            + r"(?![A-Za-z0-9]))",
            _EDGE + r"(?:api_org_)[A-Za-z0-9]{16,}",
            _EDGE + r"(?:sk|rk|pk|ak)[-_](?:live_|test_|proj-|ant-|or-|svcacct-)[\w-]{8,}",
            _EDGE + r"sk[-_](?=[\w-]{0,99}\d)(?=[\w-]{0,99}[A-Za-z])[\w-]{12,}",
            _EDGE + r"gh[pousr]_[A-Za-z0-9]{10,}",
            _EDGE + r"github_pat_\w{10,}",
            _EDGE + r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[\w-]{10,}",
            _EDGE + r"(?:xox[a-z]|xapp)-[\w-]{8,}",
            _EDGE + r"A(?:KIA|SIA|BIA|CCA|ROA|IDA)[A-Z0-9]{12,}",
            _EDGE + r"AIza[\w-]{20,}",
            _EDGE + r"ya29\.[\w.-]{8,}",
            _EDGE + r"GOCSPX-[\w-]{10,}",
            _EDGE + r"eyJ[\w-]{8,999}+={0,2}(?:\.[\w-]+={0,2}){1,4}",
            _EDGE
            + r"(?:npm|r8|gsk|dop_v1|doo_v1|dor_v1|shpat|shpss|shpca|shppa|lin_api|figd|secret|"
            r"rubygems|pul|sntrys|sbp|whsec|tskey|ntn|re|hvb|ops|glc|glsa|dp\.pt)_(?=\w{0,99}\d)[\w-]{16,}",
            _EDGE + r"pypi-(?=[\w-]{0,99}[A-Z])[\w-]{16,}",
            _EDGE + r"dckr_(?:pat|oat)_[\w-]{8,}",
            _EDGE + r"nvapi-[\w-]{16,}",
            _EDGE + r"pplx-[A-Za-z0-9]{16,}",
            _EDGE + r"hv[sbr]\.[\w-]{12,}",
            _EDGE + r"SG\.[\w-]{10,}\.[\w-]{10,}",
            _EDGE + r"(?:AC|SK)[0-9a-f]{32}(?![0-9a-f])",
            _EDGE + r"key-[0-9a-f]{32}",
            _EDGE + r"dapi[0-9a-f]{32}",
            _EDGE + r"ATATT3[\w=-]{16,}",
            _EDGE + r"EAA[A-Za-z0-9]{30,}",
            _EDGE + r"\d{8,10}:AA[\w-]{30,}",
            _EDGE + r"sq0[a-z]{3}-[\w-]{16,}",
        )
    ),
    re.DOTALL,
)
"""Secrets that begin as their makers have them begin."""

_HOOKS = re.compile(
    r"((?:hooks\.slack\.com/(?:services|workflows|triggers)|"
    r"(?:canary\.|ptb\.)?discord(?:app)?\.com/api/webhooks|[\w.-]*webhook\.office\.com/webhookb2|"
    r"api\.telegram\.org)/)[^\s\"'<>]+"
)
_USERINFO = re.compile(r"(://)([^\s@\"'<>]{1,600}+)@(?=\S)")
"""`scheme://user:password@host`; a password may hold a slash: see `_userinfo`."""
_PORT_OR_PATH = re.compile(r"[^:/?#]*(?::\d{1,5})?[/?#]")
_NO_SCHEME = re.compile(
    r"(?<![\w/.@:-])[\w.+-]{1,100}:(?!\d+(?:\.\d+)*@)[^\s:@/\"'<>,]{3,200}@(?!sha\d)(?=[A-Za-z0-9\[(])"
)
"""`user:password@host`, as some drivers want it."""
_BEARER = re.compile(r"(\bbearer\s+)(?=[\w.~+/=-]{0,99}[\d=._+/-])([\w.~+/=-]{6,})", re.IGNORECASE)
_BASIC = re.compile(r"(\bbasic\s+)([A-Za-z0-9+/]{6,}={0,2})", re.IGNORECASE)
_USER_FLAG = re.compile(r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]?)([^\s:]+:[^\s]+)")
_QUERY = re.compile(r"([?&;]([\w.%\[\]-]{1,100})=)([^\s&#;\"'<>]+)")
_QUERY_ALSO = frozenset(
    ("sig", "key", "code", "st", "x-amz-credential", "awsaccesskeyid", "pw", "p")
)

_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?"
_SAID = re.compile(
    r"(?P<dash>(?<![\w-])--?)?(?<![\w.])(?P<name>[A-Za-z_][\w.-]{0,120}+)(?P<quote>\\?[\"']?)"
    r"(?P<joint>\s{0,20}[=:]\s{0,20}|\s{1,3}(?:is|to|was|becomes)\s{1,3}|[ ]{1,3})"
)
"""A name and what joins its value: `k=v`, `"k": "v"`, `--k v`, `k is 'v'`."""
_VALUE = re.compile(rf"{_QUOTED}|\[[^\[\]\n]*\]?|[^\s,;&\"'\[\]{{}}()<>=][^\s,;&\"'{{}}()<>]*")
_HEADER = re.compile(
    r"((?:^|(?<=[\s\"',;{(]))(?:proxy-)?(?:authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|auth)[\w-]*)"
    r"[\"']?\s{0,20}[:=]\s{0,20}[\"']?)(?!\s*[\"'\[{])([^\"'\n\r]+)",
    re.IGNORECASE,
)
"""A header: all of its line is its value."""


_MAY_NAME = _words(
    "pass pwd secret token key auth cookie session dsn cred bearer hook sig sas jwt pat otp "
    "conn hmac mnemonic netrc csrf xsrf phrase kennwort"
)
"""Part of every secret's name: most texts have none, and this is quick."""


def scrubbed_text(text: str, known: Iterable[str] = ()) -> str:
    """A text with `***` for what is taken for a secret in it; all else as it is written.

    Args:
        text: Any text.
        known: Texts that are secrets, such as `withheld` found in a file that the text tells of.
    """
    if len(text) < 4:
        return text
    for secret in known:
        if len(secret) >= _LEAST_KNOWN:
            text = text.replace(secret, HIDDEN)
    if len(text) >= _LEAST_KNOWN:
        text = _without_known(text)
    if "-----BEGIN" in text or _MARKS.search(text):
        text = _FORMS.sub(HIDDEN, text)
    if "://" in text:
        text = _HOOKS.sub(rf"\g<1>{HIDDEN}", text)
        text = _USERINFO.sub(_userinfo, text)
    if "@" in text:
        text = _NO_SCHEME.sub(f"{HIDDEN}@", text)
    if "=" in text:
        text = _QUERY.sub(_query, text)
    if " " in text:
        text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
        text = _BASIC.sub(_basic, text)
        text = _USER_FLAG.sub(rf"\g<1>{HIDDEN}", text)
    lower = text.casefold()
    if any(word in lower for word in _MAY_NAME):
        text = _HEADER.sub(rf"\g<1>{HIDDEN}", text)
        text = _said_hidden(text)
    return _without_opaque(text)


def scrubbed(data: Any) -> Any:
    """A copy of what JSON or YAML may hold, without secrets: values, items of lists, and keys."""
    return _scrubbed(data, "")


def _scrubbed(data: Any, under: str) -> Any:
    if isinstance(data, str):
        return data if _names_digest(under) and _HEX.fullmatch(data) else scrubbed_text(data)
    if isinstance(data, Mapping):
        kept: dict[Any, Any] = {}
        for key, value in data.items():
            name = scrubbed_text(key) if isinstance(key, str) else key
            while name != key and name in kept:
                name = f"{name}*"
            kept[name] = HIDDEN if holds_secret(key, value) else _scrubbed(value, str(key))
        return kept
    if isinstance(data, list | tuple):
        return [_of_list(one, under) for one in _command_line(data)]
    return data


def _of_list(item: Any, under: str) -> Any:
    return item if item is HIDDEN else _scrubbed(item, under)


def _command_line(items: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """A list whose items may be the words of a command line: `--token`, then its value."""
    flag = ""
    for item in items:
        is_text = isinstance(item, str)
        follows = flag and is_text and not item.startswith("-")
        yield HIDDEN if follows else item
        flag = (
            item
            if is_text and re.fullmatch(r"--?[A-Za-z][\w.-]*", item) and is_secret(item)
            else ""
        )


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
    """The texts that `scrubbed` withholds whole under their names, wherever they are nested."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(value, str | Mapping | list | tuple):  # nothing else has texts in it
                yield from _leaves(value) if holds_secret(key, value) else withheld(value)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from withheld(item)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)


# Parts of it.

_LEAST_KNOWN = 8
"""Shortest value of a variable that is looked for in texts: shorter ones are words."""


def _without_known(text: str) -> str:
    """Without the secrets of this process's own environment."""
    for value in known_secrets():
        if value in text:
            text = text.replace(value, HIDDEN)
    return text


def known_secrets() -> tuple[str, ...]:
    """Values of this process's variables whose names are those of secrets, the longest first."""
    return _known(tuple(os.environ.items()))


@lru_cache(maxsize=4)
def _known(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    values = {
        value
        for name, value in variables
        if len(value) >= _LEAST_KNOWN and is_secret(name) and "/" not in value[:1]
    }
    return tuple(sorted(values, key=len, reverse=True))


_MARKS = re.compile(
    r"hf_|api_org_|[sra]k[-_]|pk[-_]|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox|xapp|A[KSBCRI][ICOD]A|AIza|ya29|"
    r"GOCSPX|eyJ|npm_|r8_|gsk_|do[por]_v1|shp|lin_api|figd|secret_|rubygems|pul_|sntrys|sbp_|whsec|"
    r"tskey|ntn_|re_|hv[bsr]|ops_|gl[cs]|dp\.|pypi-|dckr|nvapi|pplx|SG\.|AC|SK|key-|dapi|ATATT|EAA|:AA|sq0|AGE-"
)
"""How the texts of `_FORMS` begin: most texts hold none of these, and this search is quick."""


def _userinfo(match: re.Match[str]) -> str:
    """An `@` in a path ends no user's name: `host/@name`, `host:8080/@name`."""
    told = match[2]
    if told in ("git", HIDDEN) or _PORT_OR_PATH.match(told):
        return match[0]
    return f"{match[1]}{HIDDEN}@"


def _query(match: re.Match[str]) -> str:
    name = match[2]
    hides = is_secret(name) or name.lower() in _QUERY_ALSO
    return f"{match[1]}{HIDDEN}" if hides else match[0]


def _basic(match: re.Match[str]) -> str:
    """`Basic` is also a word: what follows it is a secret if it says `user:password`."""
    try:
        told = base64.b64decode(match[2] + "=" * (-len(match[2]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return match[0]
    is_pair = b":" in told and all(32 <= byte < 127 for byte in told)
    return f"{match[1]}{HIDDEN}" if is_pair else match[0]


def _said_hidden(text: str) -> str:
    """A text whose values after the name of a secret are hidden."""
    parts, at = [], 0
    for said in _SAID.finditer(text):
        if said.start() < at or not (strength := _strength(said["name"])):
            continue
        value = _VALUE.match(text, said.end())
        if value is not None and _tells(said, value[0], strength):
            # A list in JSON gives way to a text.
            quote = value[0][0] if value[0][0] in "\"'" else said["quote"] * (value[0][0] == "[")
            parts.append(f"{text[at : value.start()]}{quote}{HIDDEN}{quote}")
            at = value.end()
    return "".join((*parts, text[at:])) if parts else text


def _tells(said: re.Match[str], written: str, strength: int) -> bool:
    """Whether this name and value are taken for a secret's."""
    value, joint = written.strip("\"'[]\\ "), said["joint"].strip()
    if not value or value.startswith(HIDDEN) or _PLAIN_TOKEN.fullmatch(value):
        return False
    if _is_working_folder(said["name"], value):
        return False
    is_quoted, is_flag = written[0] in "\"'[", said["dash"] is not None
    if joint == "":
        return is_flag and not value.startswith("-")
    if joint not in ("=", ":"):
        return is_quoted or _is_dense(value) or (strength == 2 and any(map(str.isdigit, value)))
    if is_flag or (said["quote"] and is_quoted) or (joint == "=" and strength == 2):
        return True
    # `password: too short` is prose; a word after it is no secret unless it looks like one.
    return (strength == 2 and (is_quoted or not _is_word(value))) or _is_dense(value)


def _is_word(value: str) -> bool:
    return re.fullmatch(r"[A-Za-z]{1,20}[.!?:]?", value) is not None and value.lower() in _PROSE


_PROSE = _words(
    "is was not no must may too a an the should cannot invalid missing required unknown "
    "expected str string int none null true false of for in it there text number list has "
    "have wrong see"
)


def _is_dense(value: str) -> bool:
    """Whether a text has letters and digits as a key has them, and no path or number."""
    return (
        len(value) >= 8
        and "/" not in value
        and re.search(r"[A-Za-z]", value) is not None
        and re.search(r"\d", value) is not None
        and not re.fullmatch(r"[+-]?[\d.]+(?:e[+-]?\d+)?[A-Za-z]{0,3}", value)
        and not re.search(r"[A-Za-z0-9]+[._][A-Za-z]{2,}", value)
    )


# Randomness.

_HEX = re.compile(r"(?:[0-9a-f]{32,}|[0-9A-F]{32,})")
_CHUNK = re.compile(r"[^\s\"'`,;(){}\[\]<>|]{24,}")
_RUN = re.compile(r"[A-Za-z0-9_\-+=~$%!]{24,}")
_RUN_OF_BASE64 = re.compile(r"[A-Za-z0-9+/]{32,}={0,2}")
_AWS_SECRET = re.compile(r"(?=.*[a-z][A-Z])(?=.*[A-Z]{2}[a-z])(?=.*\d)[A-Za-z][A-Za-z0-9+/]{39}")
"""An AWS secret key has 40 characters, capitals and digits amid its pieces."""
_BEFORE_DIGEST = re.compile(
    r"(?:sha-?\d+|md5|blake\w*|commit|rev(?:ision)?|hash|hashes|digest|checksum|uuid|guid|etag|build|"
    r"snapshots|blobs|blob|tree|raw|refs|git|version|fingerprint|0x)\W{0,3}$",
    re.IGNORECASE,
)
_DIGEST_WORDS = _words(
    "hash hashes sha sha1 sha256 sha512 md5 digest digests commit revision rev checksum "
    "checksums etag uuid fingerprint fingerprints"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_LEAST_OPAQUE = 24
_LONGEST_OPAQUE = 4096
"""Characters of a run that are looked at: the beginning tells."""

_PAIRS_OF_LETTERS = _words(
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io "
    "le ve co me de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho "
    "pe ec pr no ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em ad ol rt "
    "po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry "
    "mp fe bl ab gh ty op wo sa"
)
"""The commonest pairs of letters in words. Of the pairs in long names in DeepSpeed's and our own
code 47% or more are among them, of those in random letters 18%, and 38% in one of twenty texts."""
_WORDY = 0.42
"""Share of common pairs from which letters are words."""
_WORDY_IF_MIXED = 0.5
"""The same where capitals, small letters and digits alternate as they do in random text."""


def _without_opaque(text: str) -> str:
    """Without long runs that only a machine can have made up."""
    if len(text) < _LEAST_OPAQUE:
        return text
    parts, at = [], 0
    for chunk in _CHUNK.finditer(text):
        told = _chunk_hidden(chunk[0], text[max(0, chunk.start() - 16) : chunk.start()])
        if told != chunk[0]:
            parts += [text[at : chunk.start()], told]
            at = chunk.end()
    return "".join((*parts, text[at:])) if parts else text


def _chunk_hidden(chunk: str, before: str) -> str:
    if "/" in chunk or "\\" in chunk:
        if "://" not in chunk:
            return _base64_hidden(chunk)  # a path, unless it is nothing but letters and slashes
        scheme, _, rest = chunk.partition("://")
        hidden = _runs_hidden(rest, "")
        return chunk if hidden == rest else f"{scheme}://{hidden}"
    return _runs_hidden(chunk, before)


def _base64_hidden(chunk: str) -> str:
    """Base 64 has slashes too, but no dots, and no words between them."""
    if chunk[0] in "/.~\\":
        return chunk
    value_at = chunk.rfind("=", 0, len(chunk) - 2) + 1 or chunk.rfind(":") + 1
    value = chunk[value_at:]
    is_aws = _AWS_SECRET.fullmatch(value) is not None
    if is_aws or (_RUN_OF_BASE64.fullmatch(value) and _is_opaque(value)):
        return chunk[:value_at] + HIDDEN
    return chunk


def _runs_hidden(chunk: str, before: str) -> str:
    def hide(match: re.Match[str]) -> str:
        run = match[0]
        ahead = (before + chunk[: match.start()])[-16:]
        if _UUID.search(run) or _BEFORE_DIGEST.search(ahead):
            return run
        if _HEX.fullmatch(run) and ahead.endswith("@"):
            return run  # a revision
        name, equals, value = run.partition("=")
        if equals and value.strip("="):
            is_named = _names_digest(name) or len(value) < _LEAST_OPAQUE
            return run if is_named or not _is_opaque(value) else f"{name}={HIDDEN}"
        return HIDDEN if _is_opaque(run) else run

    return _RUN.sub(hide, chunk)


def _names_digest(name: str) -> bool:
    """Whether what stands under a name is the digest of something, as `_commit_hash` is."""
    return not _DIGEST_WORDS.isdisjoint(
        word.lower() for word in re.findall(r"[A-Za-z]+\d*", name.replace("_", " "))
    )


@lru_cache(maxsize=4096)
def _is_opaque(run: str) -> bool:
    """Whether a run of characters is random: no words in it, and many characters of many."""
    run = run[:_LONGEST_OPAQUE].strip("=-_")
    if len(run) < _LEAST_OPAQUE:
        return False
    if _HEX.fullmatch(run):
        return len(set(run)) >= 8 and not run.isdigit()
    letters = sum(c.isalpha() for c in run)
    if letters < len(run) // 3 or _entropy(run) < 3.4 or _is_spelled(run):
        return False
    pairs = [a + b for a, b in pairwise(run) if a.isalpha() and b.isalpha()]
    # A capital after a small letter begins a word: the two are no pair of one.
    pairs = [pair.lower() for pair in pairs if not (pair[0].islower() and pair[1].isupper())]
    if len(pairs) < 4:
        return True
    if sum(ord(pair[1]) - ord(pair[0]) == 1 for pair in pairs) > len(pairs) / 2:
        return False  # the alphabet
    common = sum(pair in _PAIRS_OF_LETTERS for pair in pairs) / len(pairs)
    changes = sum(_kind(a) != _kind(b) for a, b in pairwise(run)) / (len(run) - 1)
    # Random letters and digits change their kind at every other place, words at one in four.
    return common < (_WORDY_IF_MIXED if changes > 0.42 else _WORDY)


def _is_spelled(run: str) -> bool:
    """Whether it is words with a gap between them, in letters of one kind: `loss_scale_window`."""
    words = re.split("[_-]", run.strip("_-"))
    return (
        len(words) > 2
        and (run.islower() or run.isupper())
        and all(word.isdigit() or re.search("[aeiouyAEIOUY]|^.{1,3}$", word) for word in words)
        and sum(map(str.isdigit, run)) < 4
    )


def _kind(character: str) -> int:
    return (
        0 if character.islower() else 1 if character.isupper() else 2 if character.isdigit() else 3
    )


def _entropy(run: str) -> float:
    """Bits per character."""
    counts = Counter(run)
    return -sum(n / len(run) * math.log2(n / len(run)) for n in counts.values())
