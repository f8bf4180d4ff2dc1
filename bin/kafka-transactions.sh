#!/bin/sh
# kafka-transactions.sh OPTIONS COMMAND: shows transactions, finds and aborts those that hang (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" transactions "$@"
