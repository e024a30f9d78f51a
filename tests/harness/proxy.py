"""A connection that breaks at a commit: between a process and its MariaDB stands a proxy that knows a COMMIT.

    with LossyProxy(url) as proxy, opened(proxy.url) as database:
        proxy.lose("answer", to="INSERT IGNORE INTO schedule_instance")
        database.write(work)        # done by the server, but the process never hears of it

The wire: a packet is 3 bytes of length, 1 of sequence, and the payload; a command begins at sequence 0, and COM_QUERY
is the byte 3 and the SQL text.
"""

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import Literal, Self

from sqlalchemy import make_url

COM_QUERY = b"\x03"

Part = Literal["question", "answer"]
"""What is lost: the COMMIT itself, so that nothing is done; or its answer, when all is done."""

PARTS: tuple[Part, ...] = ("question", "answer")


@dataclass(frozen=True, slots=True)
class _Loss:
    part: Part
    to: str


class LossyProxy:
    """Forwards to the server of `url`; loses what it is told to, once."""

    def __init__(self, url: str) -> None:
        parts = make_url(url)
        self._server = (parts.host or "127.0.0.1", parts.port or 3306)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parts.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self._lock = threading.Lock()
        self._loss: _Loss | None = None
        self._sockets: list[socket.socket] = [self._listener]
        self.lost = threading.Event()
        """Set when what `lose` asked for is lost."""

    def lose(self, part: Part, *, to: str) -> None:
        """Of the next transaction in which `to` is part of a statement's text, lose the commit or its answer."""
        self.lost.clear()
        with self._lock:
            self._loss = _Loss(part, to)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            _close(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the end
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                with self._lock:
                    self._sockets += [client, server]
                pair = _Pair(self, client, server)
                threading.Thread(target=pair.questions, daemon=True).start()
                threading.Thread(target=pair.answers, daemon=True).start()

    def take_loss(self, transaction: str) -> Part | None:
        """What is to be lost of the commit of this transaction."""
        with self._lock:
            if self._loss is None or self._loss.to not in transaction:
                return None
            part, self._loss = self._loss.part, None
            return part


class _Pair:
    """One connection: what the process says, and what the server answers."""

    def __init__(self, proxy: LossyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._said = ""
        self._deaf = False

    def questions(self) -> None:
        with contextlib.suppress(OSError), self._client.makefile("rb") as stream:
            while len(header := stream.read(4)) == 4:
                payload = stream.read(int.from_bytes(header[:3], "little"))
                if header[3] == 0 and payload.startswith(COM_QUERY) and not self._query(payload[1:]):
                    break
                self._server.sendall(header + payload)
        if not self._deaf:
            self._close()

    def _query(self, sql: bytes) -> bool:
        """Whether the server shall hear it."""
        text = sql.decode(errors="replace")
        if text.startswith("BEGIN"):  # what was read before is no part of it
            self._said = ""
        self._said += text + "\n"
        commits = text.endswith("COMMIT") or ";COMMIT;" in text  # a packet may read after its commit
        if not commits and not text.endswith("ROLLBACK"):
            return True
        part = self._proxy.take_loss(self._said) if commits else None
        self._said = ""
        self._deaf = part == "answer"
        if part == "question":
            self._close()
            self._proxy.lost.set()
        return part != "question"

    def answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                if self._deaf:  # the server has committed: it has answered
                    self._close()
                    self._proxy.lost.set()
                    return
                self._client.sendall(data)
        self._close()

    def _close(self) -> None:
        _close(self._client)
        _close(self._server)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
