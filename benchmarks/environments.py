"""Environments of the peers: a virtual environment, or a folder of node modules, for each, kept between runs."""

import shutil
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"


class Environments:
    """Made once from each peer's requirements and kept in a cache folder.

    environments = Environments(Path(".bench"))
    python = environments.python("celery")
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache.resolve()

    def python(self, peer: str) -> Path:
        """The interpreter of a peer's virtual environment, made from ``peers/<peer>/requirements.txt``."""
        place, wanted = self._cache / peer, PEERS / peer / "requirements.txt"
        if not _is_made(place, wanted):
            subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
            install: list[str | Path] = [
                place / "bin/pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-r",
                wanted,
            ]
            subprocess.run(install, check=True)
            shutil.copy(wanted, place / "made-from")
        return place / "bin/python"

    def node_modules(self, peer: str) -> Path:
        """The folder with a Node peer's modules, made from ``peers/<peer>/package.json``; run its programs there."""
        place, wanted = self._cache / peer, PEERS / peer / "package.json"
        if not _is_made(place, wanted):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            shutil.copy(wanted, place)
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], check=True, cwd=place)
            shutil.copy(wanted, place / "made-from")
        return place


def _is_made(place: Path, wanted: Path) -> bool:
    made = place / "made-from"
    return made.exists() and made.read_bytes() == wanted.read_bytes()
