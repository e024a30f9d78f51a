"""The names of the task types that come with Rota. An app that replaces one must say so."""

from rota.shared.domain.errors import NameTaken

BUILT_IN = frozenset({"HTTP_REQUEST", "SHELL_COMMAND"})


def refuse_built_in(name: str, *, replace: bool) -> None:
    """Refuse to declare a type that comes with Rota by accident: its tasks would run something else.

    Raises NameTaken.
    """
    if name in BUILT_IN and not replace:
        raise NameTaken(
            f"{name} comes with Rota; take another name, or say replace=True if its tasks shall run your function"
        )
