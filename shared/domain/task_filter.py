"""Which tasks are wanted, of a list, and the words by which they are found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rota.shared.domain.errors import InvalidInput

Tag = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^\S(.*\S)?$")]


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks are wanted: all for which everything holds that is given. ``like`` is a part of the name.

    Raises InvalidInput for one text in place of a list of tags.
    """

    status: str | None = None
    like: str | None = None
    owner: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    """A task must have all of them."""

    def __post_init__(self) -> None:
        if isinstance(self.tags, str):
            raise InvalidInput(f"tags {self.tags!r}: give a list of tags, [{self.tags!r}]")

    @property
    def is_every(self) -> bool:
        """Whether nothing is given: all tasks are wanted."""
        return not self.tags and self == TaskFilter(tags=self.tags)


EVERY_TASK = TaskFilter()
