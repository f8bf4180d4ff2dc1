#!/bin/sh
# kafka-log-dirs.sh OPTIONS: what lies in which log directory (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" log-dirs "$@"
