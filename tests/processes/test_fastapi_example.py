"""examples/fastapi_shop, started and used as docs/web.md shows it."""

import json
import sys
from collections.abc import Callable

from tests.harness.curl_page import asked, calls
from tests.harness.ports import free_port
from tests.harness.processes import RotaProcess, wait_until
from tests.harness.schemas import typed


def test_the_page_shows_what_the_example_answers(migrated_url: str, rota: Callable[..., RotaProcess]) -> None:
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "examples.fastapi_shop.main:app")
    served = rota("--workers", "2", "--port", str(port), database_url=migrated_url, command=command)
    served.wait_for_log(r"startup complete(.|\n)*startup complete", 60)
    declared = "SELECT id FROM schedule_task WHERE name = 'ad-hoc-report'"  # a start that takes long goes on behind it
    wait_until(lambda: typed(migrated_url, declared), 60, "a worker to have declared the tasks")
    shown = calls("FastAPI and Starlette")
    assert len(shown) == 4
    for call, answer in shown:
        expected, told = json.loads(answer), asked(call, port)
        if isinstance(expected, dict) and "instance_id" in expected:
            assert isinstance(told, dict)
            told["instance_id"] = expected["instance_id"]
        assert told == expected
    refused = asked(shown[-1][0], port)
    assert refused == {
        "detail": "nothing waits or runs under key 'product-42' of END_PROMOTION; rota key list shows the keys"
    }
