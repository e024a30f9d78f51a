#!/bin/bash
# healthcheck.sh --connect --innodb_initialized: the two tests of the official image's script that Rota uses.
set -euo pipefail

connected() { # over TCP: a refused login is an answer too
    (exec 3<>/dev/tcp/127.0.0.1/3306) 2>/dev/null
}

innodb_initialized() {
    local answer
    answer=$(setpriv --reuid=mysql --regid=mysql --clear-groups mariadb --user=mysql --skip-column-names \
        --execute="SELECT 1 FROM information_schema.engines WHERE engine = 'innodb' AND support IN ('YES', 'DEFAULT')")
    [ "$answer" = 1 ]
}

for check in "$@"; do
    case $check in
        --connect) connected ;;
        --innodb_initialized) innodb_initialized ;;
        *)
            echo "healthcheck.sh: unknown check $check" >&2
            exit 2
            ;;
    esac
done
