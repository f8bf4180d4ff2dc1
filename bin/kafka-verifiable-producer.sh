#!/bin/sh
# kafka-verifiable-producer.sh OPTIONS: produce numbers and report each as JSON (--help tells more).
exec sh "$(dirname "$(readlink -f "$0")")/odradek-run" verifiable-producer "$@"
