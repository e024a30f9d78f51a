"""The param of SHELL_COMMAND, checked."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MIB = 1_048_576


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no command can be given")
    return text


def _checked_environment(environment: dict[str, str]) -> dict[str, str]:
    for name in environment:
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name[:60]!a} is no name of an environment variable")
    return environment


Text = Annotated[str, AfterValidator(_without_nul)]
Line = Annotated[Text, Field(min_length=1, max_length=100_000)]


class ShellCommandParam(BaseModel):
    """The param of SHELL_COMMAND."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    command: Line | Annotated[list[Text], Field(min_length=1, max_length=1000)] = Field(
        description="a line for /bin/sh -c, or a list: the program and its arguments, run without a shell"
    )
    env: Annotated[dict[str, Text], AfterValidator(_checked_environment)] = Field(
        default_factory=dict, description="environment variables, added to the worker's own"
    )
    cwd: Text | None = Field(default=None, min_length=1, description="the folder to run in; default: the worker's")
    stdin: str | None = Field(default=None, max_length=MIB, description="standard input, as UTF-8; default: empty")
    timeout_seconds: float = Field(default=60, gt=0, le=86_400, description="then it is terminated, 5 s later killed")
    max_output_bytes: int = Field(
        default=65_536, ge=0, le=4 * MIB, description="how much of stdout, and of stderr, is kept"
    )
    expect_exit: list[Annotated[int, Field(ge=0, le=255)]] = Field(
        default=[0], min_length=1, description="exit codes that are a success"
    )
