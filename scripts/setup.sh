#!/usr/bin/env bash
# Make a virtual environment and install hashed requirements into it: scripts/setup.sh VENV REQUIREMENTS...
#
# Uses uv where it is on PATH. Elsewhere it takes python3's venv and pip, and lets pip fetch the pinned uv first, which
# installs the rest several times faster; where that fails, pip does the work. Needs no root and no writable HOME.
# Whatever index, proxy or certificate the machine has configured for uv and pip stays in force. Words go to stderr.
set -euo pipefail

venv=$1
shift
requirements=()
for file in "$@"; do requirements+=(-r "$file"); done

say() { printf 'setup: %s\n' "$*" >&2; }

# The first Python that really runs (a version manager's shim may be there without its interpreter) and is new enough.
find_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s\n' "$name"
      return
    fi
  done
  say "no Python 3.11 or newer on PATH. On Debian or Ubuntu: apt-get install python3 python3-venv"
  return 1
}

writable() { mkdir -p "$1" 2>/dev/null && [ -w "$1" ]; }

run_uv() {
  local cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/uv}
  local flags=()
  writable "$cache" || flags+=(--no-cache) # uv then keeps its downloads under TMPDIR
  UV_CACHE_DIR=$cache UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} UV_PYTHON_DOWNLOADS=never "$uv" "$@" "${flags[@]}"
}

# Byte code is compiled now: processes that are started with PYTHONDONTWRITEBYTECODE would compile at each start.
install_by_uv() {
  run_uv pip install --python "$venv/bin/python" --quiet --require-hashes --compile-bytecode "${requirements[@]}"
}

# The files name every distribution, so nothing is left to resolve; pip's resolver would refuse to look up an extra
# (`google-api-core[grpc]`) in them.
install_by_pip() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes "${requirements[@]}" >&2
}

works() { [ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' >/dev/null 2>&1; }

if uv=$(command -v uv); then
  if ! works; then
    rm -rf "$venv"
    run_uv venv --quiet --python '>=3.11' "$venv"
  fi
  say "installing into $venv with $uv"
  install_by_uv
  exit
fi

if ! works; then
  rm -rf "$venv"
  python=$(find_python)
  if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "$python has no ensurepip, so it can make no environment. On Debian or Ubuntu: apt-get install python$version-venv"
    exit 2
  fi
  "$python" -m venv "$venv"
fi
uv=$venv/bin/uv
if [ -x "$uv" ] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
  -r requirements/uv.txt >&2; then
  say "installing into $venv with its own uv"
  if install_by_uv; then exit; fi
  say "uv could not do it; pip tries"
else
  say "no uv for this machine; pip installs into $venv, which takes some minutes"
fi
install_by_pip
