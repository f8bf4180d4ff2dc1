#!/bin/sh
# kafka-delete-records.sh OPTIONS: delete records below given offsets (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" delete-records "$@"
