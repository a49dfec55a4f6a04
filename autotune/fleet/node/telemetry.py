"""Load of a trial's GPUs while it measures, read from NVML beside the ranks, not in them."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from autotune.contract import GpuUse

PERIOD_S = 0.25
"""Time between two readings: NVML's own counters change no faster than a few times a second."""

_REASONS: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature, by the driver",
    0x40: "temperature, by the hardware",
    0x80: "power brake",
}
"""Bits of nvmlClocksThrottleReason (nvml.h) that hold the clock below what was asked for: not
an idle device, nor clocks that somebody set."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One device at one moment; None: the device does not report it."""

    device: int
    at_s: float
    """By the machine's monotonic clock: the ranks' phases are told in it."""
    utilization: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Energy since the driver was loaded."""
    clock_hz: float | None = None
    temperature_c: float | None = None
    throttle_bits: int = 0

    @property
    def throttled(self) -> float:
        """1 while the driver holds the clock down, else 0."""
        return float(bool(self.throttle_reasons))

    @property
    def throttle_reasons(self) -> list[str]:
        return [name for bit, name in _REASONS.items() if self.throttle_bits & bit]


@dataclass
class Telemetry:
    """Reads the devices of some ranks from a thread until it is told to stop.

    Not run on a GPU so far: the tests put another driver library in the place of NVIDIA's.
    """

    uuids: Sequence[str]
    period_s: float = PERIOD_S
    readings: list[Reading] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read; a driver that does not answer is left alone."""
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self, *, wait_s: float = 0.0) -> None:
        """Stop reading; wait no longer than `wait_s` for a driver that hangs."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=wait_s)

    def between(self, start_s: float, end_s: float) -> GpuUse | None:
        """Load of the devices from one moment to another; None: nothing was read."""
        return use_between(list(self.readings), start_s, end_s)

    def _watch(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        try:
            handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self.uuids]
            while True:
                for device, handle in enumerate(handles):
                    self.readings.append(read_device(device, handle))
                if self._stopped.wait(self.period_s):
                    return
        except pynvml.NVMLError:
            return  # a device that is gone is the trial's matter; what was read stands
        finally:
            pynvml.nvmlShutdown()


def read_device(device: int, handle: Any) -> Reading:
    """One reading of one device."""

    def ask(name: str, *arguments: Any, read: Callable[[Any], Any]) -> Any:
        try:
            return read(getattr(pynvml, f"nvmlDeviceGet{name}")(handle, *arguments))
        except pynvml.NVMLError:  # not on this device, or not for this user
            return None

    return Reading(
        device=device,
        at_s=time.monotonic(),
        utilization=ask("UtilizationRates", read=lambda percents: percents.gpu / 100),
        power_w=ask("PowerUsage", read=lambda mw: mw / 1e3),
        energy_j=ask("TotalEnergyConsumption", read=lambda mj: mj / 1e3),
        clock_hz=ask("ClockInfo", pynvml.NVML_CLOCK_SM, read=lambda mhz: mhz * 1e6),
        temperature_c=ask("Temperature", pynvml.NVML_TEMPERATURE_GPU, read=float),
        throttle_bits=ask("CurrentClocksThrottleReasons", read=int) or 0,
    )


def use_between(readings: Sequence[Reading], start_s: float, end_s: float) -> GpuUse | None:
    """Load of the devices from one moment to another; None: nothing was read then."""
    inside = [r for r in readings if start_s <= r.at_s <= end_s]
    devices = sorted({r.device for r in readings})
    if not inside:
        return None
    energies = [_energy_j([r for r in readings if r.device == d], start_s, end_s) for d in devices]
    return combined(inside, len(inside) // len(devices), energies)


def combined(
    seen: Sequence[Reading | GpuUse], samples: int, energies: Sequence[float | None]
) -> GpuUse:
    """Several readings, or the GPUs of several nodes with as many each, in one."""

    def known(figure: str) -> list[float]:
        return [value for sample in seen if (value := getattr(sample, figure)) is not None]

    def mean(figure: str) -> float | None:
        return statistics.mean(known(figure)) if known(figure) else None

    measured = [energy for energy in energies if energy is not None]
    return GpuUse(
        samples=samples,
        utilization=mean("utilization"),
        power_w=mean("power_w"),
        # The sum would be too low if it lacked a device of the gang.
        energy_j=sum(measured) if len(measured) == len(energies) else None,
        clock_hz=mean("clock_hz"),
        temperature_c=max(known("temperature_c"), default=None),
        throttled=mean("throttled"),
        throttle_reasons=sorted({reason for sample in seen for reason in sample.throttle_reasons}),
    )


def _energy_j(readings: Sequence[Reading], start_s: float, end_s: float) -> float | None:
    """Energy of one device: by its counter, or where it has none the power over the time."""
    counted = [(r.at_s, r.energy_j) for r in readings if r.energy_j is not None]
    if len(counted) == len(readings) > 1:
        return _at(counted, end_s) - _at(counted, start_s)
    powers = [(r.at_s, r.power_w) for r in readings if r.power_w is not None]
    inside = [power for at_s, power in powers if start_s <= at_s <= end_s]
    return statistics.mean(inside) * (end_s - start_s) if inside else None


def _at(points: Sequence[tuple[float, float]], at_s: float) -> float:
    """A counter at a moment, on the line between the readings around it."""
    after = next((i for i, (time_s, _) in enumerate(points) if time_s >= at_s), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(0, after - 1)], points[after]
    if x1 == x0:
        return y1
    return y0 + (y1 - y0) * (at_s - x0) / (x1 - x0)
