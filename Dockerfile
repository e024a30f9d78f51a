# One image for every Rota process: `docker run rota scheduler`, `rota worker --app jobs:app`, `rota migrate`, …
# See docs/containers.md.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/rota
WORKDIR /src
# The dependencies alone first: this layer lasts until they change.
COPY pyproject.toml ./
RUN python3 -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))" \
        > /tmp/requirements.txt \
    && /opt/rota/bin/pip install --requirement /tmp/requirements.txt
COPY . .
RUN /opt/rota/bin/pip wheel --no-deps --wheel-dir /tmp/wheel . \
    && /opt/rota/bin/pip install --no-deps /tmp/wheel/rota-*.whl

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 rota \
    && useradd --uid 10001 --gid rota --no-create-home --home-dir /tmp --shell /usr/sbin/nologin rota \
    && mkdir /app
COPY --from=build /opt/rota /opt/rota
# /app is where an application's code is mounted or copied: `--app jobs:app` is /app/jobs.py.
ENV PATH=/opt/rota/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 ROTA_HEALTH_FILE=/tmp/rota.beat
WORKDIR /app
USER rota
STOPSIGNAL SIGTERM
# Whether the scheduler or worker of this container has beaten lately, not merely whether it exists.
HEALTHCHECK --interval=15s --timeout=30s --start-period=30s --retries=3 CMD ["rota", "health"]
ENTRYPOINT ["rota"]
CMD ["--help"]
