#!/bin/sh
# kafka-consumer-groups.sh OPTIONS: list, describe, delete and reset consumer groups (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" consumer-groups "$@"
