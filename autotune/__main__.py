"""Entry point of `python -m autotune`."""

from autotune.cli import main

if __name__ == "__main__":
    main()
