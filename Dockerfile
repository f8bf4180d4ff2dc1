# syntax=docker/dockerfile:1
# Two images from one file: `broker` (the default), which holds Python, the wheel and nothing else, and `spark`, which adds Java
# and PySpark for the jobs.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
RUN pip install --no-cache-dir build
COPY . .
RUN python -m build --wheel --outdir /dist

FROM python:3.12-slim-bookworm AS base
COPY requirements/broker.txt /tmp/broker.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/broker.txt && rm /tmp/broker.txt
COPY --from=build /dist/*.whl /tmp/
# pip compiles what it installs. The image comes without the compiled standard library, and the user who runs the broker cannot
# write it.
RUN pip install --no-cache-dir --no-deps /tmp/*.whl && rm /tmp/*.whl \
    && python -m compileall -q -x '/(test|idlelib|lib2to3|tkinter|turtledemo|ensurepip|site-packages)/' /usr/local/lib/python3.* \
    && useradd --system --uid 1000 --create-home odradek \
    && mkdir -p /var/lib/odradek /etc/odradek \
    && chown odradek /var/lib/odradek

FROM base AS spark
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps && rm -rf /var/lib/apt/lists/*
COPY requirements/spark.txt /tmp/spark.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/spark.txt && rm /tmp/spark.txt \
    && mkdir -p /lake /var/cache/odradek && chown odradek /lake /var/cache/odradek
ENV ODRADEK_CACHE=/var/cache/odradek
USER odradek
VOLUME ["/lake", "/var/cache/odradek"]
WORKDIR /lake
ENTRYPOINT ["odradek"]
CMD ["spark-lake", "--help"]

FROM base AS broker
COPY <<'PROPERTIES' /etc/odradek/server.properties
# One broker in a container, when nothing else configures it. INSIDE is for other containers of its network, OUTSIDE for the
# host. KAFKA_* variables take the place of this file, but for log.dirs and metrics.listener. A file of your own is mounted at
# /mnt/shared/config/server.properties.
broker.id=0
listeners=INSIDE://0.0.0.0:9093,OUTSIDE://0.0.0.0:9092
advertised.listeners=INSIDE://broker:9093,OUTSIDE://127.0.0.1:9092
listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT
inter.broker.listener.name=INSIDE
log.dirs=/var/lib/odradek
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
metrics.listener=0.0.0.0:9308
PROPERTIES
COPY --chmod=755 <<'START' /usr/local/bin/start-broker
#!/bin/sh
# start-broker OPTIONS...: start the broker of this image; options are those of `odradek server-start`. Another command is run
# in its place. It is also /etc/kafka/docker/run, as scripts for the image apache/kafka call it.
set -eu
case ${1:-} in '' | -*) ;; *) exec "$@" ;; esac
mounted=/mnt/shared/config/server.properties
[ ! -e "$mounted" ] || set -- "$mounted" "$@"
exec odradek server-start --environment /etc/odradek/server.properties "$@"
START
RUN mkdir -p /etc/kafka/docker && ln -s /usr/local/bin/start-broker /etc/kafka/docker/run
USER odradek
VOLUME /var/lib/odradek
WORKDIR /var/lib/odradek
EXPOSE 9092 9093 9308
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["odradek", "health", "--bootstrap-server", "127.0.0.1:9092"]
ENTRYPOINT ["start-broker"]
