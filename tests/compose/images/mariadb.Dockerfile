# Stands in for mariadb:10.11 on a machine that reaches no image registry: as much of that image's contract as
# Rota's compose file uses (see mariadb-entrypoint.sh).
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN groupadd --system --gid 999 mysql && useradd --system --uid 999 --gid mysql --home /var/lib/mysql mysql \
    && apt-get update \
    && apt-get install -y --no-install-recommends mariadb-server-core mariadb-client-core tzdata \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o mysql -g mysql /var/lib/mysql /run/mysqld
COPY mariadb-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
COPY mariadb-healthcheck.sh /usr/local/bin/healthcheck.sh
VOLUME /var/lib/mysql
EXPOSE 3306
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["mariadbd"]
