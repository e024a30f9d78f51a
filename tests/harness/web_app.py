"""A web app on FastAPI, each of whose processes has a scheduler and a worker with the tests' app beside it."""

import os

from fastapi import FastAPI

from rota.integrations.fastapi import RotaClient, RotaLifespan

app = FastAPI(lifespan=RotaLifespan(name="shop", embedded="tests.harness.apps:app", grace_seconds=5))


@app.get("/")
async def served(rota: RotaClient) -> dict[str, object]:
    """Which process serves, and which tasks it sees."""
    return {"pid": os.getpid(), "tasks": [task["name"] for task in await rota.tasks.list()]}
