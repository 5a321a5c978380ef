# shellcheck shell=bash disable=SC2034 # its users read reason and secrets
# Which container engine is there? Sourced by the scripts that need one.
#
# find_engine sets and exports DOCKER (a client that can use BuildKit) and DOCKER_BUILDKIT, or sets `reason` and fails.
# start_engine, where no engine answers, starts one of our own below a directory; stop_engine ends it and leaves nothing.

export DOCKER_BUILDKIT=1
reason=''
engine=''

# Docker 23 and newer builds with a plug-in, and without it only in the old way; 20.10 has BuildKit in itself.
has_buildkit() {
  local version
  "$1" buildx version >/dev/null 2>&1 && return 0
  version=$("$1" version --format '{{.Client.Version}}' 2>/dev/null) || true
  [[ $version =~ ^([0-9]+)\. ]] && [ "${BASH_REMATCH[1]}" -lt 23 ]
}

find_client() {
  local client
  for client in ${DOCKER:+"$DOCKER"} docker /usr/bin/docker; do
    if command -v "$client" >/dev/null && has_buildkit "$client"; then
      export DOCKER=$client
      return 0
    fi
  done
  reason='no Docker with BuildKit on this machine. On Debian: apt-get install --no-install-recommends docker.io; elsewhere: its buildx plug-in'
  return 1
}

find_engine() {
  find_client || return 1
  "$DOCKER" info >/dev/null 2>&1 && return 0
  reason="no container engine answers $DOCKER. Start it, or give yourself the right to use it"
  return 1
}

# start_engine DIRECTORY: no bridge, no firewall rules, nothing outside the directory; containers use the host's network.
start_engine() {
  local directory=$1 daemon=/usr/sbin/dockerd
  find_client || return 1
  if [ "$(id -u)" != 0 ]; then
    reason='no container engine answers, and only root can start one'
    return 1
  fi
  if [ ! -x "$daemon" ]; then
    reason="no container engine answers, and there is no $daemon. On Debian: apt-get install --no-install-recommends docker.io"
    return 1
  fi
  export DOCKER_HOST=unix://$directory/docker.sock IMAGE_NETWORK=host
  # A session of its own: Ctrl-C is for the script, which then ends the engine in order.
  setsid "$daemon" --data-root "$directory/data" --exec-root "$directory/exec" --pidfile "$directory/engine.pid" \
    --host "$DOCKER_HOST" --iptables=false --ip6tables=false --bridge=none --ip-forward=false --ip-masq=false \
    >"$directory/engine.log" 2>&1 </dev/null &
  engine=$!
  for _ in $(seq 150); do
    "$DOCKER" info >/dev/null 2>&1 && return 0
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.2
  done
  reason="an engine of our own does not start: $(tail -n 1 "$directory/engine.log")"
  stop_engine "$directory"
  return 1
}

stop_engine() {
  local directory=$1 mount
  if [ -n "$engine" ]; then
    kill "$engine" 2>/dev/null || true
    wait "$engine" 2>/dev/null || true
    engine=''
  fi
  while read -r _ mount _; do # what an engine leaves when it had to hurry
    case $mount in "$directory"/*) umount "$mount" 2>/dev/null || true ;; esac
  done < <(tac /proc/mounts)
}

# build_secrets DIRECTORY: set `secrets`, the options that hand this machine's pip settings and certificates to a build.
# They are files in that directory. IMAGE_CANARY, a word, is put into each: whoever finds it in an image has found a leak.
build_secrets() {
  local directory=$1 bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} file
  secrets=()
  {
    printf '# %s\n' "${IMAGE_CANARY:-}"
    if command -v python3 >/dev/null; then
      python3 -c 'import configparser, sys
settings = configparser.RawConfigParser(strict=False)
settings.read(sys.argv[1:])
settings.write(sys.stdout)' ${PIP_CONFIG_FILE:+"$PIP_CONFIG_FILE"} /etc/pip.conf "${HOME:-/root}"/{.pip,.config/pip}/pip.conf
    fi
  } >"$directory/pip.conf"
  secrets+=(--secret "id=pipconf,src=$directory/pip.conf")
  if [ -r "$bundle" ]; then
    { printf '# %s\n' "${IMAGE_CANARY:-}" && cat "$bundle"; } >"$directory/ca.crt"
    secrets+=(--secret "id=cabundle,src=$directory/ca.crt")
  fi
  if [ "${LOCAL_BASE:-}" = 1 ]; then
    file=$directory/apt.sources
    { printf '# %s\n' "${IMAGE_CANARY:-}" && scripts/apt-sources.sh; } >"$file"
    secrets+=(--secret "id=aptsources,src=$file")
  fi
}

# run_build ARGUMENTS...: `docker build` that is quiet unless it fails. Addresses of package indexes are not shown.
# IMAGE_NETWORK=host: the build reaches what this machine reaches.
run_build() {
  local log status=0
  log=$(mktemp)
  "$DOCKER" build --progress plain ${IMAGE_NETWORK:+--network "$IMAGE_NETWORK"} "$@" >"$log" 2>&1 || status=$?
  if [ $status != 0 ]; then tail -n 40 "$log" | sed -E 's#[a-z+]+://[^ ]+#<address>#g' >&2; fi
  rm -f "$log"
  return $status
}
