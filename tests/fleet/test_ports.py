import socket

from autotune.fleet.ports import lease_port


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
        monkeypatch.setattr("autotune.fleet.ports.random.sample", lambda *_: [taken, free.port])
        lease = lease_port()
        assert lease.port == free.port
        lease.release()
