# shellcheck shell=bash disable=SC2034,SC2154
# The second part of the start script. It comes with the start object, which has room for it: user data have not.
# From the first part: FAILOVER_RUN, PULL_PATIENCE, MASK, say, finish, get, transfer, is_python.

# A start script of an earlier release knows the time of day alone.
declare -F up >/dev/null || up() { date +%s; }

said() { sed -n "s/^$1 //p" "$FAILOVER_RUN/orders"; }

WHEELS='
import concurrent.futures, hashlib, json, os, shutil, sys, tempfile, time, zipfile
from urllib.request import urlopen

RUN, target = os.environ["FAILOVER_RUN"], sys.argv[1]

def end(text, code=1):
    sys.stderr.write("failover: %s\n" % text)
    sys.exit(code)

def wheel(item):
    begun, damaged = time.time(), 0
    while True:
        try:
            with urlopen(item["url"], timeout=30) as answer:
                data = answer.read()
            if hashlib.sha256(data).hexdigest() == item["sha256"]:
                path = os.path.join(draft, os.path.basename(item["name"]))
                with open(path, "wb") as file:
                    file.write(data)
                return path
            damaged += 1
            if damaged == 3:
                end("%s does not match its hash" % item["name"])
        except Exception as error:  # whatever the network does is worth another try
            if time.time() - begun > 120:
                end("%s cannot be fetched: %s" % (item["name"], type(error).__name__))
            time.sleep(2)

def unpack(path):
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            parts = member.filename.split("/")
            if parts[0].endswith(".data"):
                if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            if member.is_dir() or ".." in parts or member.filename.startswith("/"):
                continue
            place = os.path.join(draft, *parts)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with archive.open(member) as source, open(place, "wb") as file:
                shutil.copyfileobj(source, file)
    os.unlink(path)

with open(os.path.join(RUN, "bootstrap.json")) as file:
    items = json.load(file)["runtime"]
try:
    draft = tempfile.mkdtemp(dir=RUN)
    pip = wheel([item for item in items if item["name"].startswith("pip-")][0])
    sys.path.insert(0, pip)
    from pip._vendor.packaging.tags import sys_tags
    from pip._vendor.packaging.utils import parse_wheel_filename
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    best, names = {}, set()
    for item in items:
        name, _, _, tags = parse_wheel_filename(item["name"])
        if name == "pip":
            continue
        names.add(name)
        fits = [ranks[tag] for tag in tags if tag in ranks]
        if fits and (name not in best or min(fits) < best[name][0]):
            best[name] = (min(fits), item)
    if names - set(best):
        end("no wheel of %s fits %s" % (", ".join(sorted(names - set(best))), sys.executable), 3)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda fit: wheel(fit[1]), best.values()))
    for path in paths:
        unpack(path)
    os.unlink(pip)
    os.rename(draft, target)
except OSError as error:
    end("the disk of %s takes nothing: %s" % (RUN, error.strerror))
'

try_python() { # PYTHON: unpack our wheels for it; sets NODE_PYTHON and RUNTIME
  is_python "$1" '(3, 11)' || return 1
  RUNTIME="$FAILOVER_RUN/wheels-$("$1" -E -s -c 'import sys; print(sys.implementation.cache_tag)')" || return 1
  [ -d "$RUNTIME" ] || "$1" -E -s -c "$WHEELS" "$RUNTIME"
  case $? in
    0) NODE_PYTHON=$1 ;;
    3) return 1 ;;
    *) finish 75 ;;
  esac
}

fetch_bundle() { # the node's own Python, out of the store; sets WHY
  [ ! -d "$FAILOVER_RUN/runtime" ] || return 0
  local tar="$FAILOVER_RUN/runtime.tar.gz" draft="$FAILOVER_RUN/unpacking"
  if [ -z "$(said bundle-url)" ]; then
    WHY="there is no Python 3.11 or newer here, and the store holds no runtime ($(said no-bundle))"
    WHY=${WHY% ()}
    return 1
  fi
  WHY="the node's runtime cannot be fetched"
  get "$(said bundle-url)" "$tar" "the node's runtime" 300 || return 1
  if [ "$(sha256sum <"$tar" | cut -c 1-64)" != "$(said bundle-sha256)" ]; then
    WHY="the node's runtime does not match its hash"
    return 1
  fi
  WHY="the node's runtime cannot be unpacked"
  rm -rf "$draft" && mkdir "$draft" && tar -xzof "$tar" -C "$draft" && mv "$draft/runtime" "$FAILOVER_RUN/runtime" && rm "$tar"
}

