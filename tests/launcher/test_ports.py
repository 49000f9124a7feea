"""Ports: free ones, and who holds the others."""

from __future__ import annotations

import os
import socket

import pytest

from launcher import ports
from launcher.errors import MachineError
from launcher.ports import find_listeners, free_port, is_free, is_listening


def test_a_free_port_can_be_bound_and_avoids_the_last() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
        assert is_listening(port)
    assert free_port(avoid={port}) != port


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_listener_is_found_with_its_process(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family is socket.AF_INET else "::"
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        (found,) = find_listeners(port, [os.getpid(), 1])
        assert found.pids == (os.getpid(),)
        assert found.uid == os.getuid()
        assert str(os.getpid()) in found.describe()
        (unseen,) = find_listeners(port, [])
        assert "cannot be seen" in unseen.describe()
        assert not is_free(port)
    assert find_listeners(port, [os.getpid()]) == ()


def test_none_left_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    with pytest.raises(MachineError, match="no free port"):
        free_port()
