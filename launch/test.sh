#!/usr/bin/env bash
# Installs msparallel with its test tools and runs the tests, all tiers but `slow`.
#   bash launch/test.sh [pytest arguments], for example: bash launch/test.sh -m pure
# Without arguments the pure tier runs on all cores, the tiers cpu and browser two tests at a time (each takes up to
# 3 GB), and what starts several workers one test after the other.
set -euo pipefail
repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
. "$repo/launch/setup_venv.sh"
install ".[test]"
cd "$repo"
"$venv/bin/ruff" check .
if [ "$#" -gt 0 ]; then
    exec "$venv/bin/python" -m pytest "$@"
fi
status=0
"$venv/bin/python" -m pytest -n auto --dist loadfile -m "pure and not slow" || status=$?
"$venv/bin/python" -m pytest -n 2 --dist worksteal -m "(cpu or browser) and not slow" || status=$?
"$venv/bin/python" -m pytest -m "msrun and not slow" || status=$?
exit "$status"
