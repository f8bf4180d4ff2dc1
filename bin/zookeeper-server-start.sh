#!/bin/sh
# zookeeper-server-start.sh [-daemon] zookeeper.properties
#
# Runs a real ZooKeeper (needs Java) from the jars of $ZOOKEEPER_HOME, of PySpark, or fetched by Maven. In the foreground, or
# with -daemon in the background with its output in $LOG_DIR/zookeeper.out (LOG_DIR: `logs` in the checkout unless set).
set -eu

self=$0
while [ -h "$self" ]; do
  link=$(readlink "$self")
  case $link in /*) self=$link ;; *) self=${self%/*}/$link ;; esac
done
bin=$(cd -P "${self%/*}" && pwd)
ODRADEK_COMMAND=${ODRADEK_COMMAND:-zookeeper-server-start.sh}
export ODRADEK_COMMAND

daemon=
if [ "${1:-}" = -daemon ]; then
  daemon=yes
  shift
fi
if [ $# -ne 1 ]; then
  echo "USAGE: $ODRADEK_COMMAND [-daemon] zookeeper.properties" >&2
  exit 1
fi
[ -n "$daemon" ] || exec sh "$bin/odradek-run" zookeeper-server-start "$@"
LOG_DIR=${LOG_DIR:-$bin/../logs}
mkdir -p "$LOG_DIR"
nohup sh "$bin/odradek-run" zookeeper-server-start "$@" >"$LOG_DIR/zookeeper.out" 2>&1 </dev/null &
