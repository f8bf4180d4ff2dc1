#!/bin/sh
# kafka-delegation-tokens.sh OPTIONS: make, renew, expire and show delegation tokens (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" delegation-tokens "$@"
