"""The ports of the servers that tests start."""

import contextlib
import random
import socket

PORTS = range(20_000, 32_000)
"""Below those that the kernel lends to clients: a port must be free again after its server was killed, too."""

_claims: list[socket.socket] = []


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses, and that no other call gives, in this process or in another one.

    A server may take it long after. Until this process ends, it holds the UDP port of the same number as its claim.
    """
    for port in random.sample(PORTS, len(PORTS)):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", port))
            claim.bind(("127.0.0.1", port))
            _claims.append(claim)
            return port
        claim.close()
    raise RuntimeError(f"all ports of {PORTS} are taken")
