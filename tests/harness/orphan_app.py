"""An app that leaves orphans behind from its beginning, as careless code does."""

import logging
import subprocess

from rota import Rota

app = Rota()
for _ in range(3):
    subprocess.run(["/bin/sh", "-c", "(sleep 0.5 &) ; exit 0"], check=True)
    logging.getLogger(__name__).warning("left an orphan")
