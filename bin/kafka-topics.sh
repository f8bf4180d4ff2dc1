#!/bin/sh
# kafka-topics.sh OPTIONS: create, list, describe, grow and delete topics (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" topics "$@"
