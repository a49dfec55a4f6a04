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
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from autotune.base.text import FEW_KEYS, TEXTLESS

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
    "clientsecret mnemonic htpasswd netrc csrf xsrf jwt sas cred psk passkey passwds sshpass "
    "totp mfa authz privkey kubeconfig keystore phpsessid jsessionid instrumentationkey "
    # Of other languages, without their accents.
    "contrasena contrasenya motdepasse senha parola wachtwoord losenord haslo heslo salasana "
    "jelszo geheimnis"
)
"""Words that name a secret wherever they stand in a name."""
_PARTS = re.compile(
    r"passwor[dt]|passwd|passphrase|secret(?!ar|io)|credential|apikey|accesskey|privatekey|authtoken|"
    r"accesstoken|connectionstring|webhook|hftoken|githubtoken|ghtoken|wandbkey|appkey|sshpass|"
    r"sessionid|"
    # Words in letters of their own, which have no gaps or none that count.
    r"пароль|парол|токен|секрет|密码|密碼|口令|密钥|密鑰|令牌|パスワード|暗証番号|비밀번호|암호|"
    r"κωδικος|סיסמה|كلمةالسر|كلمةالمرور|पासवर्ड|รหัสผ่าน"
)
"""Words that name a secret within a word that was written without a gap."""
_PAIRS = frozenset(
    [
        *(("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str")),
        *(("pass", "word"), ("pass", "phrase"), ("pass", "code"), ("seed", "phrase")),
        *(("recovery", "phrase"), ("access", "key"), ("private", "key"), ("api", "key")),
        *(("session", "id"), ("hook", "url"), ("auth", "token"), ("access", "token")),
        *(("account", "key"), ("storage", "key"), ("shared", "key"), ("encryption", "key")),
        *(("service", "account"), ("sa", "json"), ("id", "rsa"), ("ssh", "private")),
        *(("mot", "passe"), ("private", "pem"), ("auth", "header"), ("token", "value")),
        *(("token", "str"), ("token", "string"), ("keyfile", "content"), ("unseal", "key")),
        *(("instrumentation", "key"), ("kube", "config"), ("oauth", "verifier"), ("otp", "seed")),
    ]
)
"""Neighbouring words that name one."""
_LAST = _words(
    "pass token key auth oauth session sig signature pat otp hmac authentication tok pin salt "
    "nonce pw pkey pem sess sid conn login hook mykey private authenticator passe "
    "userpw dbpw rootpw"
)
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
_ADDRESSES = _words("url uri urls address endpoint host")
_WITH_PASSWORD = _words(
    "database db sql postgres postgresql mysql mongo mongodb redis broker amqp rabbitmq celery "
    "slack discord teams telegram sentry smtp ldap sas upload signed presigned callback"
)
"""What has a password, or is one, within its address: `database_url`."""
_OF_A_TOKEN = _words("prod dev staging ro rw read write admin raw content data env main file")
"""Words after a token's name that leave it one: `hf_token_ro`."""
_NOT_BEFORE: Mapping[str, frozenset[str]] = {
    "pass": _NO_PASS,
    "token": _NO_TOKEN,
    "key": _NO_KEY,
    "signature": _NO_SIGNATURE,
    "hook": _words("forward backward pre post step grad gradient module comm param"),
    "private": _words("is not"),
    "login": _words("is no"),
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONGEST_NAME = 200


@lru_cache(maxsize=4096)
def _strength(name: str) -> int:
    """How surely a name is that of a secret: 2 whatever the value, 1 for a text, 0 none."""
    name = _plain(name[-_LONGEST_NAME:])
    words = [word.lower() for word in _WORD.findall(name)]
    if not name.isascii() and _PARTS.search(re.sub(r"[\W_]", "", name.casefold())):
        return 2
    if not words:
        return 0
    if not _CERTAIN.isdisjoint(words) or any(_PARTS.search(word) for word in words):
        return 2
    pairs = list(pairwise(words))
    if not _PAIRS.isdisjoint(pairs):
        return 2
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if len(words) > 2 and words[-2] == "token" and words[-3] in _HOLDERS:
        return 1 if words[-1] in _OF_A_TOKEN else 0
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _ADDRESSES and before in _WITH_PASSWORD and last not in ("host", "address"):
        return 1
    if (before in _HOLDERS and last in ("api", "read", "write")) or name.lower() == "openai":
        return 1
    if before == "token" and len(words) == 2 and last in _OF_A_TOKEN:
        return 1
    if last in _ALSO_LAST:
        return 1 if before in _HOLDERS else 0
    if last in _LAST:
        return 0 if before in _NOT_BEFORE.get(last, ()) else 1
    is_one = last.endswith(("token", "apikey", "hftok", "dburl", "dburi"))
    return 1 if is_one and last not in ("detoken",) else 0


def _plain(name: str) -> str:
    """A name without accents and in ordinary letters: there are several of each."""
    if name.isascii():
        return name
    parts = unicodedata.normalize("NFKD", name)
    # Only Latin letters have a plain form; of others the marks may be part.
    latin = "".join(c for c in parts if not unicodedata.combining(c))
    return latin if latin.isascii() else unicodedata.normalize("NFKC", name)


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
    if isinstance(value, str):
        return strength == 2 or not _PLAIN_TOKEN.fullmatch(value)
    if isinstance(value, Mapping | list | tuple):
        return strength == 2 or any(not _PLAIN_TOKEN.fullmatch(one) for one in texts_of(value))
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
            _EDGE
            + r"(?:wandb_v1|pcsk|rpa|nfp|flp|pscale_(?:tkn|pw|oauth)|bkua|KGAT|lsv2_(?:pt|sk)|"
            r"fo1|fm[12]|CCIPAT|CLOJARS|sntryu|fw|cio|y0|hfp|lf)_(?=\w{0,99}\d)[\w=/+-]{14,}",
            _EDGE + r"(?:xai|csk|glimt|pul|PMAK|NRAK|ATBB|as|pa)-?"
            r"(?=[\w-]{0,99}\d)(?=[\w-]{0,99}[A-Za-z])"
            r"(?<=[a-z]-|.[KB]|K-)[\w-]{20,}",
            _EDGE + r"tskey-[a-z]{3,12}-[\w-]{10,}",
            _EDGE
            + r"(?:LTAI|AKID|AQVN|AKCp|ABSK|EZ[AT]K|cmVmdGtuOj)(?=\w{0,99}\d)[A-Za-z0-9+/=-]{16,}",
            _EDGE + r"dp\.(?:ct|st|sa|scim|audit)\.[\w.-]{16,}",
            _EDGE + r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
            _EDGE + r"[\w~.-]{3}\dQ~[\w~.-]{31,34}",
            _EDGE + r"1//0[\w-]{20,}",
            _EDGE + r"sl\.[\w-]{60,}",
            _EDGE + r"[0-9a-f]{32}-us\d{1,2}(?!\d)",
            _EDGE + r"[0-9a-f]{36}NRAL",
            _EDGE + r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",
            _EDGE + r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}",
            _EDGE
            + r"(?:HRKU-|ms-|[sp]k-lf-|amzn\.mws\.)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}",
            r"\$(?:2[aby]|5|6|y|apr1|1|argon2\w{0,2}|scrypt|pbkdf2-\w+)\$[\w./$,=+-]{20,}",
            r"PuTTY-User-Key-File-.*?(?:Private-MAC: *\w+|\Z)",
        )
    ),
    re.DOTALL,
)
"""Secrets that begin as their makers have them begin."""

