"""The calendars of the tasks of a batch. A batch in which no task names one pays nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rota.shared.database.transactions import Database
from rota.shared.domain.calendars.definition import Found, edition_of, found_calendar
from rota.shared.domain.planning import PlanInputs, PlannedTask, TaskTerms
from rota.shared.store import calendars


def given(database: Database, tasks: list[PlannedTask]) -> list[PlannedTask]:
    """The tasks, each with the calendar that it names."""
    give(database, tasks)
    return tasks


def give(
    database: Database, tasks: Sequence[PlannedTask], also: Iterable[PlanInputs | None] = ()
) -> Mapping[str, Found]:
    """Give the tasks, which this scheduler has leased, the calendars that they name, as those are now.

    Returns these calendars by their names, and those that the inputs ``also`` name. A task that was planned with
    another edition of its calendar gets the new one in ``TaskTerms.new_edition``.
    """
    different = {id(task.terms): task.terms for task in tasks}  # the tasks of a herd share their terms
    with_names = {key for key, terms in different.items() if terms.calendars}
    naming = [task for task in tasks if id(task.terms) in with_names] if with_names else []
    names = {name for task in naming for name in task.terms.calendars}
    names |= {inputs.named_calendar for inputs in also if inputs is not None and inputs.named_calendar is not None}
    if not names:
        return {}
    ids = [task.id for task in naming]
    texts, used = database.read(lambda c: (calendars.texts(c, names), calendars.editions(c, ids)))
    found = {name: found_calendar(name, text) for name, text in texts.items()}
    alike: dict[tuple[TaskTerms, str | None], TaskTerms] = {}
    for task in naming:
        new = _new_edition(task.terms, texts, used.get(task.id))
        if (task.terms, new) not in alike:
            alike[task.terms, new] = _on(task.terms, found, new)
        task.terms = alike[task.terms, new]
    return found


def on(database: Database, inputs: PlanInputs | None) -> PlanInputs | None:
    """The inputs with the calendar that they name, as it is now."""
    name = None if inputs is None else inputs.named_calendar
    if inputs is None or name is None:
        return inputs
    texts = database.read(lambda c: calendars.texts(c, [name]))
    return inputs.on({name: found_calendar(name, text) for name, text in texts.items()})


def _new_edition(terms: TaskTerms, texts: Mapping[str, str], used: tuple[str, str] | None) -> str | None:
    name = terms.inputs.named_calendar
    if name is None:
        return None
    edition = edition_of(texts[name]) if name in texts else ""
    return None if used == (name, edition) else edition


def _on(terms: TaskTerms, found: Mapping[str, Found], new_edition: str | None) -> TaskTerms:
    planned = terms.planned
    if planned is not None:
        planned = replace(planned, inputs=planned.inputs.on(found))
    return replace(terms, inputs=terms.inputs.on(found), planned=planned, new_edition=new_edition)
