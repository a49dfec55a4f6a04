import pytest

from autotune.base.student_t import t_quantile


@pytest.mark.parametrize(
    ("degrees", "value"),
    # Two-sided 95% column of the printed tables.
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)],
)
def test_agrees_with_the_tables(degrees: int, value: float):
    assert t_quantile(0.975, degrees) == pytest.approx(value, abs=6e-5)


def test_median_is_zero():
    assert t_quantile(0.5, 3) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("p", "degrees"), [(0.975, 0), (0.2, 4), (1.0, 4)])
def test_refuses_what_is_out_of_range(p: float, degrees: int):
    with pytest.raises(ValueError, match="t quantile"):
        t_quantile(p, degrees)
