"""The Docker engine and Compose for the test: what this machine has, or Debian's, started for the test alone."""

import functools
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.processes import guard, wait_until

START_SECONDS = 60
APT_SECONDS = 300
CALL_SECONDS = 120


def run(
    *command: str,
    check: bool = True,
    seconds: float = CALL_SECONDS,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; where it fails, fail the test with what it said."""
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        env=environment,
        input=stdin,
    )
    if check and done.returncode != 0:
        said = "\n".join([*done.stdout.splitlines()[-40:], *done.stderr.splitlines()[-40:]])
        pytest.fail(f"`{' '.join(command)}` failed with {done.returncode}:\n{said}")
    return done


def docker(*arguments: str, seconds: float = CALL_SECONDS, stdin: str | None = None) -> str:
    """What `docker <arguments>` printed; fails the test if it fails."""
    return run("docker", *arguments, seconds=seconds, stdin=stdin).stdout.strip()


@functools.cache
def compose_command() -> tuple[str, ...]:
    """`docker compose` (v2) or `docker-compose` (1.29), or skip in a sentence."""
    if _succeeds("docker", "compose", "version"):
        return ("docker", "compose")
    if shutil.which("docker-compose") is None:
        install("docker-compose")
    return ("docker-compose",)


@contextmanager
def running_engine() -> Iterator[bool]:
    """A Docker engine that answers, and whether it was started here: then it is stopped in the end."""
    if not _answers() and shutil.which("dockerd") is None:
        install("docker.io")  # which starts it where services are started at installation
    if _answers():
        yield False
        return
    if os.geteuid() != 0:
        pytest.skip("no Docker engine answers, and starting one takes root")
    with tempfile.NamedTemporaryFile(prefix="rota-dockerd-", suffix=".log") as log:
        daemon = subprocess.Popen(
            ["dockerd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: daemon.poll() is not None or _answers(), START_SECONDS, "the Docker engine to answer")
            if daemon.poll() is not None:
                tail = Path(log.name).read_text(errors="replace").splitlines()[-20:]
                pytest.fail("dockerd ended while it started:\n" + "\n".join(tail))
            yield True
        finally:
            daemon.terminate()
            daemon.wait(START_SECONDS)


def stop_engine_at_exit() -> None:
    """Have the guard stop the engine if this process is killed, after the guard's earlier orders."""
    program = shutil.which("dockerd") or "dockerd"
    stop = ("start-stop-daemon", "--stop", "--oknodo", "--retry", "20", "--exec", program)
    guard().run(*stop, "--pidfile", "/run/docker.pid")


def install(package: str) -> None:
    """Install a package of Debian's, touching none that is installed; skip in a sentence where that cannot be."""
    if os.geteuid() != 0 or platform.freedesktop_os_release().get("ID") != "debian":
        pytest.skip(f"{package} is missing, and only as root on Debian can the test install it")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ("--yes", "--no-install-recommends", "--no-upgrade", "--no-remove")
    run("apt-get", "update", "--quiet", seconds=APT_SECONDS, environment=environment)
    run("apt-get", "install", *options, package, seconds=APT_SECONDS, environment=environment)


def _answers() -> bool:
    return _succeeds("docker", "version", "--format", "{{.Server.Version}}")


def _succeeds(*command: str) -> bool:
    try:
        return run(*command, check=False, seconds=20).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
