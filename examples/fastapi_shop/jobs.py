"""What the shop's workers run."""

from pydantic import BaseModel

from rota import NodeContext, Rota

app = Rota()


class Promotion(BaseModel):
    """The param of the end of a promotion."""

    product: int


class Region(BaseModel):
    """The param of a report."""

    region: str = "eu"


end_promotion = app.task_type("END_PROMOTION", param=Promotion)
report = app.task_type("REPORT", param=Region)


@end_promotion.node("PRICE")
async def price(ctx: NodeContext[Promotion]) -> dict[str, int]:
    """Write the old price back."""
    return {"ended": ctx.param.product}


@report.node("BUILD")
def build(ctx: NodeContext[Region]) -> dict[str, str]:
    """Make the report, on a thread."""
    return {"built": ctx.param.region}


app.schedule("ad-hoc-report", report)


@app.task("HEARTBEAT", cron="* * * * * *", seconds=True)
async def heartbeat(ctx: NodeContext) -> dict[str, str]:
    """Every second, once, however many processes serve the shop."""
    return {"beat": f"{ctx.schedule_datetime:%H:%M:%S}"}
