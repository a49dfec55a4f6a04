"""The examples in the docstrings of the Python API: those that need no device run."""

import doctest
import inspect
from textwrap import dedent

import autotune

RUN = ("check", "plan", "explain", "estimate")


def test_every_function_has_an_example_that_holds() -> None:
    names: dict[str, object] = {"autotune": autotune}
    runner = doctest.DocTestRunner()
    for name in (*RUN, *(name for name in autotune.__all__ if name not in RUN)):
        text = inspect.getdoc(getattr(autotune, name)) or ""
        _, is_there, example = text.partition("\nExample:\n")
        assert is_there, f"{name}: its docstring has no example"
        if name in RUN:
            test = doctest.DocTestParser().get_doctest(example, names, name, None, 0)
            assert runner.run(test, clear_globs=False).attempted, name
            names |= test.globs  # those after it go on with the same job
        else:
            compile(dedent(example.partition("\n\nFlags:")[0]), name, "exec")
    assert not runner.failures
