"""Plug-ins by their names, and what is said of a name that none has."""

from importlib.metadata import EntryPoint

import pytest

from autotune.base import plugins
from autotune.base.errors import JobError


@pytest.mark.parametrize("suits", [None, lambda _: True])
def test_a_mistyped_name_is_answered_beside_a_plug_in_that_cannot_be_loaded(monkeypatch, suits):
    broken = EntryPoint("zz-broken", "no_such_module:Dialect", "autotune.dialects")
    monkeypatch.setitem(plugins._offered("dialect"), "zz-broken", broken)
    with pytest.raises(JobError, match="'hff': no such dialect") as caught:
        plugins.load_plugin("dialect", "hff", suits=suits)
    assert "hf" in caught.value.hint
