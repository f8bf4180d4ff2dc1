# Sourced by the scripts beside it. ensure_venv VENV LOCK: returns when VENV holds what LOCK says, exits 1 when it cannot.

find_python() {
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "Python 3.11 or newer is needed; none of '${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}' is" >&2
  return 1
}

# The stamp that bin/prepare_venv.py leaves: the interpreter's inode and size, a newline, the lock's text.
venv_is_fresh() {
  [ -x "$1/bin/python" ] && [ -f "$1/odradek.stamp" ] || return 1
  { read -r stamped && cmp -s - "$2"; } <"$1/odradek.stamp" || return 1
  # shellcheck disable=SC2046
  set -- $(LC_ALL=C ls -niL "$1/bin/python")
  [ "$1 $6" = "$stamped" ]
}

ensure_venv() {
  venv_is_fresh "$1" "$2" && return
  python=$(find_python) || exit 1
  "$python" "${root:?}/bin/prepare_venv.py" "$1" "$2" </dev/null || exit 1
}

# ensure_compiled VENV: compiles what changed in the checkout since it was last done. Python does so by itself unless
# PYTHONDONTWRITEBYTECODE is set, as in most container images; then every start would compile every module.
ensure_compiled() {
  [ -n "${PYTHONDONTWRITEBYTECODE:-}" ] && [ -w "$1" ] || return 0
  if [ -f "$1/odradek.compiled" ]; then
    changed=$(cd "${root:?}" && find broker client cluster config environment odradek protocol security storage tools zookeeper \
      -name '*.py' -newer "$1/odradek.compiled" 2>/dev/null) || :
    [ -n "$changed" ] || return 0
  fi
  "$1/bin/python" "$root/bin/prepare_venv.py" --compile "$1" </dev/null || return 0
}
