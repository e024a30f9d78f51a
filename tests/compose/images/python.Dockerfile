# Stands in for python:3.11-slim on a machine that reaches no image registry.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY pip.conf /etc/pip.conf
CMD ["python3"]
