# Sourced by quickstart.sh and test.sh: makes the virtual environment, once.
#   PYTHON           interpreter to use (default: the first of python3.11, 3.12, 3.10, python3 that fits)
#   MSPARALLEL_VENV  where the environment goes (default: .venv in the repository)
venv="${MSPARALLEL_VENV:-$repo/.venv}"

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

find_python() {
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3}; do
    if command -v "$candidate" >/dev/null && fits "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  echo "MindSpore 2.9 and 2.10 need Python 3.10, 3.11 or 3.12; none of '${PYTHON:-python3.11 python3.12 python3.10 python3}' is one." >&2
  echo "On Debian 12: apt-get install python3 python3-venv. To name another: PYTHON=/path/to/python3.11 bash launch/quickstart.sh" >&2
  exit 2
}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python="$(find_python)" || exit 2
  # A MindSpore that is already installed and fits (an Ascend container brings its own) is used, not replaced.
  inherit=""
  if "$python" -c 'import sys; from importlib.metadata import version; sys.exit(tuple(map(int, version("mindspore").split(".")[:2])) not in ((2, 9), (2, 10)))' 2>/dev/null; then
    inherit="--system-site-packages"
  fi
  if ! "$python" -m venv $inherit "$venv"; then
    echo "$python cannot make a virtual environment. On Debian: apt-get install python3-venv" >&2
    exit 2
  fi
fi

# $1: what to install, `.` or `.[test]`. Skipped while the project's requirements have not changed.
install() {
  stamp="$venv/.msparallel-$(printf %s "$1" | tr -c 'a-z\n' '_')"
  sum="$(cat "$repo/setup.cfg" "$repo/pyproject.toml" | cksum)"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$sum" ]; then
    echo "Installing msparallel and what it needs into $venv (MindSpore alone is about 800 MB) ..." >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$repo${1#.}"
    printf %s "$sum" >"$stamp"
  fi
}
