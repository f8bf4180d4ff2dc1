#!/bin/sh
# kafka-reassign-partitions.sh OPTIONS: moves partitions to other brokers and log directories (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" reassign-partitions "$@"
