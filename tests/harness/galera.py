"""A Galera cluster of private MariaDB servers, whose nodes may be killed and may join again.

with GaleraCluster() as cluster:
    url = cluster.create_database()      # with all hosts
    cluster.nodes[1].kill()
    cluster.nodes[1].start()             # it joins again, and has what the others wrote meanwhile
"""

import re
import shutil
import subprocess
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pymysql

from tests.harness.databases import PASSWORD, USER, PrivateMariaDB, run_sql
from tests.harness.ports import free_port
from tests.harness.processes import wait_until

PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")
NEEDED = ("wsrep_sst_rsync", "rsync")
JOIN_SECONDS = 60
LOG_LINES = 150
"""So many of the last lines of each node's log are shown if the block ends with an error."""


def why_not() -> str | None:
    """Why no cluster can run on this machine; None if one can."""
    if not any(Path(one).exists() for one in PROVIDERS):
        return "Galera is not installed: apt-get install galera-4 mariadb-server rsync"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"{' and '.join(missing)} are not installed: apt-get install mariadb-server rsync" if missing else None


class GaleraNode(PrivateMariaDB):
    """A node of a cluster. `group` is the port by which it talks to the others, whose ports are `groups`."""

    def __init__(self, name: str, cluster: str, group: int, groups: list[int], clock: str | None = None) -> None:
        provider = next(one for one in PROVIDERS if Path(one).exists())
        addresses = ",".join(f"127.0.0.1:{one}" for one in groups)
        super().__init__(
            "--wsrep-on=ON",
            f"--wsrep-provider={provider}",
            f"--wsrep-cluster-name={cluster}",
            f"--wsrep-node-name={name}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-cluster-address=gcomm://{addresses}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{free_port()}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{free_port()}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--log-bin-trust-function-creators=1",  # for the journal's triggers, which an ordinary user makes
            "--innodb-flush-log-at-trx-commit=2",  # as is usual on a cluster: what one node loses the others have
            clock=clock,
        )
        self.is_first = False
        """Whether its next start begins a new cluster."""

    def wait_ready(self, deadline: float = JOIN_SECONDS) -> None:
        """Wait until it has joined the others and has what they have."""
        super().wait_ready(deadline)
        wait_until(self._has_joined, deadline, "it to join")

    def _has_joined(self) -> bool:
        if not self.alive:
            raise RuntimeError(f"mariadbd ended while it joined\n{self.log_tail()}")
        try:
            return (self.state("wsrep_local_state_comment"), self.state("wsrep_ready")) == ("Synced", "ON")
        except pymysql.err.OperationalError:  # it closes connections while it takes over what the others have
            return False

    def state(self, name: str) -> str:
        """The value of one of the node's status variables."""
        return str(run_sql(self.admin_url(), f"SHOW STATUS LIKE '{name}'")[0][1])

    def _start_options(self) -> list[str]:
        if self.is_first:
            self.is_first = False
            return ["--wsrep-new-cluster"]
        return [f"--wsrep-start-position={found}"] if (found := self._recovered()) else []

    def _recovered(self) -> str | None:
        """The last transaction that this node has on its disk, as `galera_recovery` finds it after a crash."""
        if not (self._directory / "data" / "grastate.dat").exists():
            return None
        done = subprocess.run(
            self._command("--wsrep-recover", "--log-error=/dev/stderr"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=True, **self._identity(),
        )  # fmt: skip
        found = re.findall(r"Recovered position:\s*(\S+:-?\d+)", done.stderr)
        return found[-1] if found else None


class GaleraCluster:
    """Three nodes; the block ends them. `clocks` are how far the clock of each is behind, such as `-2s`.

    None can be ahead: libfaketime 3.0 shifts absolute times of monotonic timers, too. When the thread by which a node
    talks to the others asks for a timer that is due at once (1 ns after boot), that becomes a negative time, which the
    kernel refuses. Then the thread may sleep for many seconds, and the others give the node up.
    """

    def __init__(self, clocks: tuple[str | None, str | None, str | None] = (None, None, None)) -> None:
        assert not any(clock and clock.startswith("+") for clock in clocks), clocks
        name = f"rota_test_{uuid.uuid4().hex[:8]}"
        groups = [free_port() for _ in clocks]
        self.nodes = [
            GaleraNode(f"node{number}", name, group, groups, clock)
            for number, (group, clock) in enumerate(zip(groups, clocks, strict=True), 1)
        ]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.nodes[0].is_first = True
            for node in self.nodes:
                stack.callback(node.discard)
                node.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            for node in self.nodes:
                print(node.log_tail(LOG_LINES))
        self._stack.close()

    def url(self, database: str, first: int = 0) -> str:
        """The URL with all hosts, of which the one of this index comes first."""
        nodes = self.nodes[first:] + self.nodes[:first]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        return f"mysql://{USER}:{PASSWORD}@{hosts}/{database}"