_HOOKS = re.compile(
    r"((?<![\w.-])(?:[\w-]{1,63}\.){0,6}(?:hooks?\.[\w.-]{1,100}|webhook\.office\.com)(?::\d+)?/"
    r"(?:(?:services|workflows|triggers|hooks|catch|webhookb2)/)*"
    r"|://[^\s\"'<>?#]{1,300}?/(?:web)?hooks?/"
    r"|://api\.telegram\.org/|://[\w.]{0,50}ifttt\.com/trigger/)[^\s\"'<>]+",
    re.IGNORECASE,
)
"""Addresses that are secrets themselves: whoever knows one may write there."""
_USERINFO = re.compile(r"(://)([^\s\"'<>,;]{1,600})@(?=\S)")
"""`scheme://user:password@host`; a password may hold a slash and an `@`: see `_userinfo`."""
_PORT_OR_PATH = re.compile(r"[^:/?#]*(?::\d{1,5})?[/?#]")
_NO_SCHEME = re.compile(
    r"(?<![\w/.@:-])[\w.+-]{1,100}:(?!\d+(?:\.\d+)*@)[^\s:@/\"'<>,]{3,200}@(?!sha\d)(?=[A-Za-z0-9\[(])"
)
"""`user:password@host`, as some drivers want it."""
_OF_ORACLE = re.compile(r"(\bjdbc:oracle:\w{1,9}:)[^\s@]{1,300}(?=@)")
_PARAMETERS = re.compile(
    r"(\b(?:authorization|www-authenticate)[\"']?\s{0,9}[:=]\s{0,9}[\"']?)"
    r"((?:digest|aws4-\S{1,30}|hawk|oauth|mac|ntlm|negotiate)\s[^\n]+)",
    re.IGNORECASE,
)
"""A header with parameters in quotes: all of its line goes."""
_BEARER = re.compile(r"(\bbearer\s+)(?=[\w.~+/=-]{0,99}[\d=._+/-])([\w.~+/=-]{6,})", re.IGNORECASE)
_BASIC = re.compile(r"(\bbasic\s+)([A-Za-z0-9+/]{6,}={0,2})", re.IGNORECASE)
_OF_A_PAIR = re.compile(
    r"(?<![\w+/=.-])(?=[A-Z+/]{0,99}[a-z])[A-Za-z0-9+/]{12,1000}={0,2}(?![\w+/=-])"
)
"""What may be `user:password` in base 64."""
_USER_FLAG = re.compile(r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]?)([^\s:]+:[^\s]+)")
_QUERY = re.compile(r"([?&;]([\w.%\[\]-]{1,100})=)([^\s&#;\"'<>]+)")
_QUERY_ALSO = frozenset(
    ("sig", "key", "code", "st", "x-amz-credential", "awsaccesskeyid", "pw", "p")
)

