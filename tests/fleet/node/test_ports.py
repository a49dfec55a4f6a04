import os
import shutil
import socket
import subprocess
import sys

import pytest

from autotune.fleet.node import ports
from autotune.fleet.node.ports import lease_port, sweep_segments
from tests.captured import captured


def test_leases_at_the_same_time_differ_and_can_be_bound():
    leases = [lease_port() for _ in range(20)]
    assert len({lease.port for lease in leases}) == 20
    with socket.create_server(("127.0.0.1", leases[0].port)):
        pass
    for lease in leases:
        lease.release()


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        free = lease_port()
        free.release()
        monkeypatch.setattr(
            "autotune.fleet.node.ports.random.sample", lambda *_: [taken, free.port]
        )
        lease = lease_port()
        assert lease.port == free.port
        lease.release()


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))),
    reason="needs root, iproute2 and unshare, for a network namespace",
)
@pytest.mark.cases("loopback", "why")
def test_a_machine_without_loopback_is_told_what_is_missing(loopback, why):
    script = (
        "from autotune.fleet.node.ports import lease_port\n"
        "from autotune.base.errors import FleetError\n"
        "try: lease_port()\n"
        "except FleetError as error: print(error.message, error.hint)\n"
    )
    command = f'{loopback}; exec "$0" -c "$1"'
    done = captured(
        ["unshare", "--net", "sh", "-c", command, sys.executable, script], check=True, timeout=60
    )
    assert (
        f"cannot meet at 127.0.0.1, an address that this machine has to have: {why}" in done.stdout
    )
    assert "ip link set lo up" in done.stdout


def test_shared_memory_of_ended_trials_goes_and_that_of_running_ones_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(ports, "_SHARED_MEMORY", tmp_path)
    running, ended = lease_port(), lease_port()
    ended.release()
    left = {}
    for port in (running.port, ended.port, 4242):
        left[port] = tmp_path / f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{port}_0"
        left[port].touch()
    sweep_segments()
    assert {port for port, path in left.items() if path.exists()} == {running.port, 4242}
    running.release()
    assert not left[running.port].exists()


def test_a_port_whose_connections_have_just_ended_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        assert not ports._is_free(port, "127.0.0.1"), "somebody listens"
        accepted.close()  # the side that closes first is the one that waits
        client.close()
    assert ports._is_free(port, "127.0.0.1")


def test_a_lease_ends_with_its_process():
    script = (
        "from autotune.fleet.node import ports\n"
        "ports.random.sample = lambda *_: [20_000]\n"
        "lease = ports.lease_port()\n"
        "print(lease.port, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"20000\n"
        assert ports._try_lease(20_000, "127.0.0.1") is None
        other.kill()
    lease = ports._try_lease(20_000, "127.0.0.1")
    lease.release()


def test_a_port_of_which_another_user_has_prepared_shared_memory_is_passed_over(
    tmp_path, monkeypatch
):
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(ports, "_SHARED_MEMORY", shared)
    free = lease_port()
    free.release()
    other = next(port for port in range(29_000, 30_000) if ports._is_free(port, "127.0.0.1"))
    # A folder is not removed, as the file of another user is not where the sticky bit is set.
    prepared = shared / f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{other}_0"
    prepared.mkdir()
    monkeypatch.setattr("autotune.fleet.node.ports.random.sample", lambda *_: [other, free.port])
    lease = lease_port()
    assert lease.port == free.port
    lease.release()
    assert prepared.is_dir()


@pytest.mark.parametrize("port", ["9" * 200, "\u0662" * 5, "2345", "20000x", "-2000"])
def test_segments_of_odd_names_are_no_ports(tmp_path, monkeypatch, port):
    monkeypatch.setattr(ports, "_SHARED_MEMORY", tmp_path)
    (tmp_path / f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{port}_0").touch()
    assert ports.ports_of_segments() == set()
