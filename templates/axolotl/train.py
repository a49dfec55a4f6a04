"""Train with axolotl, by `axolotl.yaml`; it starts no ranks of its own.

Arguments after the script's name come on top, as axolotl spells them: `--max_steps 2`.
"""

import os

from start import HERE, prepare


def main() -> None:
    """Write what the run starts from, and train."""
    os.chdir(HERE)  # the paths in axolotl.yaml start here
    prepare()
    import fire
    from axolotl.cli.train import do_cli

    def train(**arguments: object) -> None:
        do_cli("axolotl.yaml", **arguments)

    fire.Fire(train)


if __name__ == "__main__":
    main()
