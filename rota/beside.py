"""A scheduler and workers beside a program, for small deployments: child processes that start and end with it."""

import logging
import os
import re
import select
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rota.shared.domain.errors import ConfigurationError, NotPossible
from rota.shared.settings import Settings, variables
from rota.supervise.parent import AFTER_GRACE_SECONDS
from rota.supervise.supervisor import KILLS_FIRST_SECONDS, MOST_WORKERS

if TYPE_CHECKING:
    from rota.worker_service.authoring import Rota

log = logging.getLogger(__name__)

LAST_SECONDS = 5.0
"""How long the children may need beyond the time after which they are killed by their own parent."""


class embedded:  # noqa: N801 - it reads as a word: with embedded("jobs:app")
    """Runs a scheduler and workers beside this process, in child processes; in this one there is no thread of them.

        with embedded("jobs:app", workers=2, capacity=20):
            serve()

    They are those of ``rota up``: it migrates the database, and starts again what dies. They end with the block, or
    with this process, however that ends. What runs may finish within ``grace_seconds``, and the rest is handed back.
    Any number of processes may do so over one database; a fire still happens once.
    """

    def __init__(
        self,
        app: "str | Rota",
        *,
        database_url: str | None = None,
        workers: int = 1,
        start_timeout: float = 20.0,
        **settings: Any,
    ) -> None:
        """``app`` is ``module:app``, ``package:*``, or an app of a module that can be imported.

        ``settings`` are those of ``rota up``, by their names (``wake_address=":0"``); what is not given is that of the
        environment. ``start_timeout``: so many seconds ``start`` waits. Raises ConfigurationError.
        """
        target = app if isinstance(app, str) else _target_of(app)
        _check(target, workers, settings)
        given = {"database_url": database_url, "app": target, **settings}
        self._settings = Settings.load(**given)
        self._environment = {
            **os.environ,
            **variables(given),
            "PYTHONPATH": own_paths(),
        }
        self._command = [sys.executable, "-m", "rota", "up", "--no-fires", "--workers", str(workers)]
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._held = -1

    @property
    def pid(self) -> int | None:
        """The process id of the children's parent; None: it is not started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start them, and wait until the workers are live, but no longer than ``start_timeout``.

        Raises NotPossible if they cannot be started, for example because the app cannot be imported. The reason is on
        stderr.
        """
        if self._process is not None:
            raise NotPossible("it is started already; make another one, or stop it first")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        lifeline, self._held = os.pipe()
        ready, told = os.pipe()
        _started.add(self)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
                [*self._command, "--parent-pipe", str(lifeline), "--ready-pipe", str(told)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[lifeline, told],
            )
            os.close(told)
            told = -1
            poll = select.poll()
            poll.register(ready, select.POLLIN)
            if not poll.poll(self._start_timeout * 1000):
                log.warning("embedded: not up within %g s; the start goes on", self._start_timeout)
            elif not os.read(ready, 1):
                self._let_go()
                code = self._process.wait()
                raise NotPossible(
                    f"the embedded scheduler and workers could not be started (exit code {code}); stderr says why"
                )
        finally:
            for one in (lifeline, ready, told):
                if one >= 0:
                    os.close(one)

    def stop(self) -> None:
        """End them: what runs may finish within ``grace_seconds``. Returns when all have ended."""
        self._let_go()
        if (process := self._process) is None:
            return
        self._process = None
        try:
            process.wait(self._settings.grace_seconds + AFTER_GRACE_SECONDS + KILLS_FIRST_SECONDS + LAST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        """Start them."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self.stop()

    def _let_go(self) -> None:
        """Close the end of the pipe by which the children see that this process lives."""
        if self._held >= 0:
            os.close(self._held)
        self._held = -1
        _started.discard(self)


_started: set[embedded] = set()


def _forget_all() -> None:
    for one in list(_started):
        one._let_go()  # noqa: SLF001 - one unit
        one._process = None  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_all)  # or a child that is forked would keep them alive


def _check(target: str, workers: int, settings: Mapping[str, Any]) -> None:
    if ":" not in target:
        raise ConfigurationError(f"app {target!r}: write module:app, for example {target}:app; or package:*")
    if not isinstance(workers, int) or not 0 <= workers <= MOST_WORKERS:
        raise ConfigurationError(f"workers {workers!r}: 0 to {MOST_WORKERS} are right")
    for name in ("worker_name", "health_file"):
        if name in settings:
            raise ConfigurationError(f"{name} is for one process; workers beside a program have names of their own")


def own_paths() -> str:
    """Where this program finds modules, as ``PYTHONPATH``; without the folders that any Python here looks in."""
    known = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    known |= {os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload")}  # noqa: PTH118 - as sys.path writes it
    own = (path for path in sys.path if path and path not in known and not _STANDARD_ZIP.search(path))
    return os.pathsep.join(own)


_STANDARD_ZIP = re.compile(r"/python\d+\.zip$")


def _target_of(app: "Rota") -> str:
    """Where an app can be imported from."""
    if app.target is not None:
        return app.target
    for name, module in list(sys.modules.items()):
        if name in ("__main__", "__mp_main__"):  # another process does not find it by that name
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{name}:{attribute}"
    raise ConfigurationError(
        "the app is of no module that another process can import; write it in a module of its own, and name it: "
        "embedded('jobs:app')"
    )
