"""Logging of the services, on stderr: one line a record, with time (UTC), level and name; or one JSON object a line."""

import json
import logging
import time

LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


def configure(level: int, *, as_json: bool = False) -> None:
    """Log records of ``level`` and above to stderr."""
    plain = logging.Formatter("{asctime} {levelname:<7} {name}: {message}", style="{")
    formatter = JsonFormatter() if as_json else plain
    formatter.converter = time.gmtime
    formatter.default_time_format = "%Y-%m-%dT%H:%M:%S"
    formatter.default_msec_format = "%s.%03dZ"
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore", "alembic", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def level_of(base: int, verbose: int, quiet: int) -> int:
    """The level that is ``verbose`` steps below ``base``, and ``quiet`` steps above it."""
    at = LEVELS.index(base) + verbose - quiet
    return LEVELS[min(max(at, 0), len(LEVELS) - 1)]


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON text."""
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "name": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
