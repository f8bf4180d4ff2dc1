#!/bin/sh
# kafka-storage.sh random-uuid|format|info: give log directories their cluster before the first start (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" storage "$@"
