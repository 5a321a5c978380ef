#!/usr/bin/env bash
# Build the image of docker/Dockerfile and print its size and layers. See docs/image.md for the arguments:
#   IMAGE, TARGET (runtime or devel), CUDA (11.8, 12.6, 13.0 or a whole version), BASE,
#   LOCAL_BASE (1: Debian packages of this machine's apt; auto: the same, where CUDA's base cannot be had),
#   PYTHON, TORCH, TORCH_INDEX, PIP_INDEX_URL, IMAGE_NETWORK
# More arguments go to `docker build`. The machine's pip settings and certificates are used and not kept in the image.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/image-engine.sh
. scripts/image-engine.sh

image=${IMAGE:-gpu-failover:latest}
target=${TARGET:-runtime}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 700 "$scratch"

find_engine || {
  echo "image: $reason" >&2
  exit 2
}

# What a CUDA version stands for. Ubuntu 22.04 has Python 3.11 beside its own 3.10.
case ${CUDA:=12.6} in
  11.8*) CUDA=11.8.0 cudnn=cudnn8 system=ubuntu22.04 PYTHON=${PYTHON:-python3.11} ;;
  12.6) CUDA=12.6.3 cudnn=cudnn system=ubuntu24.04 ;;
  13.0) CUDA=13.0.1 cudnn=cudnn system=ubuntu24.04 ;;
  *.*.*) cudnn=cudnn system=ubuntu24.04 ;;
  *)
    echo "image: CUDA=$CUDA: give 11.8, 12.6, 13.0, or a whole version as 12.8.1" >&2
    exit 2
    ;;
esac
case $target in
  runtime) kind=runtime ;;
  devel) kind=devel ;;
  *)
    echo "image: TARGET=$target: give runtime or devel" >&2
    exit 2
    ;;
esac

if [ "${LOCAL_BASE:-}" = auto ]; then
  LOCAL_BASE=
  base=${BASE:-nvidia/cuda:$CUDA-$cudnn-$kind-$system}
  if ! "$DOCKER" image inspect "$base" >/dev/null 2>&1 && ! timeout 60 "$DOCKER" manifest inspect "$base" >/dev/null 2>&1; then
    echo "image: $base cannot be had here; a base of Debian packages stands in for it" >&2
    LOCAL_BASE=1
  fi
fi
options=(--build-arg "CUDA=$CUDA" --build-arg "CUDNN=$cudnn-$kind" --build-arg "SYSTEM=$system")
if [ "${LOCAL_BASE:-}" = 1 ]; then
  BASE=gpu-failover-local-base PYTHON=python3 IMAGE_NETWORK=host
  "$DOCKER" image inspect "$BASE" >/dev/null 2>&1 || scripts/local-base.sh "$BASE"
fi
revision=$(git rev-parse HEAD 2>/dev/null) || revision=unknown
if [ -n "$(git status --porcelain -- docker provisioner requirements 2>/dev/null)" ]; then revision+=-modified; fi
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' provisioner/__init__.py)
options+=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for name in BASE PYTHON TORCH TORCH_INDEX PIP_INDEX_URL; do
  if [ -n "${!name:-}" ]; then options+=(--build-arg "$name=${!name}"); fi
done
build_secrets "$scratch"

if ! run_build --file docker/Dockerfile --target "$target" --tag "$image" "${options[@]}" "${secrets[@]}" "$@" .; then
  echo "image: the build failed; the lines above say where. No registry here? LOCAL_BASE=1 tries it without one" >&2
  exit 1
fi

bytes=$("$DOCKER" image inspect --format '{{.Size}}' "$image")
printf '%s: %d MB\n' "$image" $((bytes / 1000000))
"$DOCKER" history --no-trunc --format '{{.Size}}\t{{.CreatedBy}}' "$image" | tac | awk -F '\t' '
  $1 == "0B" { next }
  { sub(/.*\/bin\/sh -c /, "RUN ", $2); gsub(/[ \t]+/, " ", $2); printf "  %8s  %s\n", $1, $2 == "" ? "the base" : substr($2, 1, 100) }'