_QUOTED = r"[bruf]{0,2}(?:\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?)|\\\"[^\"\n]*\"?"
_NAMED = re.compile(
    r"(?P<dash>(?<![\w-])--?)?(?<![\w.])(?P<name>[^\W\d][\w.-]{0,120}+)(?P<quote>\\?[\"']?)"
    r"(?P<joint>(?:(?<=[\"'])\])?\s{0,20}(?:[=:]{1,2}>?|->|[\u2190\u2192\u21d2\uff1d\uff1a]|%3[AaDd])"
    r"\s{0,20}(?:(?:!!?\w{1,20}|&\w{1,20})\s{1,4}(?=[^\s,;]))?|"
    r"\s{1,3}(?:is|to|was|becomes)\s{1,3}|[ ]{1,3}|"
    r"(?<=[\"']),\s{0,80})"
)
"""A name and what joins its value: `k=v`, `"k": "v"`, `--k v`, `k is 'v'`."""
_VALUE = re.compile(rf"{_QUOTED}|\[[^\[\]\n]*\]?|[^\s,;&\"'\[\]{{}}()<>=][^\s,;&\"'{{}}()<>]*")
_ELEMENT = re.compile(
    r"<([A-Za-z][\w.:-]{0,99})(>)((?:<!\[CDATA\[)?[^<>\s][^<>]{0,4000}(?:\]\]>)?)(?=</\1>)"
)
"""An element of XML whose name says what it holds."""
_LOGIN = re.compile(
    r"(\b(?:password|passwd|passphrase|passwort|pwd)\s{1,4}(?!\S*[:=]))"
    r"(?=\S{0,99}[A-Za-z])(?=\S{0,99}\d)([^\s,;\"'(){}]{5,})",
    re.IGNORECASE,
)
"""`login me password x1`, as `.netrc` and people write it."""
_NAMED_VALUE = re.compile(
    r"(\b(?:name|key|variable|env|header)\\?[\"']?\s{0,9}[:=]\s{0,9}\\?[\"']?([\w.-]{1,100})\\?[\"']?[\s,]{1,40}"
    r"\\?[\"']?(?:value|val|default|content)\\?[\"']?\s{0,9}[:=]\s{0,9}\\?)"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}\"']+)"
)
"""`"name": "DB_PASSWORD", "value": "x"`."""
_COMMAND = re.compile(
    r"(\b(?:sshpass\s{1,4}-p\s{0,4}|(?:docker|podman|helm|az|oc)\b[^\n|;&]{0,99}\slogin\b[^\n|;&]{0,200}?\s-p\s{0,4}|(?:mysql\w*|mariadb\w*|mongo\w*)\b[^\n|;&]{0,200}?\s-p))"
    r"(?=[^\s-])(\S+)"
)
"""Programs that take a password behind a letter."""
_HEADER = re.compile(
    r"((?:^|(?<=[\s\"',;{(]))(?:proxy-)?(?:authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|auth)[\w-]*)"
    r"[\"']?\s{0,20}[:=]\s{0,20}[\"']?)(?!\s*[\"'\[{])([^\"'\n\r]+)",
    re.IGNORECASE,
)
"""A header: all of its line is its value."""


