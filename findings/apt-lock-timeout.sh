#!/usr/bin/env bash
# apt 2.6.1: DPkg::Lock::Timeout doesn't make `apt-get update` wait; another apt's lock on the lists ends it at once.
#
# Expected: with DPkg::Lock::Timeout=N apt-get waits up to N seconds for what another apt holds, as it does where that one installs.
# A program that sets a machine up runs `update` first, just when a cloud image updates itself.
# Seen, apt 2.6.1 (Debian 12), the lock held for 6 s, N = 30:
#   apt-get update: exit status 100 within a second: E: Could not get lock lists/lock. It is held by process PID (python3)
#   apt-get update, once the lock is free: exit status 0
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -qq apt=2.6.1 libapt-pkg6.0=2.6.1 >/dev/null 2>&1 && for file in *.deb; do dpkg-deb -x "$file" apt; done) ||
    { echo "apt 2.6.1 can't be fetched from Debian 12" >&2; exit 77; }
library=$(dirname "$(find "$work/apt/usr/lib" -name 'libapt-pkg.so.6.0')")
mkdir -p "$work/lists/partial"
: >"$work/sources.list"
update() {
    LC_ALL=C LD_LIBRARY_PATH=$library "$work/apt/usr/bin/apt-get" -o Dir::State::lists="$work/lists" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Cache="$work" -o DPkg::Lock::Timeout=30 update 2>&1
}
python3 - "$work/lists/lock" "$work/held" <<'P' &
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
open(sys.argv[2], "w").close()
time.sleep(6)
P
until [ -e "$work/held" ]; do sleep 0.1; done
begin=$(date +%s)
status=0
update >"$work/log" || status=$?
took=$(($(date +%s) - begin))
echo "apt-get update: exit status $status after $took s: $(grep -m 1 '^E: ' "$work/log" | sed "s|$work/||; s/process [0-9]*/process PID/")"
[ "$status" = 100 ] && [ "$took" -lt 5 ] && grep -q 'Could not get lock' "$work/log" || { echo "this has changed" >&2; exit 1; }
wait
status=0
update >"$work/log" || status=$?
echo "apt-get update, once the lock is free: exit status $status"
[ "$status" = 0 ] || { echo "this has changed" >&2; exit 1; }