bundle() { # sets NODE_PYTHON and RUNTIME, or WHY
  fetch_bundle || return 1
  NODE_PYTHON="$FAILOVER_RUN/runtime/python" RUNTIME="$FAILOVER_RUN/runtime/node"
  # Threads too: old container engines forbid the call (clone3) by which a newer glibc makes them.
  if ! WHY=$("$NODE_PYTHON" -E -s -c 'from threading import Thread; Thread(target=int).start()' 2>&1); then
    WHY="the node's runtime does not start here: $(printf '%s\n' "$WHY" | tail -n 1)"
    return 1
  fi
}

knows_authorities() { # say whether certificates can be checked here: the bundle brings what is needed, wheels do not
  local place
  for place in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem \
    /etc/pki/tls/cacert.pem /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/ssl/cert.pem \
    "${SSL_CERT_FILE:-}" "${SSL_CERT_DIR:-}"; do
    if [ -e "$place" ]; then return 0; fi
  done
  return 1
}

node_python() { # sets NODE_PYTHON and RUNTIME, or WHY
  if [ "$(said runtime)" != bundle ] && { knows_authorities || [ -z "$(said bundle-url)" ]; }; then
    for python in python3 python3.13 python3.12 python3.11 python3.14 python; do
      if try_python "$python"; then return 0; fi
    done
  fi
  bundle
}

node() { # ARGUMENTS...: run the node to its end and set CODE
  # -E -s and the working directory keep the training's Python settings away from the node, and ours from the training.
  (umask "$MASK" && cd "$RUNTIME" && exec "$NODE_PYTHON" -E -s -m provisioner.node --bootstrap "$FAILOVER_RUN/bootstrap.json" \
    --directory "$FAILOVER_RUN/node" "$@") &
  wait_for $!
}

wait_for() { # PROCESS: pass SIGTERM on, wait for its real end and set CODE
  # shellcheck disable=SC2064 # this process, not the next one
  trap "kill -TERM $1 2>/dev/null" TERM INT
  wait "$1"
  CODE=$?
  while kill -0 "$1" 2>/dev/null; do
    wait "$1"
    CODE=$?
  done
  trap - TERM INT
}

last_word() { # REASON [CAUSE]: what the node would write, where none can run. It replaces nothing that is there.
  local plain
  if [ -z "$(said end-url)" ]; then return; fi
  plain=$(printf %s "$1" | tr '"\\\n' "'' " | tr -cd '[:print:]' | cut -c 1-500)
  printf '{"phase": "ended", "time": %s, "end": {"reason": "%s", "exit_code": 75, "cause": "%s"}}' \
    "$(date +%s)" "$plain" "${2:-machine}" >"$FAILOVER_RUN/end.json"
  if [ -e "$FAILOVER_RUN/pull.json" ] && ! node_was_here; then
    put "$(said end-url)" "$FAILOVER_RUN/end.json" # what is there is our own word
    return
  fi
  transfer "$(said end-url)" "$FAILOVER_RUN/end.json" 'If-None-Match: *'
  # Some stores know no such condition.
  case $STATUS in 400 | 501) put "$(said end-url)" "$FAILOVER_RUN/end.json" ;; esac
}

put() { # URL FILE: in the place of what is there
  local plain
  case $1 in
    file://*)
      plain=$(printf '%b' "$(printf %s "${1#file://}" | sed 's/%/\\x/g')")
      mkdir -p "${plain%/*}" && cp "$2" "$plain"
      ;;
    *) transfer "$1" "$2" 'Accept: */*' ;;
  esac
}

node_was_here() { [ -e "$FAILOVER_RUN/node/log.txt" ]; }

layers() { # PATTERN: how many layers docker has told this of
  sed -nE "s/^([0-9a-f]+): ($1)\$/\1/p" "$FAILOVER_RUN/pulled.txt" 2>/dev/null | sort -u | wc -l
}

tell_pull() { # in a process group of its own: the heartbeat while there is no node to write one
  local pause=2
  while sleep "$pause" && kill -0 $$ 2>/dev/null; do
    printf '{"phase": "pulling", "time": %s, "image": {"layers": %s, "of": %s}}' "$(date +%s)" \
      "$(layers 'Pull complete|Already exists')" "$(layers 'Pulling fs layer|Already exists')" >"$FAILOVER_RUN/pull.json"
    put "$(said end-url)" "$FAILOVER_RUN/pull.json"
    pause=10
  done
}

give_up() { # CAUSE REASON: tell the controller why this machine cannot, by the node's own way where it can run
  say "$2"
  if node_python; then node --give-up "$2" --cause "$1"; else last_word "$2" "$1"; fi
  finish 75
}

NO_IMAGE='manifest unknown|not found|no such manifest|does not exist|invalid reference|access (is )?denied|unauthorized'
NO_IMAGE="$NO_IMAGE|authentication required|no basic auth"
OLD_DRIVER='unsatisfied condition: (cuda|driver)|driver version is insufficient'

cause() { # WORD PATTERN LINE: what the engine's words mean for the next machine
  if grep -qEi "$2" <<<"$3"; then echo "$1"; else echo machine; fi
}

stream() { # URL: to standard output
  case $1 in
    file://*) cat "$(printf '%b' "$(printf %s "${1#file://}" | sed 's/%/\\x/g')")" ;;
    *)
      if command -v curl >/dev/null; then
        printf 'url = "%s"\n' "$1" | curl -sfL --connect-timeout 30 --speed-limit 1000 --speed-time 60 -K -
      else
        printf '%s\n' "$1" | wget -q -O - -i -
      fi
      ;;
  esac
}