_MAY_NAME = _words(
    "pass pwd secret token key auth cookie session dsn cred bearer hook sig sas jwt pat otp "
    "conn hmac mnemonic netrc csrf xsrf phrase kennwort pw psk tok pin salt nonce pem sess sid "
    "login private mfa kube account rsa keystore openai slack discord database db mongo redis otp "
    "broker haslo heslo jelszo senha parola contrase motdepasse mot_de geheim wacht losenord "
    "salasana wandb hf_ instrument mysql mariadb docker podman helm"
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
    return _without(text, known_secrets())


_SHORT = 64
"""Longest text of which it is remembered what is left of it: names and values come in every
document of a record."""


def _without(text: str, secrets: tuple[str, ...]) -> str:
    """As `scrubbed_text`, with the values of variables that are secrets."""
    return (_without_briefly if len(text) <= _SHORT else _without_any)(text, secrets)


def _without_any(text: str, secrets: tuple[str, ...]) -> str:
    if len(text) < 4:
        return text
    for value in secrets if len(text) >= _LEAST_KNOWN else ():
        if value in text:
            text = text.replace(value, HIDDEN)
    if "-----BEGIN" in text or _MARKS.search(text):
        text = _FORMS.sub(HIDDEN, text)
    if "hook" in text.casefold() or "://" in text:
        text = _HOOKS.sub(rf"\g<1>{HIDDEN}", text)
    if "://" in text:
        text = _USERINFO.sub(_userinfo, text)
    if "@" in text:
        text = _OF_ORACLE.sub(rf"\g<1>{HIDDEN}", text)
        text = _NO_SCHEME.sub(f"{HIDDEN}@", text)
    if "=" in text:
        text = _QUERY.sub(_query, text)
    if " " in text:
        text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
        text = _BASIC.sub(_basic, text)
        text = _USER_FLAG.sub(rf"\g<1>{HIDDEN}", text)
    lower = text.casefold()
    if not text.isascii() or any(word in lower for word in _MAY_NAME):
        text = _without_blocks(text)
        text = _LISTED.sub(_listed, text)
        text = _ELEMENT.sub(_element, text)
        text = _LOGIN.sub(rf"\g<1>{HIDDEN}", text)
        text = _COMMAND.sub(rf"\g<1>{HIDDEN}", text)
        text = _NAMED_VALUE.sub(_named_value, text)
        text = _PARAMETERS.sub(rf"\g<1>{HIDDEN}", text)
        text = _HEADER.sub(rf"\g<1>{HIDDEN}", text)
        text = _named_hidden(text)
    text = _OF_A_PAIR.sub(_pair, text)
    return _without_opaque(text)


_without_briefly = lru_cache(maxsize=16_384)(_without_any)


def scrubbed(data: Any, secrets: tuple[str, ...] | None = None) -> Any:
    """A copy of what JSON or YAML may hold, without secrets: values, items of lists, and keys.

    The secrets are `known_secrets()`, where they are known already.
    """
    return _scrubbed(data, "", known_secrets() if secrets is None else secrets)


def _scrubbed(data: Any, under: str, secrets: tuple[str, ...]) -> Any:
    if type(data) in TEXTLESS:
        return data
    if isinstance(data, str):
        is_digest = _names_digest(under) and _HEX.fullmatch(data)
        return data if is_digest else _without(data, secrets)
    if isinstance(data, Mapping):
        if len(data) <= FEW_KEYS and _says_nothing(tuple(data), secrets):
            return {
                key: value if type(value) in TEXTLESS else _scrubbed(value, key, secrets)
                for key, value in data.items()
            }
        scrubbed: dict[Any, Any] = {}
        in_pairs = _keys_in_pairs(data)
        for key, value in data.items():
            if key in in_pairs:
                scrubbed[key] = HIDDEN
                continue
            name = _without(key, secrets) if isinstance(key, str) else key
            while name != key and name in scrubbed:
                name = f"{name}*"
            hides = under not in _OF_LABELS and holds_secret(key, value)
            scrubbed[name] = HIDDEN if hides else _scrubbed(value, str(key), secrets)
        return scrubbed
    if isinstance(data, list | tuple):
        if TEXTLESS.issuperset(map(type, data)):
            return list(data)
        return [_of_list(one, under, secrets) for one in _command_line(data)]
    return data


@lru_cache(maxsize=1024)
def _says_nothing(keys: tuple[Any, ...], secrets: tuple[str, ...]) -> bool:
    """Whether keys say nothing of a secret, whatever their values are: nearly all of a record's.

    They are the same in each of thousands of trials.
    """
    return all(
        isinstance(key, str)
        and key.lower() not in _NAMING
        and not _strength(key)
        and _without(key, secrets) == key
        for key in keys
    )


_OF_LABELS = ("label2id", "vocab")
"""Sections whose keys are words of the data: a classifier of secrets has `secret` among them."""
_NAMING = _words("name key variable env var header field option flag setting")
_VALUED = _words("value val default content data secret values")


def _keys_in_pairs(data: Mapping[Any, Any]) -> frozenset[Any]:
    """Keys of a section that is a pair, `{name: DB_PASSWORD, value: x}`, with the secret."""
    named = any(
        isinstance(key, str)
        and key.lower() in _NAMING
        and isinstance(value, str)
        and len(value) <= _LONGEST_NAME
        and is_secret(value)
        for key, value in data.items()
    )
    if not named:
        return frozenset()
    return frozenset(
        key
        for key, value in data.items()
        if isinstance(key, str) and key.lower() in _VALUED and value not in (None, "", HIDDEN)
    )


def _of_list(item: Any, under: str, secrets: tuple[str, ...]) -> Any:
    return item if item is HIDDEN else _scrubbed(item, under, secrets)


def _command_line(items: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """A list whose items may be the words of a command line: `--token`, then its value."""
    flag, joins = "", False
    for place, item in enumerate(items):
        is_text = isinstance(item, str)
        is_flag = is_text and _FLAG.fullmatch(item) is not None
        # A secret may begin with a dash; `--x` after a flag is another flag.
        follows = flag and item not in (None, HIDDEN) and not (is_flag and item[:2] == "--")
        if follows and is_flag and len(item) < 4:
            follows = False
        if follows and flag.startswith("-") and not isinstance(item, str | list | tuple | int):
            follows = False
        yield HIDDEN if follows else item
        flag = ""
        if is_text and not follows:
            names = is_flag and is_secret(item)
            # A list of names and values: the first of two, or the third of four.
            names = names or (
                place % 2 == 0 and len(items) % 2 == 0 and _strength_of_item(item) == 2
            )
            joins = joins or item.rpartition("/")[2].startswith(("sshpass", "mysql", "mariadb"))
            flag = item if names or (joins and item in ("-p", "--pass")) else ""


_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


def _strength_of_item(item: str) -> int:
    return _strength(item) if re.fullmatch(r"[^\W\d][\w.-]{2,60}", item) else 0


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
                yield from texts_of(value) if holds_secret(key, value) else withheld(value)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from withheld(item)


def texts_of(value: Any) -> Iterator[str]:
    """All texts in what JSON may hold, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_of(inner)


_BLOCK = re.compile(
    r"^[ ]*(?:-[ ]+){0,9}(?P<quote>[\"']?)(?P<name>[^\W\d][\w.-]{0,120})(?P=quote)[ ]?:[ ]*"
    r"(?P<form>[|>][+-]?\d?|)[ ]*(?:#[^\n]*)?$"
)
"""A key of YAML whose value stands on the lines below it."""


def _without_blocks(text: str) -> str:
    """A text whose YAML has no secret on the lines below the secret's name."""
    if ":" not in text or "\n" not in text:
        return text
    rows = text.split("\n")
    lines: list[str] = []
    at = 0
    while at < len(rows):
        row = rows[at]
        lines.append(row)
        at += 1
        block = _BLOCK.match(row)
        if block is None or not (strength := _strength(block["name"])):
            continue
        depth, end = block.start("quote"), at
        while end < len(rows) and end - at < _LONGEST_BLOCK and _is_below(rows[end], depth):
            end += 1
        below = [line for line in rows[at:end] if line.strip()]
        if below and (strength == 2 or block["form"] or any(map(_says_text, below))):
            # What follows begins with the line's end that is there.
            lines.append(f"{' ' * (depth + 2)}{HIDDEN}")
            lines += [""] * (end - at - len("\n".join(rows[at:end]).rstrip().split("\n")))
            at = end
    return "\n".join(lines)


_LONGEST_BLOCK = 2000


_LISTED = re.compile(
    r"^([ ]*(?:-[ ]+){1,9}[\"']?(--?[A-Za-z][\w.-]{0,99}|[^\W\d][\w.-]{0,99})[\"']?\n"
    r"[ ]*-[ ]+)(\S[^\n]*)$",
    re.MULTILINE,
)
"""Two items of a list in YAML, of which the first may say what the second is."""


def _listed(match: re.Match[str]) -> str:
    name = match[2]
    hides = is_secret(name) if name.startswith("-") else _strength_of_item(name) == 2
    return f"{match[1]}{HIDDEN}" if hides and not match[3].startswith("--") else match[0]


def _is_below(row: str, depth: int) -> bool:
    indent = len(row) - len(row.lstrip(" "))
    return not row.strip() or indent > depth or (indent == depth and row.lstrip().startswith("- "))


def _says_text(row: str) -> bool:
    """Whether a line of a block has a value that a secret may be."""
    value = row.rpartition(": ")[2].strip(" -\"'")
    return _PLAIN_TOKEN.fullmatch(value) is None and re.fullmatch(r"[\d.e+-]*|.*:", value) is None


def _named_value(match: re.Match[str]) -> str:
    if not is_secret(match[2]) or HIDDEN in match[3]:
        return match[0]
    quote = match[3][0] if match[3][0] in "\"'" else ""
    return f"{match[1]}{quote}{HIDDEN}{quote}"


def _element(match: re.Match[str]) -> str:
    hides = holds_secret(match[1], match[3])
    return f"<{match[1]}>{HIDDEN}" if hides else match[0]


# Parts of it.

_LEAST_KNOWN = 8
"""Shortest value of a variable that is looked for in texts: shorter ones are words."""


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
    r"tskey|ntn_|re_|hv[bsr]|ops_|gl[cs]|dp\.|pypi-|dckr|nvapi|pplx|SG\.|AC|SK|key-|dapi|ATATT|EAA|:AA|sq0|AGE-|"
    r"wandb_v1|pcsk|rpa_|nfp_|flp_|pscale|bkua|KGAT|lsv2|fo1_|fm[12]_|CCIPAT|CLOJARS|sntryu|fw_|cio|y0_|"
    r"xai-|csk-|glimt|pul-|PMAK|NRAK|ATBB|[ap][as]-|LTAI|AKID|AQVN|AKCp|EZ[AT]K|cmVmd|pat[A-Za-z0-9]|"
    r"\dQ~|1//0|sl\.|-us\d|NRAL|atlasv1|[MNO][\w-]{23,27}\.|HRKU|ms-|k-lf-|mws|\$|PuTTY|lf_|hfp_"
)
"""How the texts of `_FORMS` begin: most texts hold none of these, and this search is quick."""


def _userinfo(match: re.Match[str]) -> str:
    """An `@` in a path ends no user's name: `host/@name`, `host:8080/@name`."""
    user = match[2]
    if user in ("git", HIDDEN) or _PORT_OR_PATH.match(user):
        return match[0]
    return f"{match[1]}{HIDDEN}@"


def _query(match: re.Match[str]) -> str:
    name = match[2]
    hides = is_secret(name) or name.lower() in _QUERY_ALSO
    return f"{match[1]}{HIDDEN}" if hides else match[0]


def _basic(match: re.Match[str]) -> str:
    """`Basic` is also a word: what follows it is a secret if it says `user:password`."""
    is_pair = b":" in _printed(match[2])
    return f"{match[1]}{HIDDEN}" if is_pair else match[0]


def _pair(match: re.Match[str]) -> str:
    """As many letters in a row seldom say, decoded, one word, a colon and another."""
    return HIDDEN if _USER_AND_PASSWORD.fullmatch(_printed(match[0])) else match[0]


_USER_AND_PASSWORD = re.compile(rb"[\w.@+-]{1,100}:[^\s:]{3,}")


def _printed(encoded: str) -> bytes:
    """What a text in base 64 says; nothing where it is none, or cannot be printed."""
    try:
        decoded = base64.b64decode(encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4))
    except (binascii.Error, ValueError):
        return b""
    return decoded if all(32 <= byte < 127 for byte in decoded) else b""


