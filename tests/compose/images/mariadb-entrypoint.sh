#!/bin/bash
# The part of the official MariaDB image's entry point that Rota's compose file relies on: on an empty data directory,
# make MARIADB_DATABASE and MARIADB_USER with MARIADB_PASSWORD and a random root password, without listening on the
# network meanwhile; then become the server, as the user mysql.
set -euo pipefail

datadir=/var/lib/mysql

if [ "$#" -eq 0 ] || [ "${1:0:1}" = "-" ]; then
    set -- mariadbd "$@"
fi

if [ "$(id -u)" = 0 ]; then
    chown mysql:mysql "$datadir" /run/mysqld
    exec setpriv --reuid=mysql --regid=mysql --clear-groups "$0" "$@"
fi

quoted() { # an SQL string literal
    local text=${1//\\/\\\\}
    printf "'%s'" "${text//\'/\\\'}"
}

if [ ! -d "$datadir/mysql" ]; then
    : "${MARIADB_RANDOM_ROOT_PASSWORD:?only a random root password is supported}"
    : "${MARIADB_DATABASE:?}" "${MARIADB_USER:?}" "${MARIADB_PASSWORD:?}"
    root_password=$(head -c 24 /dev/urandom | base64)
    mariadb-install-db --datadir="$datadir" --auth-root-authentication-method=normal --skip-test-db >/dev/null
    "$@" --bootstrap --datadir="$datadir" <<SQL
FLUSH PRIVILEGES;
DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> 'localhost');
FLUSH PRIVILEGES;
ALTER USER 'root'@'localhost' IDENTIFIED BY $(quoted "$root_password");
CREATE DATABASE \`$MARIADB_DATABASE\`;
CREATE USER $(quoted "$MARIADB_USER")@'%' IDENTIFIED BY $(quoted "$MARIADB_PASSWORD");
GRANT ALL ON \`${MARIADB_DATABASE//_/\\_}\`.* TO $(quoted "$MARIADB_USER")@'%';
CREATE USER 'mysql'@'localhost' IDENTIFIED VIA unix_socket;
SQL
fi

exec "$@"
