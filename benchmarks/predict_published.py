"""Predict every row of a table of training runs as people publish them, and write it.

Spellings are free, settings are read in notes, and what a row leaves open is filled; `assumed`
says with what. A row that nobody can predict has its reason. Columns of results are never read.
"""

import argparse
import json
import sys
from pathlib import Path

from published import rows_to_plans

from autotune.app.estimate import estimate_rows
from autotune.base.errors import AutotuneError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, metavar="IN.csv", help="the published runs")
    parser.add_argument("out", type=Path, metavar="OUT.csv", help="the same with predictions")
    parser.add_argument("--accelerators", type=Path, help="a file of more accelerators")
    parser.add_argument("--constants", type=Path, help="other constants than the shipped ones")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    try:
        done = estimate_rows(
            options.table,
            options.out,
            accelerators=options.accelerators,
            constants=options.constants,
            reader=rows_to_plans,
        )
    except AutotuneError as error:
        sys.exit(f"{error.message}\n{error.hint}")
    if options.json:
        print(json.dumps(done.as_dict()))
        return
    print(f"predicted {done.predicted} of {done.rows} rows, in {done.out}")
    for reason, rows in done.reasons.items():
        print(f"  {rows} not: {reason}")


if __name__ == "__main__":
    main()
