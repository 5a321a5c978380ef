#!/usr/bin/env bash
# Build the image and a training image on top of it, and run the cases of tests/image on them.
#
# Where no engine answers, root starts one of its own in a temporary directory, and takes it away again at the end, also
# after a failure or Ctrl-C. Where there can be none, the cases are skipped with the reason; REQUIRE=1 makes that an error.
# LOCAL_BASE is `auto` unless it is set: see scripts/image.sh. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/image-engine.sh
. scripts/image-engine.sh

say() { printf 'image-test: %s\n' "$*" >&2; }

scratch=$(mktemp -d)
chmod 700 "$scratch"
child=''
label=gpu-failover-test=$(basename "$scratch")

# shellcheck disable=SC2329 # the traps call it
clean_up() {
  trap '' INT TERM
  if [ -n "$child" ]; then
    kill -TERM -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  if [ -n "$engine" ]; then
    stop_engine "$scratch"
  elif [ -n "${DOCKER:-}" ]; then
    "$DOCKER" ps --all --quiet --filter "label=$label" 2>/dev/null | xargs -r "$DOCKER" rm --force >/dev/null 2>&1 || true
  fi
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run COMMAND...: in a process group of its own, so that a signal to this script ends all of it, and at once.
run() {
  local status=0
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  wait "$child" || status=$?
  child=''
  return $status
}

# timed WORDS COMMAND...: run it and say how long it took.
timed() {
  local start=$SECONDS what=$1 status
  shift
  run "$@" && status=0 || status=$?
  say "$what: $((SECONDS - start)) s"
  return "$status"
}

if ! find_engine; then
  if start_engine "$scratch"; then
    say 'no engine answers here; one of our own runs for this test'
  elif [ -n "${REQUIRE:-}" ]; then
    say "$reason"
    exit 2
  else
    say "skipped: $reason"
    IMAGE_TEST_SKIP=$reason run .venv/bin/pytest tests/image -m image "$@"
    exit
  fi
fi

export LOCAL_BASE=${LOCAL_BASE-auto} IMAGE_NETWORK=host # the S3 server of the cases is on this machine
export IMAGE_CANARY=canary-$RANDOM$RANDOM$RANDOM
export IMAGE_TEST_IMAGE=gpu-failover-test:latest IMAGE_TEST_TRAINING=gpu-failover-test:training IMAGE_TEST_LABEL=$label
IMAGE=$IMAGE_TEST_IMAGE timed 'the image' scripts/image.sh
build_secrets "$scratch"
timed 'the training image' run_build --file docker/training.Dockerfile --tag "$IMAGE_TEST_TRAINING" \
  --build-arg "IMAGE=$IMAGE_TEST_IMAGE" "${secrets[@]}" examples
if [ -x .venv-sbom/bin/syft ]; then
  export IMAGE_TEST_BOM=$scratch/bom.json
  IMAGE=$IMAGE_TEST_IMAGE timed 'the bill of materials' scripts/image-sbom.sh "$IMAGE_TEST_BOM"
fi
timed 'the cases' .venv/bin/pytest tests/image -m image "$@"
