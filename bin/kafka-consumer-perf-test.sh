#!/bin/sh
# kafka-consumer-perf-test.sh OPTIONS: measure consuming (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" consumer-perf-test "$@"
