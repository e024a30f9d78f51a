"""A receiver of wake-ups, for tests that look at who is woken."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Receiver:
    """Receives datagrams at an address of its own."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def taken(self) -> int:
        """How many have come since the last call. On one machine, a datagram is there as soon as it is sent."""
        self._socket.setblocking(False)
        number = 0
        try:
            while True:
                self._socket.recv(100)
                number += 1
        except BlockingIOError:
            return number

    def close(self) -> None:
        """Receive no more."""
        self._socket.close()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver, closed at the end."""
    made = Receiver()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def flooded(address: str, per_second: int = 10_000) -> Iterator[list[int]]:
    """Forged datagrams arrive at an address, at least so many a second; yields a list with how many were sent."""
    host, _, port = address.rpartition(":")
    sent, over = [0], threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            began = time.monotonic()
            while not over.is_set():
                while sent[0] < (time.monotonic() - began) * per_second:
                    sending.sendto(b"x" * 50, (host, int(port)))
                    sent[0] += 1
                time.sleep(0.0005)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()
