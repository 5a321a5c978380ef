#!/usr/bin/env bash
# A base image from this machine's own Debian or Ubuntu packages, where no registry can be reached:
# scripts/local-base.sh NAME. It stands in for the CUDA base, and has no CUDA.
#
# The packages come from wherever this machine's apt gets them. Those addresses are not printed and not left in the
# image. DOCKER is the engine's client. Needs root and mmdebstrap.
set -euo pipefail

name=$1
docker=${DOCKER:-docker}

for need in mmdebstrap apt-get; do
  command -v "$need" >/dev/null || {
    echo "local-base: $need is missing. On Debian or Ubuntu: apt-get install --no-install-recommends mmdebstrap" >&2
    exit 2
  }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$(dirname "$0")/apt-sources.sh" >"$scratch/base.sources"
# shellcheck source=/dev/null
suite=$(. /etc/os-release && printf %s "$VERSION_CODENAME")

# The hooks are run by mmdebstrap's shell, with the new root as their $1.
# shellcheck disable=SC2016
if ! mmdebstrap --quiet --variant=minbase \
  --aptopt='Acquire::Check-Valid-Until "false"' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -rf "$1"/etc/apt/sources.list* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/lib/apt/lists/*' \
  --dpkgopt=force-unsafe-io \
  --customize-hook='mkdir -p "$1/etc/apt/sources.list.d" && : >"$1/etc/resolv.conf"' \
  "$suite" "$scratch/base.tar" "$scratch/base.sources" 2>"$scratch/log"; then
  tail -n 20 "$scratch/log" | sed -E 's#[a-z+]+://[^ ]+#<address>#g' >&2
  echo "local-base: mmdebstrap failed; see the lines above" >&2
  exit 1
fi
"$docker" import "$scratch/base.tar" "$name" >/dev/null
