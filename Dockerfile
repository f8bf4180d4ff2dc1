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
# Scripts written for Confluent's image source and call these, after they have changed or replaced some of them.
COPY --chmod=755 <<'BASH_CONFIG' /etc/confluent/docker/bash-config
set -o nounset -o errexit
BASH_CONFIG
COPY --chmod=755 <<'CONFIGURE' /etc/confluent/docker/configure
#!/bin/sh
# configure: write what KAFKA_* variables say into the file that the broker and kafka-storage read.
set -eu
odradek server-start --environment /etc/odradek/server.properties --print >/etc/kafka/kafka.properties
CONFIGURE
COPY --chmod=755 <<'ENSURE' /etc/confluent/docker/ensure
#!/bin/sh
# ensure: give the log directories the id of the cluster, unless they have one.
set -eu
[ -z "${CLUSTER_ID:-}" ] || kafka-storage format --ignore-formatted -t "$CLUSTER_ID" -c /etc/kafka/kafka.properties
ENSURE
COPY --chmod=755 <<'LAUNCH' /etc/confluent/docker/launch
#!/bin/sh
# launch: become the broker that `configure` has configured. The directories have the id of their cluster already.
set -eu
unset CLUSTER_ID
exec odradek server-start --environment /etc/odradek/server.properties /etc/kafka/kafka.properties
LAUNCH
COPY --chmod=755 <<'RUN' /etc/confluent/docker/run
#!/bin/sh
set -eu
/etc/confluent/docker/configure
/etc/confluent/docker/ensure
exec /etc/confluent/docker/launch
RUN
COPY --chmod=755 <<'ZOOKEEPER' /usr/local/bin/zookeeper-server-start
#!/bin/sh
# zookeeper-server-start zookeeper.properties: serve a tree as a ZooKeeper; there is no Java in this image.
exec odradek coordination serve "$@"
ZOOKEEPER
# Commands of both images: /opt/kafka/bin/kafka-topics.sh, and kafka-topics.
ENV ODRADEK_PYTHON=/usr/local/bin/python3
RUN scripts=$(python3 -c 'import os, odradek; print(os.path.dirname(odradek.__file__))')/_server/bin \
    && mkdir -p /opt/kafka /etc/kafka/docker /var/lib/zookeeper \
    && chmod 755 "$scripts"/*.sh \
    && ln -s "$scripts" /opt/kafka/bin \
    && for script in "$scripts"/kafka-*.sh; do name=${script##*/} && ln -s "$script" "/usr/local/bin/${name%.sh}"; done \
    && ln -s /usr/local/bin/start-broker /etc/kafka/docker/run \
    && chown -R odradek /etc/kafka /etc/confluent /opt/kafka /var/lib/zookeeper
USER odradek
VOLUME /var/lib/odradek
WORKDIR /var/lib/odradek
EXPOSE 9092 9093 9308
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["odradek", "health", "--bootstrap-server", "127.0.0.1:9092"]
ENTRYPOINT ["start-broker"]
