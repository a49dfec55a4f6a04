"""Results that show themselves, in a notebook as in a terminal."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from rich.console import Console

_WIDTH = 100
_PRE = (
    "<pre style='line-height:1.25;white-space:pre;overflow-x:auto;color:inherit;"
    "background:none'>{code}</pre>"
)

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, repr=False)
class Shown(Generic[Value]):
    """A result, which a notebook and a terminal show as the command does."""

    value: Value
    """The result itself."""
    show: Callable[[Console], None]
    """Prints it."""
    data: Callable[[], Any]

    @classmethod
    def of(
        cls, value: Value, show: Callable[[Console, Value], None], data: Callable[[Value], Any]
    ) -> Self:
        return cls(
            value=value, show=lambda console: show(console, value), data=lambda: data(value)
        )

    def as_dict(self) -> Any:
        return self.data()

    def __str__(self) -> str:
        out = io.StringIO()
        self.show(Console(file=out, width=_WIDTH, color_system=None, force_jupyter=False))
        return out.getvalue().rstrip()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self.show)


def as_html(show: Callable[[Console], object]) -> str:
    """What something prints, for a notebook."""
    console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
    show(console)
    return console.export_html(inline_styles=True, code_format=_PRE)