def _named_hidden(text: str) -> str:
    """A text whose values after the name of a secret are hidden."""
    parts, at = [], 0
    most = 4 * len(text) + _LONGEST_SECTION  # sections in sections are read again and again
    for named in _NAMED.finditer(text):
        if named.start() < at or not (strength := _strength(named["name"])):
            continue
        end = _end_of_section(text, named.end()) if most > 0 else 0
        most -= end - named.end() if end else 0
        if end and _tells_section(named, text[named.end() : end], strength):
            quote = named["quote"] or "'"
            parts.append(f"{text[at : named.end()]}{quote}{HIDDEN}{quote}")
            at = end
            continue
        value = _VALUE.match(text, named.end())
        if value is not None and _tells(named, value[0], strength):
            # A list in JSON gives way to a text.
            first = value[0][0]
            quote = first if first in "\"'" else named["quote"] * (first in "[\\")
            parts.append(f"{text[at : value.start()]}{quote}{HIDDEN}{quote}")
            at = value.end()
    return "".join((*parts, text[at:])) if parts else text


def _tells(named: re.Match[str], written: str, strength: int) -> bool:
    """Whether this name and value are taken for a secret's."""
    value, joint = written.strip("\"'[]\\ "), _joint(named)
    if not value or value.startswith(HIDDEN) or _PLAIN_TOKEN.fullmatch(value):
        return False
    if _is_working_folder(named["name"], value):
        return False
    is_quoted, is_flag = _IS_QUOTED.match(written) is not None, named["dash"] is not None
    if joint == ",":  # ('password', 'x')
        begins = named.string[max(0, named.start() - 80) : named.start() - 1].rstrip()
        is_pair = strength == 2 and begins[-1:] in ("(", "[")
        return is_quoted and named["quote"] != "" and (is_flag or is_pair)
    if joint == "":
        return is_flag and not value.startswith("-")
    if joint not in ("=", ":"):
        return is_quoted or _is_dense(value) or (strength == 2 and any(map(str.isdigit, value)))
    if is_flag or (named["quote"] and is_quoted) or (joint == "=" and strength == 2):
        return True
    if joint == "=" and (named["joint"] == "=" or "]" in named["joint"]):
        is_variable = named["name"].isupper() and _PLACEHOLDER.fullmatch(value) is None
        return is_variable or _has_both(value) or _is_dense(value)
    if joint == ":" and _is_line(named, written) and _has_both(value):
        return True
    # `password: too short` is prose; a word after it is no secret unless it looks like one.
    return (strength == 2 and (is_quoted or not _is_word(value))) or _is_dense(value)


