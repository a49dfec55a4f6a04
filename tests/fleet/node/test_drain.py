import pytest

from autotune.devices.hardware import Gpu
from autotune.fleet.node import drain


def gpus(*used_mib):
    return [
        Gpu(
            index=i,
            name="x",
            uuid=f"GPU-{i}",
            memory_bytes=2**34,
            memory_used_bytes=used * 2**20,
            utilization=0.0,
        )
        for i, used in enumerate(used_mib)
    ]


def test_only_the_gangs_own_devices_are_looked_at(monkeypatch):
    readings = iter([gpus(0, 500), gpus(9000, 9000), gpus(9000, 510)])
    monkeypatch.setattr(drain, "visible_gpus", lambda: next(readings))
    before = drain.used_bytes(["GPU-1"])
    assert before == {"GPU-1": 500 * 2**20}
    assert drain.lacking_bytes(before) == 8500 * 2**20
    assert drain.lacking_bytes(before) == 0, "10 MiB are nobody's trial"


def test_where_there_are_no_gpus_the_driver_is_not_asked(monkeypatch):
    monkeypatch.setattr(drain, "visible_gpus", lambda: pytest.fail("it was asked"))
    assert drain.lacking_bytes({}) == 0
