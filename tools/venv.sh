#!/usr/bin/env bash
# Make a virtual environment: venv.sh PYTHON FOLDER.
#
# Debian's python3 comes without the venv module. As root this script installs it; as anybody
# else it says which package is missing.
set -euo pipefail

python=$1
folder=$2

if ! command -v "$python" >/dev/null; then
  echo "There is no '$python' here. Name a Python 3.11 or newer: make PYTHON=/path/to/python3 ..." >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "'$python' is $("$python" --version 2>&1); fiberscope needs Python 3.11 or newer." >&2
  echo "Name one: make PYTHON=/path/to/python3 ..." >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "'$python' lacks the venv module; installing the Debian package $package" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >&2
  else
    echo "'$python' lacks the venv module. On Debian and its kin: apt-get install $package" >&2
    exit 1
  fi
fi

# A half-made environment would look like a finished one at the next run.
trap 'rm -rf "$folder"' ERR
"$python" -m venv "$folder"
