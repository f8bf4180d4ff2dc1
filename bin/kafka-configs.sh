#!/bin/sh
# kafka-configs.sh OPTIONS: describe and alter configurations (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" configs "$@"
