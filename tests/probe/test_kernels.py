"""What a rank of a probe does by itself leaves nothing behind, even if it is killed."""

from types import SimpleNamespace

import pytest

from autotune.probe import kernels


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_file_of_a_disk_has_no_name_while_it_is_measured(is_direct, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "_DISK_CHUNK_BYTES", 2**16)
    monkeypatch.setattr(kernels, "_DISK_BYTES", 2**20)
    if not is_direct:
        monkeypatch.setattr("os.O_DIRECT", 0o20200000)  # O_TMPFILE, which no O_CREAT goes with
    points = kernels.disk(SimpleNamespace(is_quick=False), str(tmp_path), 0)
    kinds = []
    for point in points:
        assert list(tmp_path.iterdir()) == []
        assert point["bytes"] == 2**20
        assert point["seconds"] > 0
        kinds.append(point["kind"])
    assert kinds == ["write", "read"]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        next(kernels.disk(SimpleNamespace(is_quick=True), str(tmp_path / "nowhere"), 0))