load() { # sets IMAGE to what came out of the store
  IMAGE=$(cat "$FAILOVER_RUN/loaded" 2>/dev/null)
  if [ -n "$IMAGE" ] && docker image inspect "$IMAGE" >/dev/null 2>&1; then return; fi
  (set -o pipefail && stream "$(said archive)" 2>/dev/null | timeout "$PULL_PATIENCE" docker load -q) \
    >"$FAILOVER_RUN/docker.out" 2>"$FAILOVER_RUN/docker.txt" || return
  IMAGE=$(sed -n 's/^Loaded image[^:]*: //p' "$FAILOVER_RUN/docker.out" | tail -n 1)
  printf '%s\n' "$IMAGE" >"$FAILOVER_RUN/loaded"
}

log_in() { # the password reaches docker by its standard input, and what docker keeps of it goes after the pull
  local registry user
  registry=$(said login) user=$(said login-user)
  if [ -z "$registry" ]; then return; fi
  DOCKER_CONFIG=$(mktemp -d "$FAILOVER_RUN/docker.XXXXXX")
  export DOCKER_CONFIG
  trap 'rm -rf "$DOCKER_CONFIG"' EXIT
  said login-password | tr -d '\n' |
    timeout 60 docker login --username "$user" --password-stdin "$registry" >/dev/null 2>"$FAILOVER_RUN/docker.txt"
}

pull() { # in a process of its own: `image` gets the name of what was pulled. 124: no time left
  local candidates name begun left share code=1
  rm -f "$FAILOVER_RUN/image"
  if [ -n "$(said archive)" ]; then
    load || return
    printf '%s\n' "$IMAGE" >"$FAILOVER_RUN/image"
    return
  fi
  log_in || say "the registry refuses the login: $(tail -n 1 "$FAILOVER_RUN/docker.txt")"
  mapfile -t candidates <<<"$(said pull)"
  begun=$(up) left=${#candidates[@]}
  for name in "${candidates[@]}"; do
    # The time that is left is shared by those that are left.
    share=$(((PULL_PATIENCE - $(up) + begun) / left))
    timeout $((share > 1 ? share : 1)) docker pull "$name" >"$FAILOVER_RUN/pulled.txt" 2>"$FAILOVER_RUN/docker.txt"
    code=$?
    if [ "$code" = 0 ] || docker image inspect "$name" >/dev/null 2>&1; then
      printf '%s\n' "$name" >"$FAILOVER_RUN/image"
      return
    fi
    left=$((left - 1))
  done
  return "$code"
}

nccl() { # what NCCL gets wrong by itself; what is set already stays
  local interface
  interface=$(sed -n 's/^\([^[:space:]]*\)[[:space:]]*00000000[[:space:]].*/\1/p' /proc/net/route 2>/dev/null | head -n 1)
  if [ -n "$interface" ]; then export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-=$interface}"; fi
  if ! compgen -G '/dev/infiniband/uverbs*' >/dev/null; then
    export NCCL_IB_DISABLE="${NCCL_IB_DISABLE:-1}"
    return
  fi
  export NCCL_IB_TIMEOUT="${NCCL_IB_TIMEOUT:-22}"
  if grep -qs Ethernet /sys/class/infiniband/*/ports/*/link_layer; then export NCCL_IB_GID_INDEX="${NCCL_IB_GID_INDEX:-3}"; fi
}

