#!/bin/sh
# kafka-producer-perf-test.sh OPTIONS: measure producing (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" producer-perf-test "$@"
