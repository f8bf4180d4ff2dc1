#!/bin/sh
# kafka-dump-log.sh OPTIONS: the contents of log files (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" dump-log "$@"
