#!/bin/sh
# kafka-server-start.sh [-daemon] (server.properties | --dev) [--override property=value]*
#
# Runs the broker in the foreground, or with -daemon in the background with its output in $LOG_DIR/kafkaServer.out
# (LOG_DIR: `logs` in the checkout unless set). Prepares .venv the first time.
set -eu

self=$0
while [ -h "$self" ]; do
  link=$(readlink "$self")
  case $link in /*) self=$link ;; *) self=${self%/*}/$link ;; esac
done
bin=$(cd -P "${self%/*}" && pwd)

daemon=
if [ "${1:-}" = -daemon ]; then
  daemon=yes
  shift
fi
if [ $# -lt 1 ]; then
  echo "USAGE: ${ODRADEK_COMMAND:-$0} [-daemon] (server.properties | --dev) [--override property=value]*" >&2
  exit 1
fi
LOG_DIR=${LOG_DIR:-$bin/../logs}
export LOG_DIR

[ -n "$daemon" ] || exec sh "$bin/odradek-run" server-start "$@"
mkdir -p "$LOG_DIR"
ODRADEK_DAEMON=1
export ODRADEK_DAEMON
nohup sh "$bin/odradek-run" server-start "$@" >"$LOG_DIR/kafkaServer.out" 2>&1 </dev/null &
