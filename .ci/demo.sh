#!/usr/bin/env bash
# Purpose: the main job, shown twice: the sample set compiled from nothing, one worker cache a worker, and again
# with the cache that the first run saved. On RADV's real compiler on null hardware, or, where the machine has no
# driver, on the simulated device.
# Guarantees: writes below build/demo only, which is emptied first.
set -euo pipefail
cd "$(dirname "$0")/.."

bash .ci/setup.sh demo

device=radv:navi21
work=$PWD/build/demo
rm -rf "$work"
mkdir -p "$work/cache"
mkdir -m 700 "$work/runtime"
# The loader and Mesa complain on stderr where there is none.
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$work/runtime}

if [ -e build/no-driver ]; then
    device=simulated # set-up has said why
elif ! .venv/bin/orchestrator devices --device "$device" >"$work/open.log" 2>&1; then
    echo "demo: $device cannot be opened ($(grep -m 1 '^error' "$work/open.log")); the simulated device takes its place"
    device=simulated
fi

compile() {
    local command=(orchestrator compile sample --device "$device" --mode per-worker --cache-dir build/demo/cache)
    printf '\n$ %s\n' "${command[*]}"
    ".venv/bin/${command[0]}" "${command[@]:1}"
}

echo "demo: first run, nothing cached"
compile
echo
echo "demo: second run, with the cache that the first one saved"
compile
