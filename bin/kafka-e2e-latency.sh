#!/bin/sh
# kafka-e2e-latency.sh BROKERS TOPIC COUNT ACKS SIZE: measure the time from sending a record to reading it (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" e2e-latency "$@"
