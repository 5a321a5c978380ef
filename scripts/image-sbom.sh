#!/usr/bin/env bash
# Write what an image is made of, as CycloneDX JSON: scripts/image-sbom.sh FILE. IMAGE names the image.
# Packages of the system and of Python are in it; of the node itself, the image's version. Asks no server.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/image-engine.sh
. scripts/image-engine.sh

file=$1
image=${IMAGE:-gpu-failover:latest}
find_engine || {
  echo "image-sbom: $reason" >&2
  exit 2
}
"$DOCKER" image inspect "$image" >/dev/null 2>&1 || {
  echo "image-sbom: there is no image $image here. Build it: make image" >&2
  exit 2
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
version=$("$DOCKER" image inspect --format '{{index .Config.Labels "org.opencontainers.image.version"}}' "$image")
"$DOCKER" save --output "$scratch/image.tar" "$image"
mkdir -p "$(dirname "$file")"
SYFT_CHECK_FOR_APP_UPDATE=false .venv-sbom/bin/syft scan --quiet "docker-archive:$scratch/image.tar" \
  --source-name "${image%:*}" --source-version "$version" --output "cyclonedx-json=$file"
printf '%s: %d components\n' "$file" "$(grep -o '"bom-ref"' "$file" | wc -l)"
