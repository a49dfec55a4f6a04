"""Python imports this at the start of every interpreter that finds this folder on its path.

A launcher of a user's own script puts it there. Any `sitecustomize` of theirs still runs, first.
"""

import os
import sys


def _run_theirs() -> None:
    """Run the next `sitecustomize` on the path, as Python would have without this one."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    rest = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _begin() -> None:
    """Load this package alone: nothing beside it in its folder may come before their packages."""
    import importlib.util

    package = os.path.abspath(__file__)
    for _ in range(4):  # site, guest, trial, the package
        package = os.path.dirname(package)
    spec = importlib.util.spec_from_file_location(
        "autotune", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None or "autotune" in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["autotune"] = module
    spec.loader.exec_module(module)
    from autotune.trial.guest.begin import begin

    begin()


try:
    _run_theirs()
finally:
    if os.environ.get("AUTOTUNE_GUEST_DIR"):
        _begin()
