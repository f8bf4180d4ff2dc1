#!/bin/sh
# kafka-broker-api-versions.sh OPTIONS: the APIs and versions of each broker (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" broker-api-versions "$@"
