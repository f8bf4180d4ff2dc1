#!/bin/sh
# kafka-server-stop.sh [--node-id=ID] [--process-role=broker]: ask brokers to shut down cleanly (SIGNAL, default TERM).
#
# All that this user may signal, or the one with that broker.id. With both options the id counts, as in Kafka 4. Every process
# here is a broker, so --process-role=controller finds none. Exit code 1 and 'No kafka server to stop' when there is none.
set -u

usage="USAGE: ${ODRADEK_COMMAND:-$0} [--node-id=ID] [--process-role=ROLE]"
node_id=
role=
for argument; do
  case $argument in
    --node-id=?*) node_id=${argument#*=} ;;
    --process-role=?*) role=${argument#*=} ;;
    -h | --help)
      printf '%s\n\nStop every broker of this machine, or only the one with that id, cleanly.\n' "$usage"
      exit 0
      ;;
    *)
      echo "$argument is not an option of this command" >&2
      echo "$usage" >&2
      exit 1
      ;;
  esac
done

# value FILE KEYS: the last value of one of the KEYS (a regular expression) in a .properties file.
value() {
  sed -n -E "s/^[[:space:]]*($2)[[:space:]]*[=:][[:space:]]*//p" "$1" 2>/dev/null | sed 's/[[:space:]]*$//' | tail -n 1
}

# node_id_of PID COMMAND: broker.id from an override or the file, else the generated one in the first log directory.
node_id_of() {
  arguments=${2#* -m broker }
  override=$(printf '%s\n' "$arguments" | tr ' ' '\n' | sed -n -E 's/^(--override=)?(broker|node)\.id=//p' | tail -n 1)
  [ -z "$override" ] || { echo "$override"; return; }
  file=${arguments%% --override*}
  [ "$file" != --dev ] || { echo 0; return; }
  directory=$(readlink "/proc/$1/cwd" || lsof -a -p "$1" -d cwd -Fn 2>/dev/null | sed -n 's/^n//p')
  case $file in /*) ;; *) file=$directory/$file ;; esac
  configured=$(value "$file" '(broker|node)\.id')
  if [ "${configured:--1}" = -1 ]; then
    log_dir=$(value "$file" 'log\.dirs?')
    log_dir=${log_dir:-/tmp/kafka-logs}
    configured=$(value "${log_dir%%,*}/meta.properties" 'broker\.id')
  fi
  echo "$configured"
}

running=$(ps ax -o pid= -o command= | grep -E ' -P -m broker( |$)' | grep -v grep)
if [ -z "$node_id" ] && [ -n "$role" ] && [ "$role" != broker ]; then
  running=
fi
pids=$(printf '%s\n' "$running" | while read -r pid command; do
  [ -n "$pid" ] || continue
  [ -z "$node_id" ] || [ "$(node_id_of "$pid" "$command")" = "$node_id" ] || continue
  echo "$pid"
done)
if [ -z "$pids" ]; then
  echo "No kafka server to stop${node_id:+ with node.id $node_id}"
  exit 1
fi
# shellcheck disable=SC2086
kill -s "${SIGNAL:-TERM}" $pids
