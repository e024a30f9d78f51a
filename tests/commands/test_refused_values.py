"""What a person types wrong is refused in a sentence that names the option."""

import pytest

from tests.harness.command_line import done, invoke


@pytest.fixture
def url(migrated_sqlite_url: str) -> str:
    done("calendar", "add", "de", "--weekend", "sat,sun", url=migrated_sqlite_url)
    return migrated_sqlite_url


NAME = "a name has 1 to 63 characters, and no blank at its ends"
DATE = "write a date from 1970-01-01 to"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("calendar", "add", "fr", "--country", ""), "--country '': write a code such as DE"),
        (("calendar", "set", "de", "--country", "", "--off", "2027-12-24"), "--country '': write a code such as DE"),
        (("calendar", "set", "de", "--off", "2027-13-24"), f"error: --off '2027-13-24': {DATE}"),
        (("calendar", "set", "de", "--forget", "soon"), f"error: --forget 'soon': {DATE}"),
        (("calendar", "add", "fr", "--on", "soon"), f"error: --on 'soon': {DATE}"),
        (("limit", "add", " a ", "--max-running", "1"), f"error: name ' a ': {NAME}"),
        (("limit", "add", "", "--max-running", "1"), f"error: name '': {NAME}"),
        (("limit", "add", "x" * 64, "--max-running", "1"), NAME),
        (
            ("instance", "replay", "--since", "2026-11-20T00:00", "--until", "2026-11-19T00:00"),
            "error: --since 2026-11-20T00:00:00Z: it is not before the time that until says, 2026-11-19T00:00:00Z",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_option(
    url: str, arguments: tuple[str, ...], said: str
) -> None:
    result = invoke(*arguments, url=url)
    assert result.exit_code != 0
    assert said in result.stderr
