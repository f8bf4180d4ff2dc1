#!/bin/sh
# kafka-cluster.sh OPTIONS: show the id of a cluster (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" cluster "$@"
