#!/bin/sh
# kafka-get-offsets.sh OPTIONS: offsets of partitions (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" get-offsets "$@"
