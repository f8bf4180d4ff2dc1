#!/bin/sh
# zookeeper-shell.sh HOST:PORT[/PATH] [COMMAND...]: ZooKeeper's own shell, from the jars that are found (needs Java).
ODRADEK_COMMAND=${ODRADEK_COMMAND:-zookeeper-shell.sh}
export ODRADEK_COMMAND
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" zookeeper-shell "$@"
