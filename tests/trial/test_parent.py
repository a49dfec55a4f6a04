"""Who may be the parent; that a process really ends with it is tested with real trials."""

import ctypes
import os
from types import SimpleNamespace

import pytest

from autotune.base.keeper import end_with_parent


class Ended(Exception):
    pass


@pytest.mark.parametrize(
    ("parent", "found", "ends"), [(7, 7, False), (7, 8, True), (7, 1, True), (1, 1, False)]
)
def test_ends_at_once_where_the_parent_is_gone(monkeypatch, parent, found, ends):
    def leave(_code):
        raise Ended

    libc = SimpleNamespace(prctl=lambda *_: 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_kwargs: libc)
    monkeypatch.setattr(os, "getppid", lambda: found)
    monkeypatch.setattr(os, "_exit", leave)
    if ends:
        with pytest.raises(Ended):
            end_with_parent(parent)
    else:
        end_with_parent(parent)
