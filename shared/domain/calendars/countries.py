"""The holidays of countries. This is the only importer of the library ``holidays``, which takes a moment to import."""

from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches

from rota.shared.domain.calendars.definition import weekend_text
from rota.shared.domain.errors import InvalidInput

LANGUAGE = "en_US"
"""The names of holidays do not depend on the language of the machine that asks."""


@dataclass(frozen=True, slots=True)
class PublicDays:
    """The days of a country, or of a part of it, in some years.

    ``makeup_days``: days of weekends that are working days in exchange for another day, as in China.
    """

    weekend: str
    holidays: dict[date, str]
    makeup_days: frozenset[date]
    last_year: int
    """The last year of which the library knows them, if it does not know all that were asked for."""


def public_days(country: str, subdivision: str | None, first_year: int, last_year: int) -> PublicDays:
    """The days of a country (``DE``, or ``CN``) or of a part of it (``BY``), as the installed library knows them.

    Raises InvalidInput for a country or a part that it does not know.
    """
    import holidays  # noqa: PLC0415 - only this function needs it

    known = holidays.list_supported_countries()
    if country not in known:
        near = get_close_matches(country.upper(), known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidInput(f"country {country!r:.40}{meant}: write a code of ISO 3166 that is known, such as DE or CN")
    if subdivision is not None and subdivision not in known[country]:
        parts = ", ".join(known[country]) or "none"
        raise InvalidInput(f"subdivision {subdivision!r:.40}: of {country} there are {parts}")
    entity = getattr(holidays, country)
    last_year = min(last_year, entity.end_year)
    years = range(max(first_year, entity.start_year), last_year + 1)
    language = LANGUAGE if LANGUAGE in entity.supported_languages else None
    found = holidays.country_holidays(country, subdiv=subdivision, years=years, language=language)
    makeup = frozenset(day for day in getattr(found, "weekend_workdays", ()) if day.year in years)
    named = {day: found[day] for day in sorted(found) if day.year in years}
    return PublicDays(weekend_text(found.weekend), named, makeup, last_year)
