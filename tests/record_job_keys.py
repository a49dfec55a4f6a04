"""Files that tell the keys of a job: `python -m tests.record_job_keys` writes them.

`autotune/app/api/keys.py` types the arguments of the Python API, so that mypy and editors know
them. docs/job.md has a table of the keys. A test compares both with the declarations of `JobFile`.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from autotune.job.job import declared_keys, keys_of
from autotune.job.keys import JobKey, Topic

FUNCTIONS = ("explain", "plan", "search")
"""Functions of the API that take keys of a job, each with all keys of the one before it;
`estimate` takes those of `explain`."""
REPOSITORY = Path(__file__).parents[1]
STUB = REPOSITORY / "autotune" / "app" / "api" / "keys.py"
PAGE = REPOSITORY / "docs" / "job.md"
_WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
}
"""Type of a flag -> in words; any other is a text."""
_TABLE = re.compile(r"(?<=<!-- keys -->\n).*(?=<!-- end of keys -->)", re.DOTALL)


def stub() -> str:
    """The text of `keys.py`."""
    classes, base, known = [], "TypedDict", set[str]()
    for name in FUNCTIONS:
        keys = {flag: key for flag, key in keys_of(name).items() if flag not in known}
        classes.append(
            f"class {name.title()}Keys({base}, total=False):\n"
            f'    """Keys of a job that `{name}` takes."""\n\n'
            + "".join(f"    {flag}: {key.argument}\n" for flag, key in keys.items())
        )
        base, known = f"{name.title()}Keys", known | keys.keys()
    return (
        '"""Arguments of the Python API, one for each key of a job; '
        'by `tests.record_job_keys`."""\n\n'
        "from pathlib import Path\nfrom typing import TypedDict\n\n\n" + "\n\n".join(classes)
    )


def page(text: str) -> str:
    """The text of docs/job.md with the table of the keys as it has to be."""
    return _TABLE.sub(lambda _: "".join(f"{line}\n" for line in _table()), text)


def _table() -> Iterator[str]:
    keys = sorted(declared_keys().values(), key=lambda key: [*Topic].index(key.group))
    for group, members in groupby(keys, key=lambda key: key.group):
        yield f"**{group}**"
        yield ""
        yield "| key | value | default | meaning |"
        yield "|---|---|---|---|"
        for key in members:
            flag = "" if key.typed[2:].replace("-", "_") == key.name else f" (`{key.typed}`)"
            default = "required" if key.default is ... else key.default_text
            yield f"| `{key.name}`{flag} | {_value(key)} | {default} | {key.help} |"
        yield ""


def _value(key: JobKey) -> str:
    """What a key holds: its type, unit and bounds."""
    if key.unit in ("duration", "size", "section"):
        return key.unit
    kind = " or ".join(_WORDS.get(one, "text") for one in get_args(key.takes) or (key.takes,))
    bounds = key.bounds.removesuffix(" up")
    return ", ".join(part for part in (f"{kind} {bounds}".rstrip(), key.unit) if part)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
