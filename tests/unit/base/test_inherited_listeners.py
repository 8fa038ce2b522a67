"""Listeners that a process inherits."""

import os
import socket

from skysail.base.inherited_listeners import VARIABLE, InheritedListeners


def test_sockets_are_taken_over_once_and_not_handed_on():
    lines = [socket.socket() for _ in range(2)]
    for line in lines:
        line.bind(("127.0.0.1", 0))
        line.set_inheritable(True)
    ports = [line.getsockname()[1] for line in lines]
    environment = {VARIABLE: ",".join(str(line.detach()) for line in lines), "OTHER": "stays"}
    found = InheritedListeners.from_environment(environment)
    assert environment == {"OTHER": "stays"}
    for port in ports:
        line = found.take(port)
        assert line is not None
        assert not os.get_inheritable(line.fileno())
        assert found.take(port) is None
        line.close()


def test_without_a_supervisor_there_are_none():
    assert InheritedListeners.from_environment({}).take(8080) is None
    assert InheritedListeners.from_environment({VARIABLE: ""}).take(8080) is None
