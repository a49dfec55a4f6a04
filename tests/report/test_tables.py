"""Tables and named facts of a terminal: nothing is broken in the middle that has room."""

import io

import pytest
from rich.console import Console

from autotune.report.terminal.tables import SettingsCell, plain_table, print_facts

KNOB = "stage3.param_persistence_threshold"
SETTINGS = f"zero.stage=3 {KNOB}=100000 overlap_comm=true"


def lines_of(width: int, *facts: tuple[str, str]) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    if facts:
        print_facts(console, facts)
    else:
        table = plain_table("*name", ">rate", "*what", "*settings")
        table.add_row("a-study-of-mine-2031", "98765", "one word or two", SettingsCell(SETTINGS))
        table.add_row("other", "4", "", SettingsCell("zero.stage=1"))
        console.print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [56, 60, 69, 70, 80, 100, 160])
def test_names_figures_and_values_stay_whole(width: int) -> None:
    shown = lines_of(width)
    assert max(map(len, shown)) <= width
    words = " ".join(shown).split()
    for whole in ("a-study-of-mine-2031", "98765", "overlap_comm=true"):
        assert whole in words
    # A setting that is wider than its column breaks where its value begins, never in its name.
    assert {f"{KNOB}=100000"} <= set(words) or {f"{KNOB}=", "100000"} <= set(words)


def test_settings_without_room_beside_their_row_stand_below_it() -> None:
    out = io.StringIO()
    table = plain_table(">trial", "95% interval", "outcome", "*settings")
    table.add_row("10", "18.8 to 20.8 samples/s", "disturbed", SettingsCell(SETTINGS))
    table.add_section()
    table.add_row("2", "17.7 to 19.6 samples/s", "baseline", SettingsCell("zero.stage=1"))
    Console(file=out, width=76).print(table)
    assert [line.split() for line in out.getvalue().splitlines()[2:]] == [
        *(["10", "18.8", "to", "20.8", "samples/s", "disturbed"], SETTINGS.split(), ["─" * 40]),
        *(["2", "17.7", "to", "19.6", "samples/s", "baseline"], ["zero.stage=1"]),
    ]
    stacked = io.StringIO()
    Console(file=stacked, width=30).print(table)
    assert stacked.getvalue().splitlines().count("─" * 30) == 1


def test_the_next_command_stands_in_one_line_of_its_own() -> None:
    command = "autotune export --study a-study-of-mine-2031 --results elsewhere --out tuned"
    assert lines_of(120, ("next", command)) == [f"next        {command}"]
    assert lines_of(50, ("next", command)) == ["next", command]


@pytest.mark.parametrize(
    ("width", "stacks"), [(60, True), (69, True), (70, False), (90, False), (160, False)]
)
def test_rows_stack_where_a_table_has_no_room(width: int, stacks: bool) -> None:
    shown = lines_of(width)
    assert any(line.split() == ["rate", "98765"] for line in shown) == stacks
    # What a row does not have takes no line of its own.
    assert sum(line.startswith("what") for line in shown) == stacks


def test_a_narrow_table_stays_one_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    table = plain_table("change", ">step")
    table.add_row("tp=2", "+1.0%")
    Console(file=out, width=40).print(table)
    assert "tp=2    +1.0%" in out.getvalue()


def test_a_path_without_room_beside_its_name_stands_below_it() -> None:
    path = "/scratch/somebody/studies/of-the-winter/results/best"
    assert lines_of(60, ("speedup", "1.2x"), ("files", path)) == [
        *("speedup     1.2x", "files", f"  {path}")
    ]
    assert lines_of(30, ("files", path))[1:] == [path[:30], path[30:]]
