#!/bin/sh
# kafka-console-producer.sh OPTIONS: lines of standard input become records (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" console-producer "$@"
