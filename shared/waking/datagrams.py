"""Listening for wake-ups that come as datagrams: ``ROTA_WAKE_ADDRESS``."""

import logging
import selectors
import socket
from collections.abc import Callable

from sqlalchemy.engine import URL

from rota.shared.clock import Timer
from rota.shared.waking.addresses import WakeAddress, own_address, parsed
from rota.shared.waking.pace import CLOSING_SECONDS

log = logging.getLogger(__name__)

BUFFER_BYTES = 1
"""The system makes the smallest buffer of it. What does not fit in there is dropped, and costs this process nothing."""

READ_AT_ONCE = 64
"""So many datagrams are one wake-up at most. More than fit into the smallest buffer."""


class DatagramListener:
    """Calls ``look_now`` when a datagram arrives; what it holds, and who sent it, does not matter.

        listener = DatagramListener(WakeAddress("127.0.0.1", 0), clock, engine.look_now)
        listener.start(); listener.address   # '127.0.0.1:40112'

    ``look_now`` wakes who is to look, and returns for how many seconds it is not to be called again at least
    (``rest_after``). Several wake-ups that come meanwhile count as one.
    """

    def __init__(self, address: WakeAddress, timer: Timer, look_now: Callable[[], float]) -> None:
        """Bind the address. Raises OSError if that cannot be done."""
        self._look_now = look_now
        self._stopping = timer.event()
        self._thread = timer.thread("wake-ups", self._run)
        self._socket = _bound(address)
        self._socket.setblocking(False)
        self._waker, self._woken = socket.socketpair()
        host, port = self._socket.getsockname()[:2]
        self.address = str(WakeAddress(host, port))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the socket."""
        self._stopping.set()
        self._waker.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)
        self._woken.close()
        self._socket.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select()
                if self._received() and not self._stopping.is_set():
                    self._stopping.wait(self._look_now())

    def _received(self) -> bool:
        """Take what has come; whether anything has."""
        for number in range(READ_AT_ONCE):
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return number > 0
            except OSError:  # an error of the network that an earlier datagram has met
                continue
        return True


def _bound(address: WakeAddress) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, here = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        bound.bind(here)
    except BaseException:
        bound.close()
        raise
    return bound


def listen_at(
    wanted: str | None, database: URL, timer: Timer, look_now: Callable[[], float]
) -> DatagramListener | None:
    """Listen at ``ROTA_WAKE_ADDRESS``. None if that is not set, or cannot be done: then the process only pulls."""
    if wanted is None:
        return None
    try:
        host, port = parsed(wanted)
        return DatagramListener(WakeAddress(host or own_address(database), port), timer, look_now)
    except (OSError, ValueError) as error:  # ValueError: what is no name of a host
        said = getattr(error, "strerror", None) or error
        log.warning("wake-ups: ROTA_WAKE_ADDRESS %s: %s; this process only pulls", wanted, said)
        return None
