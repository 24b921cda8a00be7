#!/usr/bin/env bash
# Purpose: runs a command in the checkout. What root makes in somebody's checkout (`sudo make demo`) is theirs in
# the end: they could neither use nor remove it.
#   .ci/owned.sh COMMAND...
# Guarantees: the exit status is the command's, and Ctrl-C is for the command alone.
set -euo pipefail
cd "$(dirname "$0")/.."

trap : INT
code=0
"$@" || code=$?
owner=$(stat -c %u:%g .)
if [ "$(id -u)" = 0 ] && [ "${owner%%:*}" != 0 ]; then
    find . -xdev -uid 0 -exec chown -h "$owner" {} + || true
fi
exit "$code"
