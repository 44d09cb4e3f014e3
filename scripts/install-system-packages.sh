#!/bin/sh
# Install the Debian packages given as arguments where we may, say what to do where we may not. Quick if all are there.
set -eu
missing=""
for package in "$@"; do
    status=$(dpkg-query --show --showformat '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
else
    echo "These system packages are missing:$missing. Install them first: sudo apt-get install$missing" >&2
    exit 1
fi
