#!/bin/sh
# kafka-leader-election.sh OPTIONS: elects leaders of partitions (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" leader-election "$@"
