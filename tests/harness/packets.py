"""What a connection sends to a server: one packet for each round trip."""

from collections.abc import Iterator
from contextlib import contextmanager

from pymysql.constants.COMMAND import COM_QUERY

from rota.shared.database.mysql_connection import MySQLConnection

Packets = list[bytes]


@contextmanager
def recorded() -> Iterator[Packets]:
    """The packets that are sent from now on."""
    sent: Packets = []
    send = MySQLConnection._execute_command  # type: ignore[attr-defined]

    def record(self: MySQLConnection, command: int, sql: bytes | str) -> None:
        if command == COM_QUERY:
            sent.append(sql if isinstance(sql, bytes) else sql.encode())
        send(self, command, sql)

    MySQLConnection._execute_command = record  # type: ignore[attr-defined]
    try:
        yield sent
    finally:
        MySQLConnection._execute_command = send  # type: ignore[attr-defined]


def verbs(packet: bytes) -> list[str]:
    """The first word of each statement."""
    return [statement.split()[0].decode() for statement in packet.split(b";")]


def assert_one_packet_each(packets: Packets) -> None:
    """Each transaction is one packet, from BEGIN to COMMIT; some packet has one."""
    begun = [packet for packet in packets if "BEGIN" in verbs(packet)]
    assert begun
    for packet in begun:
        assert "COMMIT" in verbs(packet), packet.decode()
