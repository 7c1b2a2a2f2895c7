#!/usr/bin/env bash
# Makes one virtual environment per family of peers: WHERE/jax and WHERE/torch. They are kept apart from each other and
# from .venv, because their requirements would move the versions that the library is tested with.
#   benchmarks/peers/setup.sh [WHERE]        WHERE is .peers unless given; PYTHON names the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
where=${1:-.peers}

for family in jax torch; do
  python=$where/$family/bin/python
  "$python" -m pip --version >/dev/null 2>&1 || "${PYTHON:-python3}" -m venv "$where/$family"
  install=("$python" -m pip install --disable-pip-version-check --quiet)
  # torch first and alone, as in the Makefile: no other package's requirements choose its build
  first=$(grep '^torch==' "$here/$family.txt" || true)
  [[ -z $first ]] || "${install[@]}" "$first"
  "${install[@]}" --requirement "$here/$family.txt"
  "$python" -m pip check
done
echo "The peers are in $where. Time them by: python -m benchmarks.samplers --where $where"
