"""Sending wake-ups. It never raises and never waits: a wake-up that is lost changes only when its work is found."""

import ipaddress
import socket
from collections.abc import Iterable

from rota.shared.waking import redis
from rota.shared.waking.addresses import LONGEST, parsed

CONTENT = b"rota"
"""For people who look at the network. Whoever receives a wake-up does not read it."""


def send(addresses: Iterable[object]) -> None:
    """Send a wake-up to each of these, which are read from rows. It passes over what is no address.

    send(["10.0.0.5:40112"])
    """
    for written in addresses:
        if isinstance(written, str) and written.startswith(redis.PREFIX):
            redis.publish(written)
            continue
        if (there := _numeric(written)) is None:
            continue
        host, port = there
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sending:
                sending.setblocking(False)
                sending.sendto(CONTENT, (host, port))
        except (OSError, ValueError):
            continue


def _numeric(written: object) -> tuple[str, int] | None:
    """The host and the port of an address. None for a name, too: to look it up could take seconds."""
    if not isinstance(written, str) or len(written) > LONGEST:
        return None
    try:
        host, port = parsed(written)
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if getattr(address, "scope_id", None) is not None:  # it may hold anything, and would be looked up as a name
        return None
    return (str(address), port) if port else None
