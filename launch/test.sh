#!/usr/bin/env bash
# Installs msparallel with its test tools and runs the tests, all tiers but `slow`.
#   bash launch/test.sh [pytest arguments], for example: bash launch/test.sh -m pure
set -euo pipefail
repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
. "$repo/launch/setup_venv.sh"
install ".[test]"
cd "$repo"
"$venv/bin/ruff" check .
exec "$venv/bin/python" -m pytest "$@"
