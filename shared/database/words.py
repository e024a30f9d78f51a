"""Columns that hold one of a few words."""

from sqlalchemy import Dialect, Enum, TypeDecorator


class WordType(TypeDecorator[str]):
    """One of the words that this Rota knows. It is read as the text that it is, since a newer Rota may write others.

    ``WordType("on", "off", name="task_status", create_constraint=True)``: as of SQLAlchemy's ``Enum``, which would
    refuse to read the whole result for one word that it does not know.
    """

    impl = Enum
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """None: nothing is to be done with what the driver returns."""
