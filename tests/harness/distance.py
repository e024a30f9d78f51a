"""A database that is far away: a proxy, in a process of its own, that delays all that passes by half a round trip.

    with far(url, round_trip_seconds=0.1) as distant: Database(distant)

The server is as near to the test itself as ever.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import make_url

CHUNK = 256 * 1024


@contextmanager
def far(url: str, round_trip_seconds: float) -> Iterator[str]:
    """The URL of the same database at this distance."""
    with relay(url, round_trip_seconds) as (_, port):
        yield make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)


@contextmanager
def relay(url: str, round_trip_seconds: float = 0.0) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process by which the database is reached at this distance, and its port on this machine.

    SIGSTOP makes a host of it that hangs, and SIGKILL one that is gone.
    """
    parts = make_url(url)
    server = [parts.host or "127.0.0.1", str(parts.port or 3306), str(round_trip_seconds / 2)]
    with subprocess.Popen([sys.executable, "-m", __name__, *server], stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            yield proxy, int(proxy.stdout.readline())
        finally:
            proxy.kill()


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Pass on what comes, each piece so much later; many pieces may be under way at once."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        with contextlib.suppress(OSError):
            while (piece := await under_way.get())[1]:
                await asyncio.sleep(piece[0] - loop.time())
                writer.write(piece[1])
                await writer.drain()
            await asyncio.sleep(piece[0] - loop.time())
        writer.close()

    delivering = asyncio.create_task(deliver())
    data = b"to begin with"
    while data:
        try:
            data = await reader.read(CHUNK)
        except OSError:  # a connection that was reset has ended, as one that was closed
            data = b""
        under_way.put_nowait((loop.time() + seconds, data))
    await delivering


async def _serve(host: str, port: int, seconds: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(_delayed(reader, back, seconds), _delayed(there, writer, seconds))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
