#!/bin/sh
# kafka-acls.sh OPTIONS: who may do what (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" acls "$@"
