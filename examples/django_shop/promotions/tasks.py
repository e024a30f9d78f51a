"""What the shop's workers run."""

from typing import Any

from django.dispatch import receiver
from pydantic import BaseModel

from promotions.models import Promotion
from rota import NodeContext, RunEvent
from rota.integrations.django import app
from rota.integrations.django.signals import run_failed

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


class Ended(BaseModel):
    """The param of the end of a promotion."""

    product: int


end_promotion = app.task_type("END_PROMOTION", param=Ended)


@end_promotion.node("PRICE")
def price(ctx: NodeContext[Ended]) -> dict[str, int]:
    """Take the old price again."""
    return {"ended": Promotion.objects.filter(product=ctx.param.product).update(ended=True)}


@app.task("COUNT_PROMOTIONS", cron="* * * * * *", seconds=True)
async def count_promotions(ctx: NodeContext) -> dict[str, int]:
    """Every second, once, however many workers there are."""
    return {"running": await Promotion.objects.filter(ended=False).acount()}


@task
def send_receipt(order: int) -> str:
    """A task of Django's own interface."""
    return f"receipt of order {order} was sent"


@receiver(run_failed)
def alert(event: RunEvent, **_: Any) -> None:
    """In the worker, after the run's end was committed."""
    print(f"alert: {event.task_name} failed: {event.reason}", flush=True)
