"""examples/django_shop on a database of the tests: its commands, run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy import make_url

from tests.harness.processes import ROOT, marked_environment

SHOP = ROOT / "examples" / "django_shop"


def shop_environment(url: str) -> dict[str, str]:
    """The variables by which the shop's settings find the database of a URL of Rota's."""
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite":
        return {"SHOP_DB_FILE": str(parts.database)}
    return {
        "SHOP_DB_NAME": str(parts.database),
        "SHOP_DB_USER": parts.username or "",
        "SHOP_DB_PASSWORD": str(parts.password or ""),
        "SHOP_DB_HOST": parts.host or "",
        "SHOP_DB_PORT": str(parts.port or 3306),
        "SHOP_DEBUG": "1",
    }


def command(project: Path = SHOP) -> tuple[str, ...]:
    """``manage.py`` of the shop, or of a copy of it."""
    return (sys.executable, str(project / "manage.py"))


def manage(
    url: str, *arguments: str, project: Path = SHOP, more: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of the shop to its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "DJANGO_"))}
    environment = marked_environment({**own, **shop_environment(url), "PYTHONPATH": str(ROOT), **(more or {})})
    return subprocess.run(
        [*command(project), *arguments],
        cwd=ROOT,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def must(done: subprocess.CompletedProcess[str]) -> str:
    """What a command that succeeded has said on stdout."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
