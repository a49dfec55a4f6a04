"""Train with LLaMA-Factory, by `llamafactory.yaml`; it starts no ranks of its own.

Arguments after the script's name come on top, as LLaMA-Factory spells them: `max_steps=2`.
"""

import os
import sys

from start import HERE, prepare


def main() -> None:
    """Write what the run starts from, and train."""
    os.chdir(HERE)  # the paths in llamafactory.yaml start here
    prepare()
    sys.argv[1:] = ["llamafactory.yaml", *sys.argv[1:]]
    from llamafactory.train.tuner import run_exp

    run_exp()


if __name__ == "__main__":
    main()
