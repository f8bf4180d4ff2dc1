#!/bin/sh
# kafka-server-stop.sh: asks every broker that this user may signal to shut down cleanly (SIGNAL, default TERM).
# Exit code 1 and 'No kafka server to stop' when there is none.
pids=$(ps ax -o pid= -o command= | grep -E ' -P -m broker( |$)' | grep -v grep | awk '{print $1}')
if [ -z "$pids" ]; then
  echo "No kafka server to stop"
  exit 1
fi
# shellcheck disable=SC2086
kill -s "${SIGNAL:-TERM}" $pids
