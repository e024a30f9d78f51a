"""The shop's web app. Each of its processes has a scheduler and a worker beside it.

pip install "rota[fastapi]" uvicorn
ROTA_DATABASE_URL=mysql://… uvicorn examples.fastapi_shop.main:app --workers 4
"""

from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from examples.fastapi_shop.jobs import Promotion, end_promotion
from rota import RotaError
from rota.integrations.fastapi import RotaClient, RotaLifespan

app = FastAPI(
    lifespan=RotaLifespan(name="shop", embedded="examples.fastapi_shop.jobs:app", wake_address=":0", grace_seconds=10)
)


@app.exception_handler(RotaError)
async def refused(request: Request, error: RotaError) -> JSONResponse:
    """What Rota refuses is said in a sentence."""
    return JSONResponse({"detail": str(error)}, status_code=422)


@app.put("/promotions/{product}")
async def promote(product: int, until: datetime, rota: RotaClient) -> dict[str, Any]:
    """A promotion ends at this time. The same again moves its end."""
    return await rota.once(end_promotion, key=f"product-{product}", at=until, param=Promotion(product=product))


@app.get("/promotions")
async def promotions(rota: RotaClient) -> list[dict[str, Any]]:
    """The promotions that will end, by their times."""
    return [{"key": one["key"], "at": one["at"]} for one in await rota.keys.find(end_promotion)]


@app.delete("/promotions/{product}")
async def keep(product: int, rota: RotaClient) -> dict[str, Any]:
    """The promotion stays."""
    return await rota.keys.cancel(end_promotion, f"product-{product}")


@app.post("/reports/{region}")
async def report_now(region: str, rota: RotaClient) -> dict[str, Any]:
    """Make a report, and wait for it."""
    run = await rota.tasks.run("ad-hoc-report", param={"region": region})
    ended = await rota.instances.wait(run["id"], timeout=30)
    return {"status": ended["status"], "result": ended["execution_result"]}
