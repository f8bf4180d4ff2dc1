#!/bin/sh
# kafka-verifiable-consumer.sh OPTIONS: consume and report what happens as JSON (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" verifiable-consumer "$@"
