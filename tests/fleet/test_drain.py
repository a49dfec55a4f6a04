from autotune.devices.hardware import Gpu
from autotune.fleet import drain
from autotune.fleet.gangs import Gang, Slot

GANG = Gang(slots=(Slot(index=1, device="1"),))


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


def test_only_the_gangs_own_devices_are_waited_for(monkeypatch):
    readings = iter([gpus(0, 500), gpus(9000, 9000), gpus(9000, 510)])
    monkeypatch.setattr(drain, "visible_gpus", lambda: next(readings))
    monkeypatch.setattr(drain.time, "sleep", lambda _: None)
    assert drain.wait_until_drained(GANG, drain.used_bytes(GANG)) == 0
    assert next(readings, None) is None, "it looked again until the memory was free"


def test_it_gives_up_on_memory_that_somebody_else_took(monkeypatch):
    clock = iter(range(0, 100, 10))
    monkeypatch.setattr(drain, "visible_gpus", lambda: gpus(0, 9000))
    monkeypatch.setattr(drain.time, "sleep", lambda _: None)
    monkeypatch.setattr(drain.time, "monotonic", lambda: next(clock))
    assert drain.wait_until_drained(GANG, {1: 0}) == 9000 * 2**20
