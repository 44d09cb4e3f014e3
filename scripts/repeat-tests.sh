#!/bin/sh
# Run a command of tests N times beside two busy loops, and list what failed: scripts/repeat-tests.sh N COMMAND…
set -u
n=$1
shift
logs=$(mktemp -d "${TMPDIR:-/tmp}/repeat-tests-XXXXXX")
busy=""
trap 'kill $busy 2>/dev/null' EXIT
trap 'exit 130' INT TERM
for _ in 1 2; do
    sh -c 'while :; do :; done' &
    busy="$busy $!"
done

n_failed=0
for run in $(seq "$n"); do
    began=$(date +%s)
    if "$@" >"$logs/$run" 2>&1; then outcome=passed; else outcome=FAILED n_failed=$((n_failed + 1)); fi
    echo "run $run of $n: $outcome after $(($(date +%s) - began)) s; $(tail -n 1 "$logs/$run")"
    grep -E '^(FAILED|ERROR) ' "$logs/$run"
done
echo "$n_failed of $n runs failed; their output is in $logs"
[ "$n_failed" = 0 ]
