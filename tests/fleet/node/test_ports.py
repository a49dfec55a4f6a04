import os
import socket

from autotune.fleet.node import ports
from autotune.fleet.node.ports import lease_port, sweep_segments


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
