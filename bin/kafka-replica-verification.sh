#!/bin/sh
# kafka-replica-verification.sh OPTIONS: compares the records of all replicas (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" replica-verification "$@"
