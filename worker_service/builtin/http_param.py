"""The param of HTTP_REQUEST, checked."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

MIB = 1_048_576
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")
REFUSED_HEADERS = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"}


def _rising(text: str) -> str:
    first, _, last = text.partition("-")
    if last and int(first) > int(last):
        raise ValueError(f"{text} is empty; write the lower status first")
    return text


QueryValue = str | int | float | bool
StatusRange = Annotated[str, Field(pattern=r"^[1-5][0-9]{2}(-[1-5][0-9]{2})?$"), AfterValidator(_rising)]
Status = Annotated[int, Field(ge=100, le=599)]


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!a} is no header name")
        if name.lower() in REFUSED_HEADERS:
            raise ValueError(f"{name} is set by the request itself")
        if not HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} must be ASCII, on one line, without blanks around it")
    return headers


class HttpRequestParam(BaseModel):
    """The param of HTTP_REQUEST."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    method: Method = Field(default="GET", description="the request's method")
    url: str = Field(
        pattern=r"^[hH][tT][tT][pP][sS]?://[^/?#]", max_length=8192, description="an http or https URL with its host"
    )
    headers: Annotated[dict[str, str], AfterValidator(_checked_headers)] = Field(
        default_factory=dict, max_length=100, description="request headers"
    )
    params: dict[str, QueryValue | list[QueryValue]] = Field(
        default_factory=dict, description="query parameters, added to those of the URL"
    )
    json_body: Any = Field(default=None, alias="json", description="a body, sent as JSON")
    body: str | None = Field(default=None, description="a body, sent as UTF-8 text")
    timeout_seconds: float = Field(default=30, gt=0, le=3600, description="for the whole, redirects and body included")
    follow_redirects: bool = Field(default=False, description="follow up to 5 redirects")
    expect_status: StatusRange | Annotated[list[Status | StatusRange], Field(min_length=1)] = Field(
        default="200-299", description='statuses that are a success: "200-299", or a list of statuses and ranges'
    )
    max_response_bytes: int = Field(default=65_536, ge=0, le=4 * MIB, description="how much of the body is read")

    @model_validator(mode="after")
    def _one_body(self) -> Self:
        if self.has_json and self.body is not None:
            raise ValueError("give json or body, not both")
        return self

    @property
    def has_json(self) -> bool:
        """Whether a JSON body was given; ``null`` is one."""
        return "json_body" in self.model_fields_set

    def expects(self, status: int) -> bool:
        """Whether a status is a success."""
        wanted = [self.expect_status] if isinstance(self.expect_status, str) else self.expect_status
        return any(status in _span(item) for item in wanted)


def _span(item: int | str) -> range:
    first, _, last = str(item).partition("-")
    return range(int(first), int(last or first) + 1)
