#!/bin/sh
# kafka-server-stop.sh [--node-id=ID] [--process-role=broker]: ask brokers to shut down cleanly (SIGNAL, default TERM).
#
# All that this user may signal, or the one with that broker.id. With both options the id counts, as in Kafka 4. Every process
# here is a broker, so --process-role=controller finds none. Exit code 1 and 'No kafka server to stop' when there is none.
# `odradek server-stop` asks for --node-id or --all when several brokers run.
set -u

usage="USAGE: ${ODRADEK_COMMAND:-$0} [--node-id=ID | --all] [--process-role=ROLE]"
node_id=
role=
all=yes
case ${ODRADEK_COMMAND:-} in 'odradek '*) all= ;; esac
for argument; do
  case $argument in
    --node-id=?*) node_id=${argument#*=} ;;
    --process-role=?*) role=${argument#*=} ;;
    --all) all=yes ;;
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

# setting PID COMMAND KEYS: the value of one of the KEYS in an override, else in the file that the broker was started with.
setting() {
  arguments=${2#* -m broker }
  override=$(printf '%s\n' "$arguments" | tr ' ' '\n' | sed -n -E "s/^(--override=)?($3)=//p" | tail -n 1)
  [ -z "$override" ] || { echo "$override"; return; }
  file=${arguments%% --override*}
  file=${file#--environment }
  file=${file%% --environment *}
  case $file in
    /*) ;;
    *) file=$(readlink "/proc/$1/cwd" || lsof -a -p "$1" -d cwd -Fn 2>/dev/null | sed -n 's/^n//p')/$file ;;
  esac
  value "$file" "$3"
}

# node_id_of PID COMMAND: the configured broker.id, else the generated one in the first log directory.
node_id_of() {
  configured=$(setting "$1" "$2" '(broker|node)\.id')
  case $2 in *' -m broker --dev'*) configured=${configured:-0} ;; esac
  if [ "${configured:--1}" = -1 ]; then
    log_dirs=$(setting "$1" "$2" 'log\.dirs?')
    log_dirs=${log_dirs:-/tmp/kafka-logs}
    configured=$(value "${log_dirs%%,*}/meta.properties" 'broker\.id')
  fi
  echo "$configured"
}

# place_of PID COMMAND: the directories and listeners of a broker. One with --dev chooses both itself.
place_of() {
  log_dirs=$(setting "$1" "$2" 'log\.dirs?')
  listeners=$(setting "$1" "$2" listeners)
  case $2 in
    *' -m broker --dev'*) echo "--dev${listeners:+, $listeners}" ;;
    *) echo "${log_dirs:-/tmp/kafka-logs}, ${listeners:-PLAINTEXT://:9092}" ;;
  esac
}

running=$(ps ax -o pid= -o command= | grep -E ' -P -m broker( |$)' | grep -v grep)
if [ -z "$node_id" ] && [ -n "$role" ] && [ "$role" != broker ]; then
  running=
fi
# A line for each broker: its pid, then its description.
found=$(printf '%s\n' "$running" | while read -r pid command; do
  [ -n "$pid" ] || continue
  id=$(node_id_of "$pid" "$command")
  [ -z "$node_id" ] || [ "$id" = "$node_id" ] || continue
  echo "$pid broker ${id:-without an id} ($(place_of "$pid" "$command"), pid $pid)"
done)
if [ -z "$found" ]; then
  echo "No kafka server to stop${node_id:+ with node.id $node_id}"
  exit 1
fi
if [ -z "$all$node_id" ] && [ "$(printf '%s\n' "$found" | wc -l)" -gt 1 ]; then
  {
    echo 'Several brokers run here; name one by --node-id=ID, or stop all of them with --all:'
    printf '%s\n' "$found" | sed 's/^[0-9]* /  /'
  } >&2
  exit 1
fi
printf '%s\n' "$found" | sed 's/^[0-9]* /Stopping /'
# shellcheck disable=SC2046
kill -s "${SIGNAL:-TERM}" $(printf '%s\n' "$found" | cut -d ' ' -f 1)
