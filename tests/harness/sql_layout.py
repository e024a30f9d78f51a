"""SQL as a DBA reads it: a line for each clause, long lists wrapped, long parentheses opened.

laid_out("SELECT id FROM schedule_task WHERE status = :status AND next_fire_at <= :horizon")
# SELECT id
# FROM schedule_task
# WHERE status = :status
#   AND next_fire_at <= :horizon
"""

import re
from collections.abc import Iterator

WIDTH = 100
_TOKEN = re.compile(r"'(?:[^'\\]|\\.|'')*'|[()]|,|\w+|\s+|.", re.DOTALL)
_CLAUSE = re.compile(
    r"(?:SELECT|FROM|(?:LEFT OUTER |INNER |STRAIGHT_)?JOIN|ON|WHERE|AND|OR|GROUP BY|ORDER BY|LIMIT|FOR UPDATE|FOR SHARE"
    r"|LOCK IN|UNION|SET|VALUES)\b"
)
_CONDITION = re.compile(r"(?:AND|OR|ON)\b")
_UNFINISHED = re.compile(r"(?:LEFT OUTER|INNER|SELECT|BETWEEN \S+) $")
_LIST = re.compile(r"\((:\w+?)_1(?:, \1_\d+)*\)")


def laid_out(sql: str) -> str:
    """The statement over lines; nothing but white space is changed."""
    return "\n".join(_lines(" ".join(sql.split()), ""))


def with_names(text: str) -> str:
    """Placeholders as ``:name``, whatever the driver's style; a list that is as long as its values, as one."""
    named = re.sub(r"%\((\w+)\)s", r":\1", text).replace("%%", "%")
    return _LIST.sub(r"(\1, …)", named)


def _lines(text: str, indent: str) -> Iterator[str]:
    for clause in _split(text, _CLAUSE):
        margin = f"{indent}  " if _CONDITION.match(clause) else indent
        if len(margin) + len(clause) <= WIDTH:
            yield margin + clause
        else:
            yield from _wrapped(clause, margin)


def _wrapped(clause: str, indent: str) -> Iterator[str]:
    """The items of a list, as many in a line as fit; of one item, what stands in its last long parentheses."""
    items = _split(clause, re.compile(r"(?<=,)\s*"))
    margin = f"{indent}    " if _CLAUSE.match(clause) else indent
    line = indent
    for item in items:
        if line.strip() and len(line) + 1 + len(item) > WIDTH:
            yield line
            line = margin
        line = f"{line} {item}" if line.strip() else line + item
        if len(line) > WIDTH:
            *opened, line = _opened(line.strip(), line[: len(line) - len(line.lstrip())])
            yield from opened
    if line.strip():
        yield line


def _opened(item: str, indent: str) -> Iterator[str]:
    """``prefix (``, what is inside on lines of its own, and ``) suffix``."""
    begin, end = _parentheses(item)
    if begin is None or end is None:
        yield indent + item
        return
    yield indent + item[: begin + 1]
    yield from _lines(item[begin + 1 : end].strip(), f"{indent}    ")
    yield indent + item[end:]


def _parentheses(item: str) -> tuple[int | None, int | None]:
    """The places of the longest parentheses that stand in no others."""
    best: tuple[int | None, int | None] = (None, None)
    depth = begin = place = 0
    for token in _TOKEN.findall(item):
        if token == "(":
            begin = place if depth == 0 else begin
            depth += 1
        elif token == ")":
            depth -= 1
            if depth == 0 and (best[0] is None or place - begin > (best[1] or 0) - best[0]):
                best = (begin, place)
        place += len(token)
    return best


def _split(text: str, at: re.Pattern[str]) -> list[str]:
    """The text in parts, each beginning where the pattern matches outside of parentheses, strings and CASE … END."""
    parts, depth, place, begin = [], 0, 0, 0
    for token in _TOKEN.findall(text):
        if depth == 0 and place > begin and at.match(text, place) and not _continues(text, place):
            parts.append(text[begin:place].strip())
            begin = place
        depth += {"(": 1, "CASE": 1, ")": -1, "END": -1}.get(token, 0)
        place += len(token)
    return [*parts, text[begin:].strip()]


def _continues(text: str, place: int) -> bool:
    """Whether the word here is no clause of its own: a part of a name, LEFT OUTER JOIN, BETWEEN … AND."""
    before = text[:place]
    return not before.endswith((" ", ",")) or _UNFINISHED.search(before) is not None
