#!/bin/sh
# zookeeper-server-stop.sh: ask the ZooKeeper servers of this machine that this user may signal to stop (SIGNAL, default TERM).
# Exit code 1 and 'No zookeeper server to stop' when there is none.
set -u

pids=$(ps ax -o pid= -o command= | grep ' org\.apache\.zookeeper\.server\.quorum\.QuorumPeerMain' | grep -v grep |
  while read -r pid _; do echo "$pid"; done)
if [ -z "$pids" ]; then
  echo "No zookeeper server to stop"
  exit 1
fi
# shellcheck disable=SC2086
kill -s "${SIGNAL:-TERM}" $pids
