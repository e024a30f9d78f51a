"""The images that Rota's image and compose file start from.

The public ones, where the engine has them or can pull them. Elsewhere they are made here, of Debian's packages, under
names that tell what went into them; so they are made once, and again only when that changes.
"""

import ast
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.compose.engine import docker, install, run
from tests.harness.processes import guard

PUBLIC_PYTHON = "python:3.11-slim"
PUBLIC_MARIADB = "mariadb:10.11"
REGISTRY_ANSWER_SECONDS = 15
PULL_SECONDS = 600
BUILD_SECONDS = 600

RECIPES = Path(__file__).parent / "images"
DEBIAN_SUITE = "bookworm"  # the Debian of Python 3.11 and MariaDB 10.11
DEBIAN_MIRROR = os.environ.get("ROTA_TEST_DEBIAN_MIRROR", "http://deb.debian.org/debian")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True)
class BaseImages:
    """The names of both images, and what `docker build` needs to build on them."""

    python: str
    mariadb: str
    build_options: tuple[str, ...]


def base_images() -> BaseImages:
    """The public images, or else the ones made here."""
    if _is_here_or_pulled(PUBLIC_PYTHON) and _is_here_or_pulled(PUBLIC_MARIADB):
        return BaseImages(PUBLIC_PYTHON, PUBLIC_MARIADB, ())
    debian = _debian_image()
    return BaseImages(
        python=_made_on(debian, "python", {"pip.conf": _pip_configuration()}),
        mariadb=_made_on(debian, "mariadb", {}),
        build_options=_host_network(),
    )


def _is_here(image: str) -> bool:
    return run("docker", "image", "inspect", image, check=False).returncode == 0


def _is_here_or_pulled(image: str) -> bool:
    return _is_here(image) or _pulled(image)


def _pulled(image: str) -> bool:
    """Whether the engine could pull it; a registry that does not answer soon is given up."""
    with subprocess.Popen(
        ["docker", "pull", image], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as pull:
        assert pull.stdout is not None
        for seconds, read in ((REGISTRY_ANSWER_SECONDS, pull.stdout.readline), (PULL_SECONDS, pull.stdout.read)):
            limit = threading.Timer(seconds, pull.kill)
            limit.start()
            read()  # its first line comes with the registry's first answer
            limit.cancel()
    return pull.returncode == 0


def _debian_image() -> str:
    certificates = _certificates()
    image = _name("debian", DEBIAN_SUITE.encode(), certificates)
    if _is_here(image):
        return image
    install_missing("debootstrap")
    # Not /tmp, which may be mounted without devices; a mount namespace, so that an interruption leaves no mounts.
    with tempfile.TemporaryDirectory(prefix="rota-debian-", dir="/var/tmp") as directory:
        guard().remove(Path(directory))
        root = Path(directory) / "root"
        bootstrap = ("unshare", "--mount", "debootstrap", "--variant=minbase", "--include=ca-certificates")
        run(*bootstrap, DEBIAN_SUITE, str(root), DEBIAN_MIRROR, seconds=BUILD_SECONDS)
        (root / CERTIFICATES).write_bytes(certificates)
        archive = str(Path(directory) / "root.tar")
        run("tar", "--directory", str(root), "--exclude=./var/cache/apt/archives/*.deb", "-cf", archive, ".")
        docker("import", archive, image, seconds=BUILD_SECONDS)
    return image


def install_missing(program: str) -> None:
    """Install the package of the program's name if the program is not here."""
    if run("sh", "-c", f"command -v {program}", check=False).returncode != 0:
        install(program)


def _made_on(debian: str, kind: str, written: dict[str, str]) -> str:
    """The image of images/<kind>.Dockerfile, with the `written` files in its build context."""
    context = {path.name: path.read_bytes() for path in sorted(RECIPES.iterdir()) if path.name.startswith(kind)}
    context |= {name: text.encode() for name, text in written.items()}
    image = _name(kind, debian.encode(), *context.values())
    if _is_here(image):
        return image
    with tempfile.TemporaryDirectory(prefix="rota-image-") as directory:
        for name, content in context.items():
            path = Path(directory) / name
            path.write_bytes(content)
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
        recipe = str(Path(directory) / f"{kind}.Dockerfile")
        argument = f"DEBIAN_IMAGE={debian}"
        options = ("--build-arg", argument, "--file", recipe, "--tag", image, *_host_network())
        docker("build", *options, directory, seconds=BUILD_SECONDS)
    return image


def _name(kind: str, *contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return f"rota-compose-test-{kind}:{digest.hexdigest()[:12]}"


def _host_network() -> tuple[str, ...]:
    """Builds go out the way that this machine does."""
    proxies = [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "no_proxy")]
    return ("--network=host", *(f"--build-arg={name}" for name in proxies))


def _certificates() -> bytes:
    """The authorities that this machine trusts."""
    named = [os.environ[name] for name in ("PIP_CERT", "SSL_CERT_FILE") if name in os.environ]
    paths = [path for path in (*named, f"/{CERTIFICATES}") if Path(path).is_file()]
    return Path(paths[0]).read_bytes()


def _pip_configuration() -> str:
    """This machine's pip settings, as far as they mean the same elsewhere: none that names a file of this machine."""
    listed = run(sys.executable, "-m", "pip", "config", "list", check=False).stdout
    lines = ["[global]", f"cert = /{CERTIFICATES}"]
    for line in listed.splitlines():
        key, _, quoted = line.partition("=")
        option = key.rpartition(".")[2]
        if option not in ("index-url", "extra-index-url", "trusted-host", "proxy"):
            continue
        values = [v for v in str(ast.literal_eval(quoted)).split() if not v.startswith(("file:", "/"))]
        if values:
            lines.append(f"{option} = {' '.join(values)}")
    return "\n".join([*dict.fromkeys(lines), ""])
