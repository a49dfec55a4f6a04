from autotune.base.units import format_rate
from autotune.record.study import Study
from autotune.report.story import read_story
from autotune.report.terminal.study import render_markdown


def test_the_table_has_a_row_per_candidate_with_the_report_s_figures(wide: Study) -> None:
    report = read_story(wide)
    lines = render_markdown(report).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + len(report.rows)
    assert all(line.count("|") == rows[0].count("|") for line in rows)
    for row, line in zip(report.ranked_rows, rows[2:], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rate = format_rate(row.figure.samples_per_s if row.figure else None)
        assert cells[:2] == [str(row.trial), rate]
    assert any(line.startswith("- verdict: 1.") for line in lines)
    # Paths of this machine are nobody else's.
    assert str(wide.folder) not in "\n".join(lines)
