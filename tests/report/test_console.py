import errno
import io
import os
import sys

import pytest
from rich.table import Table
from rich.text import Text

from autotune.report.terminal.console import LastingStream, SafeConsole, console_on


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "\x9b31m", "a\u202eb", "\x1b]0;x\x07", "a\x00b", "\r"]
)
def test_what_others_wrote_steers_no_terminal(text):
    out = io.StringIO()
    console = SafeConsole(file=out, width=60, force_terminal=True, color_system="standard")
    table = Table()
    table.add_column("head")
    table.add_row(Text(text, style="red"))
    console.print(Text(text, style="red"), table)
    console.print(text, markup=False, highlight=False)
    shown = out.getvalue()
    assert text not in shown
    assert "\x1b[31m" in shown  # its own colour


class _Gone(io.StringIO):
    def __init__(self, number: int, *, terminal: bool = False) -> None:
        super().__init__()
        self._number, self._terminal = number, terminal

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EBADF])
def test_a_stderr_that_is_gone_ends_nothing(number, monkeypatch):
    monkeypatch.setattr(sys, "stderr", _Gone(number))
    console_on("stderr").print("said to nobody")


def test_a_closed_stderr_ends_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    console_on("stderr").print("said to nobody")


@pytest.mark.parametrize(
    ("number", "terminal", "raises"),
    [
        (errno.EPIPE, False, False),
        (errno.EIO, True, False),
        (errno.EIO, False, True),
        (errno.ENOSPC, False, True),
    ],
)
def test_a_stdout_whose_disk_fails_is_an_error_and_one_without_reader_is_none(
    number, terminal, raises, monkeypatch
):
    monkeypatch.setattr(sys, "stdout", _Gone(number, terminal=terminal))
    stream = LastingStream("stdout")
    if raises:
        with pytest.raises(OSError, match=os.strerror(number)):
            stream.write("data")
    else:
        assert stream.write("data") == 4


def test_a_pipe_that_nobody_reads_is_replaced_by_nothing(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        lasting = LastingStream("stdout")
        lasting.write("data")
        lasting.flush()
        lasting.write("more")
        lasting.flush()
        assert os.stat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
