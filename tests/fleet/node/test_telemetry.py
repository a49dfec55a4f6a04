"""What is made of NVML's answers; `tests/devices/test_nvml.py` asks it."""

import pytest

from autotune.contract import Phase, RankReport
from autotune.fleet.node.telemetry import Reading, Telemetry, use_between
from autotune.fleet.reports import measured_span_s


def reading(at_s, *, device=0, **fields):
    return Reading(device=device, at_s=at_s, **fields)


def test_only_the_measured_steps_count():
    busy = [reading(t, utilization=1.0, temperature_c=60.0 + t) for t in range(3, 7)]
    idle = [reading(t, utilization=0.0, temperature_c=99.0) for t in (0, 1, 2, 7, 8)]
    found = use_between(sorted(idle + busy, key=lambda r: r.at_s), 2.5, 6.5)
    assert (found.samples, found.utilization, found.temperature_c) == (4, 1.0, 66.0)


def test_energy_is_the_counter_between_its_readings_over_all_devices():
    counted = [
        reading(t, device=device, energy_j=100.0 * t * (device + 1))
        for t in range(10)
        for device in (0, 1)
    ]
    assert use_between(counted, 2.5, 4.5).energy_j == pytest.approx(200.0 + 400.0)


def test_without_a_counter_energy_is_power_over_the_time():
    powers = [reading(t, power_w=250.0) for t in range(10)]
    assert use_between(powers, 2.0, 6.0).energy_j == pytest.approx(1000.0)


def test_a_gang_that_is_known_in_part_has_no_energy():
    readings = [r for t in range(10) for r in (reading(t, power_w=250.0), reading(t, device=1))]
    assert use_between(readings, 2.0, 6.0).energy_j is None


@pytest.mark.cases("bits", "throttled", "reasons")
def test_an_idle_device_is_not_throttled(bits, throttled, reasons):
    found = use_between([reading(1.0, throttle_bits=bits)], 0.0, 2.0)
    assert (found.throttled, found.throttle_reasons) == (throttled, reasons)


def test_nothing_read_in_time_is_nothing():
    assert use_between([reading(1.0)], 5.0, 6.0) is None
    assert use_between([], 5.0, 6.0) is None


def test_without_a_driver_or_the_device_a_trial_goes_on():
    telemetry = Telemetry(["GPU-1"])
    telemetry.start()
    telemetry.stop(wait_s=5.0)
    assert telemetry.between(0.0, 1e12) is None


def test_the_window_is_that_of_rank_0s_measured_steps():
    telemetry = Telemetry(["GPU-1"])
    telemetry.readings += [reading(100.0 + t, utilization=float(t)) for t in range(20)]
    phases = {Phase.SPAWN: 2.0, Phase.WARM_UP: 3.5, Phase.MEASURED: 9.0}
    phases_s = {str(phase): seconds for phase, seconds in phases.items()}
    rank = RankReport(rank=0, cpu_s=1.0, measured_s=4.0, phases_s=phases_s)
    found = telemetry.between(*measured_span_s([rank], 100.0))
    assert found.samples == 4
    assert found.utilization == pytest.approx((6 + 7 + 8 + 9) / 4)
