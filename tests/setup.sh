#!/bin/sh
# Sets up what the Makefile's targets need, once, and says nothing when it is there already.
#   tests/setup.sh run     .venv with Rota
#   tests/setup.sh venv    .venv with Rota and its development tools
#   tests/setup.sh         that, Redis, and a MariaDB for the tests: Docker's, an installed one, or one from apt (as root)
#   tests/setup.sh long    that and Galera for the test of a cluster, where apt can install it (as root)
#   tests/setup.sh quick   the same for the quick benchmark: an installed MariaDB, or one from apt
#   tests/setup.sh bench   that and what the peers want: Redis, PostgreSQL and npm
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*"; }

fail() {
    echo "setup: $*" >&2
    exit 2
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null >/dev/null
    for packages in "$@"; do # the first set that this release has
        # shellcheck disable=SC2086 # a set is several words
        if apt-get install -y -qq --no-install-recommends $packages </dev/null >/dev/null 2>&1; then
            return 0
        fi
    done
    return 1
}

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

find_python() {
    for name in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return 0
        fi
    done
    return 1
}

ensure_venv() { # what to install, and what that is called
    wanted="$1 $(cksum <pyproject.toml)"
    if [ -x .venv/bin/python ] && grep -qsxF -e "$wanted" .venv/rota-stamp; then
        return
    fi
    if ! [ -x .venv/bin/pip ]; then
        python=$(find_python) || fail "Rota needs Python 3.11 or newer; PYTHON=/path/to/python3.11 names one"
        if ! "$python" -c 'import ensurepip' 2>/dev/null; then
            may_apt || fail "this Python has no venv module; install python3-venv"
            say "installing python3-venv"
            apt_install python3-venv || fail "apt-get could not install python3-venv"
        fi
        say "making .venv"
        "$python" -m venv --clear .venv
    fi
    say "installing $2 into .venv"
    .venv/bin/pip install --quiet --disable-pip-version-check --editable "$1"
    echo "$wanted" >>.venv/rota-stamp
}

has_mariadbd() { PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v mariadbd >/dev/null; }

install_mariadb() {
    if may_apt; then
        say "installing MariaDB"
        if apt_install 'mariadb-server-core mariadb-client-core' mariadb-server && has_mariadbd; then
            return 0
        fi
    fi
    return 1
}

ensure_mariadb() {
    case "${ROTA_TEST_MARIADB:-}" in
    *://*) return ;; # a server that is there already
    *mysql*) return ;; # its image, or an installed mysqld
    esac
    has_mariadbd || .venv/bin/python -m tests.harness.databases || install_mariadb ||
        fail "the tests need MariaDB 10.6 or newer: install mariadb-server, or pull Docker's mariadb:10.11," \
            "or set ROTA_TEST_MARIADB=mysql+pymysql://user:password@host"
}

has_galera() {
    [ -e /usr/lib/galera/libgalera_smm.so ] || [ -e /usr/lib64/galera-4/libgalera_smm.so ] || return 1
    command -v wsrep_sst_rsync >/dev/null && command -v rsync >/dev/null
}

ensure_galera() { # without it the test of a cluster is skipped, and says so
    has_galera && return
    if may_apt; then
        say "installing Galera"
        apt_install 'galera-4 mariadb-server rsync iproute2' && has_galera && return
    fi
    say "no Galera here: the test of a cluster is skipped"
}

ensure_own_mariadb() { # the benchmark starts it with settings of its own
    has_mariadbd || install_mariadb || fail "the benchmark needs MariaDB 10.6 or newer: install mariadb-server"
}

ensure_redis() { # without it the tests of wake-ups by Redis are skipped, and say so
    command -v redis-server >/dev/null && return
    if may_apt; then
        say "installing Redis"
        apt_install redis-server && return
    fi
    say "no Redis here: the tests of wake-ups by Redis are skipped"
}

has_peers_servers() {
    command -v redis-server >/dev/null && command -v npm >/dev/null &&
        ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1
}

ensure_peers_servers() {
    has_peers_servers && return
    if may_apt; then
        say "installing Redis, PostgreSQL and npm for the peers"
        if apt_install 'redis-server redis-tools postgresql npm' && has_peers_servers; then
            return
        fi
    fi
    fail "the peers of the benchmark need Redis, PostgreSQL and npm: install redis-server, postgresql and npm;" \
        "or run Rota's own part, make bench-quick"
}

case "${1:-}" in
run) ensure_venv . Rota ;;
venv) ensure_venv '.[dev]' "Rota and its development tools" ;;
quick | bench)
    ensure_venv '.[dev,bench]' "Rota, its development tools and the benchmark's"
    ensure_own_mariadb
    [ "$1" = quick ] || ensure_peers_servers
    ;;
*)
    ensure_venv '.[dev]' "Rota and its development tools"
    ensure_mariadb
    ensure_redis
    [ "${1:-}" != long ] || ensure_galera
    ;;
esac
