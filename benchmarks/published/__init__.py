"""Tables of training runs as people publish them: what they mean in the spelling of `autotune`."""

from .rows import RESULT_COLUMNS, rows_to_plans, strict_rows

__all__ = ["RESULT_COLUMNS", "rows_to_plans", "strict_rows"]
