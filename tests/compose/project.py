"""One run of docker-compose.yml: its own project, its containers, its database."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compose.engine import compose_command, docker, run
from tests.harness.processes import ROOT, guard

UP_SECONDS = 240
DOWN_SECONDS = 120
IN_DATABASE = (
    'MYSQL_PWD="$MARIADB_PASSWORD" exec mariadb --user="$MARIADB_USER" --batch --skip-column-names "$MARIADB_DATABASE"'
)


class Project:
    """docker-compose.yml under a name of its own, so that it meets nothing else on this machine.

    `environment` is all that the file sees of ROTA_*; a developer's .env file is not read.
    """

    def __init__(self, environment: Mapping[str, str], empty_file: Path) -> None:
        self.name = f"rota-test-{secrets.token_hex(4)}"
        self.environment = dict(environment)
        self._empty_file = empty_file
        self._label = f"label=com.docker.compose.project={self.name}"

    def compose(self, *arguments: str, check: bool = True, seconds: float = UP_SECONDS) -> str:
        """What `docker compose <arguments>` said."""
        done = run(*self._command(*arguments), check=check, seconds=seconds, environment=self._environment())
        return done.stdout + done.stderr

    def refusal(self, *arguments: str) -> str:
        """The words in which `docker compose <arguments>` refuses; fails if it does not."""
        done = run(*self._command(*arguments), check=False, environment=self._environment())
        assert done.returncode != 0, f"`docker compose {' '.join(arguments)}` was not refused"
        return done.stderr

    def remove_at_exit(self) -> None:
        """Have the guard remove everything of this project, should this process be killed."""
        for kind, remove in (
            ("ps -a", "rm --force --volumes"),
            ("volume ls", "volume rm"),
            ("network ls", "network rm"),
        ):
            guard().run("sh", "-c", f"docker {kind} -q --filter {self._label} | xargs -r docker {remove}")

    def down(self) -> None:
        """Remove the containers, the network and the database's volume, however many workers there are."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10", seconds=DOWN_SECONDS)

    def containers(self, service: str, *options: str) -> list[str]:
        """The ids of a service's containers: of those that run, or with `--all`, of all."""
        service_label = f"label=com.docker.compose.service={service}"
        return docker("ps", "-q", *options, "--filter", self._label, "--filter", service_label).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """What `docker inspect` tells of it."""
        facts: dict[str, Any] = json.loads(docker("inspect", container))[0]
        return facts

    def health(self, service: str) -> list[str]:
        """The health of each of the service's running containers."""
        return [self.inspect(container)["State"]["Health"]["Status"] for container in self.containers(service)]

    def sql(self, statement: str) -> list[tuple[str, ...]]:
        """Run SQL inside the database's container, as an operator would; NULL reads as 'NULL'."""
        (database,) = self.containers("db")
        answer = docker("exec", "-i", database, "sh", "-c", IN_DATABASE, stdin=statement)
        return [tuple(line.split("\t")) for line in answer.splitlines()]

    def logs(self) -> str:
        """The end of each container's log, of those that ended too, and what its health check said."""
        parts = [docker("ps", "--all", "--filter", self._label)]
        for container in docker("ps", "-aq", "--filter", self._label).split():
            done = run("docker", "logs", "--tail", "60", container, check=False)
            facts = self.inspect(container)
            checks = (facts["State"].get("Health") or {}).get("Log") or []
            parts += [f"--- {facts['Name']} ---", f"{done.stdout}{done.stderr}"]
            parts += [f"health {check['Start']}: {check['ExitCode']} {check['Output'].strip()}" for check in checks]
        return "\n".join(parts)

    def _command(self, *arguments: str) -> tuple[str, ...]:
        options = ("--project-name", self.name, "--env-file", str(self._empty_file))
        return (*compose_command(), *options, "--file", str(ROOT / "docker-compose.yml"), *arguments)

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "COMPOSE_"))}
        return {**inherited, **self.environment}