container() { # IMAGE: run this script in it and set CODE
  local name files options
  name="failover-$(basename "$FAILOVER_RUN")"
  docker rm -f "$name" >/dev/null 2>&1
  options=(--rm --init --restart no --name "$name" --network host --user 0:0 --stop-timeout 110 --entrypoint bash
    --volume "$FAILOVER_RUN:/run/failover" --env FAILOVER_IN_CONTAINER=1 --env FAILOVER_HOME=/run/failover
    --env FAILOVER_RUN=/run/failover --env "FAILOVER_DEADLINE_TS=$FAILOVER_DEADLINE_TS"
    --env "FAILOVER_DEADLINE_UP=${FAILOVER_DEADLINE_UP:-}"
    # Data loaders and NCCL talk through /dev/shm: half of the memory, as the machine's own has. Its pages count when used.
    --shm-size "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo | { read -r kb && echo $((kb / 2))k; })")
  if [ -e /dev/nvidiactl ] || command -v nvidia-smi >/dev/null; then options+=(--gpus all); fi
  if [ -d /dev/infiniband ]; then options+=(--device /dev/infiniband); fi
  # An engine that may not raise its own limits fails with "error setting rlimit": ask for no more than the host has.
  if [ "$(ulimit -Hl)" = unlimited ]; then options+=(--ulimit memlock=-1:-1); fi
  files=$(ulimit -Hn)
  if [ "$files" = unlimited ] || [ "$files" -gt 1048576 ]; then files=1048576; fi
  options+=(--ulimit "nofile=$files:$files")
  if [ "$(said read-only)" = yes ]; then
    mkdir -p "$FAILOVER_RUN/home"
    options+=(--read-only --tmpfs "/tmp:exec,mode=1777" --env HOME=/run/failover/home)
  fi
  for name in NCCL_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT; do
    if [ -n "${!name:-}" ]; then options+=(--env "$name"); fi
  done
  docker run "${options[@]}" "$1" /run/failover/start.sh 2>"$FAILOVER_RUN/docker.txt" &
  wait_for $!
  cat "$FAILOVER_RUN/docker.txt" >&2
}

prefetch() { # in a process of its own: what the node in the container will ask for, to where it looks
  if ! bundle; then
    say "nothing is fetched before the image is here: $WHY"
    return
  fi
  umask "$MASK" && cd "$RUNTIME" && exec "$NODE_PYTHON" -E -s -m provisioner.node --prefetch \
    --bootstrap "$FAILOVER_RUN/bootstrap.json" --directory "$FAILOVER_RUN/node"
}

end_prefetch() { # PROCESS: gone, before the node begins. What it has brought stays.
  local signal
  for signal in TERM KILL; do
    kill "-$signal" "$1" 2>/dev/null
    for _ in $(seq 30); do
      if ! kill -0 "$1" 2>/dev/null; then return; fi
      sleep 0.1
    done
  done
}

in_container() { # IMAGE
  local code line puller fetcher='' teller='' begun
  begun=$(up)
  pull &
  puller=$!
  if [ -n "$(said end-url)" ] && ! node_was_here; then
    set -m
    tell_pull &
    teller=$!
    set +m
    disown "$teller"
  fi
  # Meanwhile the node's Python comes, should the image have none: it may have no curl either.
  if [ "$(said runtime)" != installed ] && [ -n "$(said bundle-url)" ]; then
    if ! fetch_bundle; then
      say "$WHY"
    elif kill -0 "$puller" 2>/dev/null; then
      prefetch &
      fetcher=$!
      disown "$fetcher" # its end is no news
    fi
  fi
  wait "$puller"
  code=$?
  if [ -n "$fetcher" ]; then
    end_prefetch "$fetcher"
    if [ ! -s "$FAILOVER_RUN/image" ] && grep -qs 'no space left' "$FAILOVER_RUN/docker.txt"; then
      say "no room for the image: what was fetched before it is removed"
      rm -rf "$FAILOVER_RUN/node/runs/prefetched"
      (pull)
      code=$?
    fi
  fi
  # With all that it has begun: what it writes must not come after what is said from here on.
  if [ -n "$teller" ]; then kill -KILL -- "-$teller" 2>/dev/null; fi
  if [ -s "$FAILOVER_RUN/image" ]; then say "the image is here after $(($(up) - begun)) s"; fi
  sed -i '/^login-password /d' "$FAILOVER_RUN/orders" # the training reads this directory, and needs no registry
  line=$(tail -n 1 "$FAILOVER_RUN/docker.txt" 2>/dev/null)
  if [ "$code" = 124 ]; then give_up machine "the image $1 was not pulled within $PULL_PATIENCE s"; fi
  if [ ! -s "$FAILOVER_RUN/image" ]; then
    give_up "$(cause no_image "$NO_IMAGE" "$line")" "the image $1 cannot be pulled: ${line:-no reason was given}"
  fi
  container "$(cat "$FAILOVER_RUN/image")"
  line=$(tail -n 1 "$FAILOVER_RUN/docker.txt")
  case $CODE in
    125 | 126 | 127)
      give_up "$(cause old_driver "$OLD_DRIVER" "$line")" "the container of $1 cannot be started (code $CODE): $line"
      ;;
  esac
  finish "$CODE"
}

nccl
if [ -z "${FAILOVER_IN_CONTAINER:-}" ] && [ -n "$(said image)" ]; then
  if command -v docker >/dev/null; then in_container "$(said image)"; fi
  say "there is no docker here: the command runs without $(said image)"
fi
if ! node_python; then
  say "$WHY"
  last_word "$WHY"
  finish 75
fi
node
finish "$CODE"
