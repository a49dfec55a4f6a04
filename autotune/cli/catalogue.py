"""`models` and `knobs`: what can be named."""

from dataclasses import asdict

from autotune import DEFAULT_ENGINE
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.cli.base import DATA, cli, print_json, show_markdown


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
    from autotune.report.terminal.tables import print_told

    found = find_presets(name or "")
    if as_json:
        print_json([asdict(preset) for preset in found])
    else:
        print_told(DATA, "models", {"models": found, "width": DATA.width})


@cli.command(epilog="autotune knobs zero")
def knobs(
    name: str | None = None,
    engine: str = (DEFAULT_ENGINE),
    as_json: bool = False,
) -> None:
    """List the knobs that --set takes and a search may change.

    A whole name shows where the knob acts, and on what it was tried.
    """
    from autotune.engines.base import find_engine
    from autotune.report.knobs_page import section_of
    from autotune.report.terminal.tables import print_told
    from autotune.space.candidate import format_value

    known = find_engine(engine).knobs.values()
    found = [knob for knob in known if (name or "").lower() in knob.name]
    if not found:
        guess = did_you_mean(str(name), (knob.name for knob in known))
        raise JobError.of("cli.no_such_knob", name=name, engine=engine, guess=guess)
    chosen = find_engine(engine).knobs.get(name or "")
    if as_json:
        names = {"values": "values_in_words"}
        fields = ("name", "kind", "values", "default", "help")
        print_json([{n: getattr(k, names.get(n, n)) for n in fields} for k in found])
    elif chosen is not None:
        show_markdown(section_of(engine, chosen))
    else:
        values = {"knobs": found, "is_wide": DATA.width >= 120, "spelled": format_value}
        print_told(DATA, "knobs", values)
