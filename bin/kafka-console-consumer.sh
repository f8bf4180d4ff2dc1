#!/bin/sh
# kafka-console-consumer.sh OPTIONS: records of topics become lines on standard output (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" console-consumer "$@"
