"""Names of the arguments of programs whose files `check` reads, read off their sources.

python -m tests.record_argument_names READER FOLDER...

Adds the fields of all classes in these folders to those of the reader, which other releases had;
of `FOLDER:CLASS` those of this class and its bases, as of axolotl's `AxolotlInputConfig`.
Writes `autotune/engines/deepspeed/sources/argument_names.json`. Nothing is imported.
"""

import ast
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

RECORDED = Path("autotune/engines/deepspeed/sources/argument_names.json")


def names_in(folder: Path, *roots: str) -> Iterator[str]:
    """Fields of all classes of a folder, or of one file; `roots`: of these and their bases."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else (folder,):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    asked = list(roots or classes)
    for name in asked:
        for node in classes.pop(name, ()):
            asked += [ast.unparse(base).split(".")[-1] for base in node.bases]
            for field in (one for one in node.body if isinstance(one, ast.AnnAssign)):
                if isinstance(field.target, ast.Name) and field.target.id.islower():
                    yield field.target.id


def main() -> None:
    """Add what the folders hold."""
    reader, *folders = sys.argv[1:]
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    found = {
        name
        for folder in folders
        for name in names_in(Path(folder.split(":")[0]), *folder.split(":")[1:])
    }
    recorded[reader]["names"] = sorted({*recorded[reader]["names"], *found})
    parts = []
    for name, of in recorded.items():
        facts = "".join(f'  "{one}": {json.dumps(of[one])},\n' for one in of if one != "names")
        names = textwrap.fill(", ".join(map(json.dumps, of["names"])), 97)
        shown = textwrap.indent(names, "   ")
        parts.append(f' "{name}": {{\n{facts}  "names": [\n{shown}\n  ]\n }}')
    RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
