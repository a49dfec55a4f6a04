import contextlib
import errno
import fcntl
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder
from torch.utils.file_baton import FileBaton

from autotune.base.errors import FleetError
from autotune.base.guarded_process import GuardedProcess
from autotune.doctor.findings import has_libaio
from autotune.engines.deepspeed import extensions
from autotune.trial.prebuilt import BUILT_FILE
from tests.cases import data_beside
from tests.trials import wait_until

DATA = data_beside(__file__)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    folder = extensions.extensions_folder("cpu")
    for name in extensions.needed("cpu"):
        (folder / name).mkdir(parents=True)
        (folder / name / BUILT_FILE).touch()
    return folder


@pytest.mark.compiles
def test_what_swaps_to_a_disk_is_built():
    if not has_libaio():
        pytest.skip("needs libaio's headers (Debian: libaio-dev)")
    extensions.build("cpu", print, nvme=True)
    assert extensions.built("cpu", nvme=True) == list(extensions.needed("cpu", nvme=True))


def test_a_folder_of_built_extensions_may_be_named_itself(folder):
    """As the README of an export tells; another build in it would take minutes."""
    assert extensions.extensions_folder("cpu", {"TORCH_EXTENSIONS_DIR": str(folder)}) == folder


def test_a_lock_without_a_holder_is_stale_and_removed(folder):
    lock = folder / "fused_adam" / "lock"
    lock.touch()
    said = []
    assert extensions.stale_locks("cpu") == [lock]
    extensions.build("cpu", said.append)
    assert not lock.exists()
    assert said == [f"removed the stale lock {lock}"]


def test_a_lock_in_use_is_left_alone(folder):
    lock = folder / "fused_adam" / "lock"
    lock.touch()
    with (folder / "autotune.lock").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        assert extensions.stale_locks("cpu") == []
    assert lock.exists()


def test_nobody_waits_for_a_build_of_something_else(folder):
    lock = folder / "async_io" / "lock"
    lock.parent.mkdir()
    lock.touch()
    said = []
    with (folder / "autotune.lock").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        extensions.build("cpu", said.append)
    assert said == []
    assert extensions.built("cpu") == list(extensions.needed("cpu"))
    assert lock.exists()


def test_a_failed_build_names_its_log(folder, monkeypatch):
    (folder / "cpu_adam" / BUILT_FILE).unlink()
    (folder / "cpu_adam" / "cpu_adam.so").touch()  # half linked, for all anybody knows
    monkeypatch.setattr(extensions.sys, "executable", "/bin/false")
    with pytest.raises(FleetError, match=r"cpu_adam could not be built: exit code 1 \(log: "):
        extensions.build("cpu", lambda _: None)


CAUSES = {
    "full": "c++: fatal error: error writing to cpu_adam.o: No space left on device",
    "by Python": "OSError: [Errno 30] Read-only file system: 'x'",
    "quota": "ld: final link failed: Disk quota exceeded",
    "no memory": "c++: fatal error: Killed signal terminated program cc1plus",
}


