#!/bin/sh
# Debian ships Python without its venv module: install it where we may, say what to do where we may not.
set -eu
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q
    apt-get install -q -y python3-venv
else
    echo "Python's venv module is missing. Install it first: sudo apt-get install python3-venv" >&2
    exit 1
fi