def _joint(named: re.Match[str]) -> str:
    """What joins a name and its value, whichever way it is spelled: `=`, `:`, a word or none."""
    joint = named["joint"].strip()
    if joint[:1] == ":" and joint[1:2] not in ("=", ":"):
        return ":"
    return "=" if _OTHER_JOINTS.match(joint) else joint


_OTHER_JOINTS = re.compile(r"\]?\s*(?:[=:]|->|%3|[\u2190\u2192\u21d2\uff1d\uff1a])")


def _is_line(named: re.Match[str], written: str) -> bool:
    """Whether a name and its value are all that stands on a line, as in YAML."""
    text, end = named.string, named.end() + len(written)
    before = text[text.rfind("\n", 0, named.start()) + 1 : named.start()]
    return before.strip(" -\"'") == "" and text[end : end + 1] in ("", "\n", "\r")


def _has_both(value: str) -> bool:
    """Whether a text has letters and digits, and is no number, no path and no name of a thing."""
    return (
        len(value) >= 6
        and re.search(r"[A-Za-z].*\d|\d.*[A-Za-z]", value) is not None
        and not re.fullmatch(r"[+-]?[\d.]+(?:e[+-]?\d+)?[A-Za-z]{0,3}", value)
        and not re.search(r"[/._]", value)
    )