@pytest.mark.parametrize("line", CAUSES.values(), ids=CAUSES)
def test_a_failed_build_says_the_line_that_tells_the_cause(line, folder, monkeypatch):
    (folder / "cpu_adam" / BUILT_FILE).unlink()
    script = folder / "fails"
    script.write_text(f"#!/bin/sh\necho 'start'\necho \"{line}\"\necho 'ninja: stopped'\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(extensions.sys, "executable", str(script))
    with pytest.raises(FleetError) as caught:
        extensions.build("cpu", lambda _: None)
    assert line in caught.value.message


def test_a_folder_that_refuses_is_named(folder, monkeypatch):
    (folder / "cpu_adam" / BUILT_FILE).unlink()

    def refuses(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(extensions, "open_lock", refuses)
    with pytest.raises(FleetError, match="Read-only file system") as caught:
        extensions.build("cpu", lambda _: None)
    assert "TORCH_EXTENSIONS_DIR" in caught.value.hint
    assert str(folder) in caught.value.message


def test_the_folder_depends_on_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = extensions.extensions_folder("cpu")
    monkeypatch.setattr(extensions, "_location", lambda package: f"/another/{package}")
    assert extensions.extensions_folder("cpu") != here
    assert here.parent == tmp_path / "autotune" / "extensions"
    assert extensions.extensions_folder("cuda") != extensions.extensions_folder("cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "named"))
    assert extensions.extensions_folder("cpu").parent == tmp_path / "named"


def test_an_extension_that_the_release_lacks_is_not_needed(monkeypatch, tmp_path):
    builders = tmp_path / "ops" / "op_builder"
    builders.mkdir(parents=True)
    (builders / "async_io.py").touch()
    monkeypatch.setattr(extensions, "_location", lambda _: str(tmp_path / "__init__.py"))
    assert "async_io" in extensions.needed("cpu", nvme=True)
    assert "pin_memory" not in extensions.needed("cpu", nvme=True)
    (builders / "pin_memory.py").touch()
    assert "pin_memory" in extensions.needed("cpu", nvme=True)
    assert "pin_memory" not in extensions.needed("cpu")


def test_the_command_builds_wherever_it_is_run(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(extensions, "build", lambda *a, nvme, **_: asked.append((a[0], nvme)))
    for nvme in (False, True):
        module, *arguments = extensions.build_command("cpu", nvme=nvme)
        assert module == extensions.__name__
        monkeypatch.setattr("sys.argv", [module, *arguments])
        extensions.main()
    assert asked == [("cpu", False), ("cpu", True)]

    def fails(*_, **__):
        raise FleetError("no compiler", "install g++")

    monkeypatch.setattr(extensions, "build", fails)
    with pytest.raises(SystemExit):
        extensions.main()
    assert capsys.readouterr().out == "no compiler; install g++\n"


def test_a_lock_of_a_rank_that_compiles_without_our_lock_is_left(folder):
    lock = folder / "cpu_lion" / "lock"
    lock.parent.mkdir(parents=True)
    baton = FileBaton(str(lock))
    assert baton.try_acquire()
    said: list[str] = []
    assert extensions.stale_locks("cpu") == []
    extensions.build("cpu", said.append)
    assert (lock.exists(), said) == (True, [])
    baton.release()
    lock.touch()
    assert extensions.stale_locks("cpu") == [lock]


_BUILDING = DATA["_BUILDING"]
"""A build whose compilers, one of them in a session of its own, do not end."""


def test_a_build_dies_with_its_parent_and_the_next_one_does_not_wait(folder, monkeypatch):
    missing = extensions.needed("cpu")[:2]
    for name in missing:
        (folder / name / BUILT_FILE).unlink()
    parent = subprocess.Popen([sys.executable, "-c", _BUILDING], stdout=subprocess.DEVNULL)
    wait_until(lambda: all((folder / name / "lock").exists() for name in missing), "it builds")
    assert extensions.stale_locks("cpu") == []
    os.kill(parent.pid, 9)
    parent.wait()

    def finishes(command, **options):
        name, folder = command[-2:]
        return GuardedProcess(["touch", f"{folder}/{name}/{BUILT_FILE}"], **options)

    monkeypatch.setattr(extensions, "GuardedProcess", finishes)
    said = []
    extensions.build("cpu", said.append)
    stale = [f"removed the stale lock {folder / name / 'lock'}" for name in sorted(missing)]
    assert said[:2] == stale
    assert extensions.built("cpu") == list(extensions.needed("cpu"))
    assert list(folder.glob("*/lock")) == []


@pytest.mark.parametrize("way", ["second interrupt", "word of the coordinator"])
def test_a_build_that_has_to_end_leaves_neither_compilers_nor_locks(folder, way):
    name = extensions.needed("cpu")[0]
    (folder / name / BUILT_FILE).unlink()
    build = subprocess.Popen(
        [sys.executable, "-c", _BUILDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    wait_until((folder / name / "lock").exists, "it builds")
    program = psutil.Process(build.pid)

    def compilers():
        found = []
        for each in program.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [each] if each.name() == "sleep" else []
        return found

    wait_until(lambda: len(compilers()) == 2, "its compilers run")
    running = compilers()
    if way == "second interrupt":
        build.send_signal(signal.SIGINT)
        lines = iter(build.stdout.readline, "")
        assert any("Ctrl-C again ends them at once" in line for line in lines)
        assert all(map(psutil.Process.is_running, running))
        build.send_signal(signal.SIGINT)
    else:
        build.stdin.write("end\n")
        build.stdin.flush()
    assert build.wait(60) == 130
    assert not any(map(psutil.Process.is_running, running))
    assert list(folder.glob("*/lock")) == []


def simulate_two_compilers(folder, monkeypatch):
    """Compilers that end once a file lets them."""
    names = extensions.needed("cpu")[:2]
    for name in names:
        (folder / name / BUILT_FILE).unlink()

    def compiles(command, **options):
        name, folder = command[-2:]
        script = 'until [ -e "$2/$1.go" ]; do sleep 0.01; done; touch "$2/$1/$3"'
        return GuardedProcess(["sh", "-c", script, "sh", name, folder, BUILT_FILE], **options)

    monkeypatch.setattr(extensions, "GuardedProcess", compiles)
    monkeypatch.setattr(extensions, "_LOOK_S", 0.01)
    return names


def test_a_build_says_what_compiles_how_many_are_done_and_for_how_long(folder, monkeypatch):
    first, second = simulate_two_compilers(folder, monkeypatch)
    monkeypatch.setattr(extensions, "TOLD_EVERY_S", 0.0)
    said = []

    def on_line(line):
        said.append(line)
        if "0 of 2 done" in line:
            (folder / f"{first}.go").touch()
        if "1 of 2 done" in line:
            (folder / f"{second}.go").touch()

    extensions.build("cpu", on_line)
    assert re.fullmatch(rf"compiling for [0-9.]+ m?s, 0 of 2 done: {first}, {second}", said[1])
    assert any(line.endswith(f", 1 of 2 done: {second}") for line in said)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes folders of others")
@pytest.mark.parametrize("which", ["folder", "around"])
def test_code_of_another_user_is_not_loaded(folder, which):
    os.chown(folder if which == "folder" else folder.parent, 12_345, 12_345)
    with pytest.raises(FleetError, match="belongs to user 12345, whose code would run") as caught:
        extensions.build("cpu", print)
    assert "TORCH_EXTENSIONS_DIR" in caught.value.hint


def test_the_compiler_of_a_killed_build_goes_with_the_next_one(folder):
    left = folder / ".compiler-x"
    left.mkdir()
    (left / "c++").touch()
    with extensions._prepared(folder):
        assert not left.exists()
    assert (folder / "fused_adam" / BUILT_FILE).exists()


def test_a_folder_where_everybody_may_write_is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(FleetError, match="chmod o-w"):
        extensions.build("cpu", print)


def test_a_lock_that_is_a_link_is_refused_and_the_doctor_goes_on(folder, tmp_path):
    (folder / "fused_adam" / "lock").touch()
    (folder / "autotune.lock").symlink_to(tmp_path / "elsewhere")
    assert extensions.stale_locks("cpu") == []
    with pytest.raises(FleetError, match="is a link, where a lock belongs"):
        extensions.build("cpu", print)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.cases("listed", "read")
def test_architectures_are_listed_as_deepspeed_reads_them(listed, read, monkeypatch):
    made = extensions.environment("cuda", {"TORCH_CUDA_ARCH_LIST": listed})
    assert made["TORCH_CUDA_ARCH_LIST"] == read
    assert "TORCH_CUDA_ARCH_LIST" not in extensions.environment("cuda", {})
    if not read:
        return  # DeepSpeed asks the devices
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", read)
    builder = FusedAdamBuilder()
    builder.jit_mode = True
    builder.compute_capability_args()
    assert os.environ["TORCH_CUDA_ARCH_LIST"].startswith(read.removesuffix("+PTX"))


def test_a_list_that_deepspeed_does_not_read_is_told_with_the_fix() -> None:
    ((what, fix),) = extensions.misread("cuda", {"TORCH_CUDA_ARCH_LIST": "9.0a"})
    assert "9.0a" in what
    assert fix == "export TORCH_CUDA_ARCH_LIST='9.0'"
    assert extensions.misread("cuda", {"TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX"}) == ()
    assert extensions.misread("cpu", {"TORCH_CUDA_ARCH_LIST": "9.0a"}) == ()
    assert extensions.misread("cuda", {}) == ()
