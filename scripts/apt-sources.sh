#!/usr/bin/env bash
# Print where this machine gets its Debian or Ubuntu packages, as a deb822 `.sources` file. Third parties are left out.
set -euo pipefail

# shellcheck source=/dev/null
origin=$(. /etc/os-release && printf %s "${ID^}")
# shellcheck disable=SC2016 # apt fills them in
found=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' "Origin: $origin" 'Created-By: Packages' | sort -u)
if [ -z "$found" ]; then
  echo "apt-sources: apt knows no package list of $origin. Run: apt-get update" >&2
  exit 2
fi
while read -r uri suite component; do
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n\n' "$uri" "$suite" "$component" \
    "/usr/share/keyrings/${origin,}-archive-keyring.gpg"
done <<<"$found"
