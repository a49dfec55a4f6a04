"""`models` and `knobs`: what can be named."""

from dataclasses import asdict

from autotune import DEFAULT_ENGINE
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.cli.base import DATA, cli, print_json


@cli.command(epilog="autotune models qwen3")
def models(
    name: str | None = None,
    as_json: bool = False,
) -> None:
    """List the models that --model knows by name, with their sources.

    Any other is a Hugging Face folder, a config.json, a repository in the local cache, or a
    package.module:factory.
    """
    from autotune.job.published import find_presets
    from autotune.report.terminal.models import print_models

    found = find_presets(name or "")
    print_json([asdict(preset) for preset in found]) if as_json else print_models(DATA, found)


@cli.command(epilog="autotune knobs zero")
def knobs(
    name: str | None = None,
    engine: str = (DEFAULT_ENGINE),
    as_json: bool = False,
) -> None:
    """List the knobs of an engine: what --set takes, and what a search may change."""
    from autotune.engines.base import find_engine
    from autotune.report.terminal.knobs import knob_rows, print_knobs

    known = find_engine(engine).knobs.values()
    found = [knob for knob in known if (name or "").lower() in knob.name]
    if not found:
        guess = did_you_mean(str(name), (knob.name for knob in known))
        raise JobError(
            f"{name}: no knob has this in its name", f"{guess}`autotune knobs` lists them"
        )
    print_json(knob_rows(found)) if as_json else print_knobs(DATA, found)
