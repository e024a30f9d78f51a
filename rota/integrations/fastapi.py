"""FastAPI and Starlette: a client in the app's state, and a scheduler and workers beside the app if wanted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from rota.beside import embedded as beside
from rota.client.awaited import AsyncClient
from rota.shared.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from rota.worker_service.authoring import Rota


class RotaLifespan:
    """The lifespan of an app that asks Rota for work.

        app = FastAPI(lifespan=RotaLifespan(name="shop"))

        @app.put("/promotions/{product}")
        async def promote(product: int, until: datetime, rota: RotaClient) -> dict[str, Any]:
            param = {"product": product}
            return await rota.once("END_PROMOTION", key=f"product-{product}", at=until, param=param)

    The client is ``app.state.rota``, too. With ``embedded="jobs:app"`` each process of the app has a scheduler and
    ``workers`` beside it, as child processes (``rota.embedded``). An app that has a lifespan of its own enters it
    there: ``async with RotaLifespan()(app): yield``.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        name: str | None = None,
        embedded: "str | Rota | None" = None,
        workers: int = 1,
        **settings: Any,
    ) -> None:
        """As of ``AsyncClient``; ``workers`` and ``settings`` are those of ``rota.embedded``.

        Raises ConfigurationError.
        """
        if embedded is None and settings:
            raise ConfigurationError(
                f"{next(iter(settings))} is a setting of an embedded worker; give embedded='jobs:app'"
            )
        self._database_url, self._name = database_url, name
        self._beside = None
        if embedded is not None:
            self._beside = beside(embedded, database_url=database_url, workers=workers, **settings)

    @asynccontextmanager
    async def __call__(self, app: Starlette) -> AsyncIterator[None]:
        """Start what there is to start; at the end, stop it and close the client."""
        async with AsyncExitStack() as stack:
            app.state.rota = await stack.enter_async_context(AsyncClient(self._database_url, name=self._name))
            if self._beside is not None:
                stack.push_async_callback(asyncio.to_thread, self._beside.stop)
                await asyncio.to_thread(self._beside.start)
            yield


def client_of(connection: HTTPConnection) -> AsyncClient:
    """The client of the app that serves a request. Raises ConfigurationError if the app has no ``RotaLifespan``."""
    client = getattr(connection.app.state, "rota", None)
    if not isinstance(client, AsyncClient):
        raise ConfigurationError("this app has no client: write FastAPI(lifespan=RotaLifespan())")
    return client


RotaClient = Annotated[AsyncClient, Depends(client_of)]
"""The client, as an argument of a path operation."""
