"""An API for clients that keep no cookies; so it needs no protection from forged requests."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from promotions.models import Promotion
from promotions.tasks import Ended, end_promotion, send_receipt
from rota import RotaError
from rota.integrations.django import client


@require_GET
def promotions(request: HttpRequest) -> JsonResponse:
    """All promotions, by their ends."""
    found = Promotion.objects.order_by("until").values("product", "until", "ended")
    return JsonResponse(list(found), safe=False)


@csrf_exempt
@require_http_methods(["PUT", "DELETE"])
def promotion(request: HttpRequest, product: int) -> JsonResponse:
    """Put: a promotion, and its end, which the same again moves. Delete: neither."""
    if request.method == "DELETE":
        with transaction.atomic():
            Promotion.objects.filter(product=product).delete()
            return JsonResponse(client.keys.cancel(end_promotion, f"product-{product}"))
    try:
        until = parse_datetime(request.GET.get("until", ""))
    except ValueError:
        until = None
    if until is None:
        return JsonResponse({"detail": "until: give a time, such as 2099-12-24T20:00"}, status=422)
    until = make_aware(until) if is_naive(until) else until
    try:
        with transaction.atomic():  # both, or neither
            Promotion.objects.update_or_create(product=product, defaults={"until": until, "ended": False})
            asked = client.once(end_promotion, key=f"product-{product}", at=until, param=Ended(product=product))
    except RotaError as error:
        return JsonResponse({"detail": str(error)}, status=422)
    return JsonResponse(asked)


@csrf_exempt
@require_POST
def receipts(request: HttpRequest) -> JsonResponse:
    """Send a receipt, after this request."""
    result = send_receipt.enqueue(int(request.GET.get("order", "1")))
    return JsonResponse({"result": result.id, "status": result.status})


@require_GET
def receipt(request: HttpRequest, result: str) -> JsonResponse:
    """What has become of it."""
    found = send_receipt.get_result(result)
    return JsonResponse({"status": found.status, "returned": found.return_value if found.is_finished else None})