_PLACEHOLDER = re.compile(r"\d+|\W*VAL(?:UE)?\W*|\W+|[xX]+")
_IS_QUOTED = re.compile(r"[bruf]{0,2}[\"']|\[|\\[\"']")
_LONGEST_SECTION = 20_000
_OPENS = {"[": "]", "{": "}", "(": ")"}


def _end_of_section(text: str, start: int) -> int:
    """Where a list or a section ends that begins at a place; 0: none does, or it is too long."""
    if text[start : start + 1] not in ("[", "{"):
        return 0
    stack: list[str] = []
    quote = ""
    at, end = start, min(len(text), start + _LONGEST_SECTION)
    while at < end:
        character = text[at]
        if character == "\\":
            at += 1 if quote else 0
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _OPENS:
            stack.append(_OPENS[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return at + 1
        at += 1
    return end  # cut short: what is there of it goes


def _tells_section(named: re.Match[str], written: str, strength: int) -> bool:
    """Whether a list or a section under the name of a secret holds one."""
    if _joint(named) not in ("=", ":") or HIDDEN in written[:8]:
        return False
    texts = [a or b for a, b in re.findall(r"\"([^\"\n]+)\"|'([^'\n]+)'", written[1:])]
    if strength == 2:
        return written.strip("[]{}() \n\t") != ""
    return any(not _PLAIN_TOKEN.fullmatch(one) for one in texts)


def _is_word(value: str) -> bool:
    return re.fullmatch(r"[A-Za-z]{1,20}[.!?:]?", value) is not None and value.lower() in _PROSE


_PROSE = _words(
    "is was not no must may too a an the should cannot invalid missing required unknown "
    "expected str string int none null true false of for in it there text number list has "
    "have wrong see by with from as at on only when where which that your its and or"
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
_CHUNK = re.compile(r"[^\s\"'`,;(){}\[\]<>|]{20,}")
_RUN = re.compile(r"[A-Za-z0-9_\-+=~$%!]{20,}")
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
_LEAST_MIXED = 20
"""The same of a run in which small letters, capitals and digits alternate and nothing else is."""
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
    if len(text) < _LEAST_MIXED:
        return text
    parts, at = [], 0
    for chunk in _CHUNK.finditer(text):
        hidden = _chunk_hidden(chunk[0], text[max(0, chunk.start() - 16) : chunk.start()])
        if hidden != chunk[0]:
            parts += [text[at : chunk.start()], hidden]
            at = chunk.end()
    return "".join((*parts, text[at:])) if parts else text


def _chunk_hidden(chunk: str, before: str) -> str:
    if "/" in chunk or "\\" in chunk:
        if "://" not in chunk:
            hidden = _base64_hidden(chunk)
            # Else a path: its parts may be digests, which have letters of one kind.
            return hidden if hidden != chunk else _PART_OF_PATH.sub(_part_hidden, chunk)
        scheme, _, rest = chunk.partition("://")
        hidden = _runs_hidden(rest, "")
        return chunk if hidden == rest else f"{scheme}://{hidden}"
    return _runs_hidden(chunk, before)


_PART_OF_PATH = re.compile(r"[A-Za-z0-9_\-+=~$%!]{20,}")


def _part_hidden(match: re.Match[str]) -> str:
    return HIDDEN if _is_mixed(match[0]) and _is_opaque(match[0]) else match[0]


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
            is_named = _names_digest(name) or len(value) < _LEAST_MIXED
            return run if is_named or not _is_opaque(value) else f"{name}={HIDDEN}"
        return HIDDEN if _is_opaque(run) else run

    return _RUN.sub(hide, chunk)


@lru_cache(maxsize=4096)
def _names_digest(name: str) -> bool:
    """Whether what stands under a name is the digest of something, as `_commit_hash` is."""
    return not _DIGEST_WORDS.isdisjoint(
        word.lower() for word in re.findall(r"[A-Za-z]+\d*", name.replace("_", " "))
    )


@lru_cache(maxsize=4096)
def _is_opaque(run: str) -> bool:
    """Whether a run of characters is random: no words in it, and many characters of many."""
    run = run[:_LONGEST_OPAQUE].strip("=-_")
    if len(run) < (_LEAST_MIXED if _is_mixed(run) and run.isalnum() else _LEAST_OPAQUE):
        return False
    if (part := _HEX_WITHIN.search(run)) and len(part[0]) < len(run):
        return len(set(part[0])) >= 8 and not part[0].isdigit()
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


_HEX_WITHIN = re.compile(r"(?<![A-Za-z0-9])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![A-Za-z0-9])")


def _is_mixed(run: str) -> bool:
    """Whether small letters, capitals and digits alternate, as no name of a thing has them."""
    if not (any(map(str.islower, run)) and any(map(str.isupper, run))):
        return False
    letters = [c for c in run if c.isalnum()]
    changes = sum(_kind(a) != _kind(b) for a, b in pairwise(letters))
    return sum(map(str.isdigit, run)) >= 2 and changes >= 0.42 * (len(letters) - 1)


def is_worded(text: str, least: float = 0.42) -> bool:
    """Whether words are in a text, by its pairs of letters: random letters seldom look so.

    Args:
        text: Any text.
        least: Share of its pairs of letters that words have often.
    """
    pairs = [(a + b).lower() for a, b in pairwise(text) if (a + b).isalpha()]
    common = sum(pair in _PAIRS_OF_LETTERS for pair in pairs)
    changes = sum(_kind(a) != _kind(b) for a, b in pairwise(text))
    is_even = changes < _WORDY * (len(text) - 1)
    return len(pairs) >= 5 and is_even and common >= least * len(pairs)


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
