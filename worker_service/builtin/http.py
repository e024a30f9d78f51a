"""HTTP_REQUEST: one request, bounded in time, redirects and bytes, whose credentials are shown nowhere."""

from typing import Any

from worker_service.builtin.http_param import HttpRequestParam
from worker_service.context import NodeContext


async def http_request(ctx: NodeContext[HttpRequestParam]) -> dict[str, Any]:
    """Send the request that the param describes."""
    raise NotImplementedError
