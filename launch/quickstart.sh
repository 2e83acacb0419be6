#!/usr/bin/env bash
# Installs msparallel into a virtual environment and trains recipes/quickstart.yaml on this machine's processor.
#   bash launch/quickstart.sh [section.key=value ...]
set -euo pipefail
repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
. "$repo/launch/setup_venv.sh"
install .
cd "$repo"
exec "$venv/bin/msparallel" run quickstart "$@"
