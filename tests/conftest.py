"""What holds for every test."""

import gc
import itertools
import os
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from autotune.base import child_process
from autotune.base.guarded_process import run_guarded
from autotune.base.private import KNOWLEDGE_ENV
from autotune.devices.hardware import version_of
from autotune.engines.deepspeed.extensions import build, extensions_folder
from tests import cases, forked_children, unsynced

# How long an example takes says more of the machine than of the code. Every run draws others.
settings.register_profile(
    "any machine", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
unsynced.leave_disks_alone()


EXTENSIONS = None if version_of("torch") is None else extensions_folder("cpu")
"""Where every test finds DeepSpeed's extensions; None: torch is not installed."""

_GROUPS = {
    "package": ("package",),
    "fleets": ("compiles",),
    "ranks": ("real", "gpu"),
    "browser": ("browser",),
}
"""Tests of a group run one after the other, in one process: group -> its markers. The first that
fits."""
_OF_FLEETS = ("tests/chaos/", "tests/fleet/", "tests/export/launchers/")
"""Where real CPU ranks are in the group "fleets": most of the time they wait, for time limits, for
nodes to be lost, for servers to start. And `ray stop`, in a launcher's test, ends every cluster of
Ray on the machine."""
_OF_STARTS = ("real", "gpu", "package")
"""Markers of tests in which whatever the program starts is started as users start it."""
_LONG = ("fleets", "ranks")
"""Groups that begin first, and whose tests have a second attempt: a machine that others use may
fail them, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with real ranks take turns in two groups, each of which leaves cores idle by itself.

    Both begin at once, before all other tests. What compiles for minutes comes first beside the
    ranks: tests that load it have to wait for it.
    """
    items.sort(key=lambda item: item.get_closest_marker("compiles") is None)
    if not config.pluginmanager.hasplugin("xdist"):
        return
    tries_again = config.pluginmanager.hasplugin("rerunfailures")
    for item in items:
        if (group := _group_of(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
            if tries_again and group in _LONG:
                item.add_marker(pytest.mark.flaky(reruns=1))
    if is_grouped(config):
        items.sort(key=_turn_of)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker a group or a file at a time: what tests of a file share is made once."""
    if not is_grouped(config):
        return None
    from xdist.scheduler import LoadGroupScheduling  # not there where pytest-xdist is not

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    config.option.loadscopereorder = False  # the order is that of the tests
    return ByFile(config, log)


def is_grouped(config: pytest.Config) -> bool:
    """Whether workers share the tests by groups."""
    options = config.option  # a worker has another one than who started it
    return getattr(options, "loadgroup", False) or getattr(options, "dist", "") == "loadgroup"


def _turn_of(item: pytest.Item) -> int:
    marker = item.get_closest_marker("xdist_group")
    group = None if marker is None else marker.args[0]
    return _LONG.index(group) if group in _LONG else len(_LONG)


def _group_of(item: pytest.Item) -> str | None:
    marked = {mark.name for mark in item.iter_markers()}
    for group, markers in _GROUPS.items():
        if marked.intersection(markers):
            waits = item.nodeid.startswith(_OF_FLEETS) and "gpu" not in marked
            return "fleets" if group == "ranks" and waits else group
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the program asks a process of its own is forked, but where that start is tested."""
    starts = any(item.get_closest_marker(name) for name in _OF_STARTS)
    starts = starts or "started_probes" in getattr(item, "fixturenames", ())
    child_process.run_guarded = run_guarded if starts else forked_children.run_probe


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests whose cases are data their rows."""
    cases.parametrize(metafunc)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop where the groups are not kept together, which only the names of the tests tell.

    Whoever looks for garbage from now on leaves the tests and what they import alone.
    """
    gc.freeze()
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
            raise pytest.UsageError("this pytest-xdist does not group the tests of this pytest")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what failed at the first attempt, and what each worker did."""
    _tell_second_attempts(terminalreporter)
    _tell_workers(terminalreporter)


def _tell_second_attempts(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each test that failed at the first attempt, with that failure: it is not sound yet."""
    stats = terminalreporter.stats
    failed = {each.nodeid for kind in ("failed", "error") for each in stats.get(kind, ())}
    firsts: dict[str, pytest.TestReport] = {}
    for each in stats.get("rerun", ()):
        firsts.setdefault(each.nodeid, each)
    if not firsts:
        return
    title = f"{len(firsts)} failed at the first attempt: find out why"
    terminalreporter.write_sep("!", title, yellow=True, bold=True)
    for name, each in firsts.items():
        crash = getattr(each.longrepr, "reprcrash", None)
        lines = (crash.message if crash is not None else each.longreprtext).splitlines()
        how = "failed at both attempts" if name in failed else "passed at the second attempt"
        line = f"{how}: {name}: {lines[0] if lines else each.when}"
        terminalreporter.write_line(line, yellow=True)


def _tell_workers(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what each worker did, and when it had nothing left: a group that is too long shows."""
    found = itertools.chain.from_iterable(terminalreporter.stats.values())
    reports = [each for each in found if hasattr(each, "worker_id")]
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    for each in reports:
        group = each.nodeid.rpartition("@")[2]
        seconds[each.worker_id][group if group in _GROUPS else "no group"] += each.duration
    for worker, by_group in sorted(seconds.items()):
        ended_s = max(each.stop for each in reports if each.worker_id == worker)
        until_s = ended_s - min(each.start for each in reports)
        told = ", ".join(f"{group} {total:.0f} s" for group, total in by_group.most_common())
        terminalreporter.write_line(f"{worker} worked for {until_s:.0f} s: {told}")


_KNOWLEDGE = tempfile.TemporaryDirectory(prefix="autotune-knowledge-")
"""What a fixture of a module runs, outside of any test, teaches no user either."""
os.environ[KNOWLEDGE_ENV] = str(Path(_KNOWLEDGE.name) / "knowledge.json")


@pytest.fixture(autouse=True)
def idle_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others run beside the tests is none of their remarks, and takes no second each."""
    monkeypatch.setattr("autotune.fleet.transports.local.watch_devices", lambda _: ())


@pytest.fixture(scope="session")
def folder_of_knowledge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: thousands of them need no folder, and pytest counts all to make one."""
    return tmp_path_factory.mktemp("knowledge")


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_knowledge(folder_of_knowledge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test learns from the user's studies or from another test's, nor teaches them."""
    file = folder_of_knowledge / f"{next(_numbers)}.json"
    monkeypatch.setenv(KNOWLEDGE_ENV, str(file))


@pytest.fixture(scope="session")
def started_probes() -> None:
    """Of a test that wants the start of Python that users have, seconds long."""


@pytest.fixture(autouse=True)
def built_extensions(request: pytest.FixtureRequest) -> None:
    """Real ranks find DeepSpeed's extensions built, and no lock that something killed has left.

    A search sees to it itself; a test that starts ranks without one would compile in their middle.
    """
    if request.node.get_closest_marker("real") is not None:
        now = extensions_folder("cpu")
        assert now == EXTENSIONS, "a test has left this environment changed: all is compiled again"
        build("cuda" if request.node.get_closest_marker("gpu") else "cpu", print)
