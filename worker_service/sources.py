"""Which files an import read, and in which state each was. Two processes can so tell whether they imported the same."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

FileState = Sequence[int]
"""When the file was last changed, in nanoseconds, and its size in bytes."""


@contextmanager
def noted_sources() -> Iterator[dict[str, FileState]]:
    """Note each file from which the block imports a module: its path and its state just before it is read.

    with noted_sources() as sources:
        importlib.import_module("jobs")
    sources   # {"/srv/jobs.py": (1795219200000000000, 2048), …}
    """
    finder = _NotingFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.sources
    finally:
        with suppress(ValueError):  # what was imported may have replaced the list's contents
            sys.meta_path.remove(finder)


def changed(ours: Mapping[str, FileState], theirs: Mapping[str, FileState]) -> list[str]:
    """The files that both imported, in different states."""
    return sorted(path for path, state in ours.items() if path in theirs and list(theirs[path]) != list(state))


class _NotingFinder:
    """Finds what the other finders find."""

    def __init__(self) -> None:
        self.sources: dict[str, FileState] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if isinstance(finder, _NotingFinder) or not hasattr(finder, "find_spec"):
                continue
            if (spec := finder.find_spec(name, path, target)) is not None:
                self._note(spec)
                return spec
        return None

    def _note(self, spec: ModuleSpec) -> None:
        if spec.has_location and spec.origin is not None:
            with suppress(OSError):
                found = Path(spec.origin).stat()
                self.sources[spec.origin] = (found.st_mtime_ns, found.st_size)
