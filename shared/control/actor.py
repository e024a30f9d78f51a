"""Who asks for an act, and through which face."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and through which face: ``cli``, or ``code`` for a program's client or a worker's ``app.schedule``.

    A name has at most 127 characters.

        Actor("ann", "cli")
    """

    name: str
    face: str
