#!/usr/bin/env bash
# Makes one virtual environment per family of peers: WHERE/jax, torch, laplace and variational. They are kept apart from
# each other and from .venv, because their requirements would move the versions that the library is tested with.
# FAMILY.txt is installed as usual, FAMILY-alone.txt without what its packages require.
#   benchmarks/peers/setup.sh [WHERE [FAMILY ...]]     WHERE is .peers and FAMILY all unless given; PYTHON: the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
where=${1:-.peers}

left_out="requires (torchvision|tensorboard|scikit-learn|einops|seaborn)|^No broken"
families=("${@:2}")
((${#families[@]})) || families=(jax torch laplace variational)

for family in "${families[@]}"; do
  python=$where/$family/bin/python
  "$python" -m pip --version >/dev/null 2>&1 || "${PYTHON:-python3}" -m venv "$where/$family"
  install=("$python" -m pip install --disable-pip-version-check --quiet)
  # torch first and alone, as in the Makefile: no other package's requirements choose its build
  first=$(grep '^torch==' "$here/$family.txt" || true)
  [[ -z $first ]] || "${install[@]}" "$first"
  "${install[@]}" --requirement "$here/$family.txt"
  if [[ -e $here/$family-alone.txt ]]; then
    "${install[@]}" --no-deps --requirement "$here/$family-alone.txt"
    # nothing may be missing but what was left out on purpose
    if "$python" -m pip check | grep --invert-match --extended-regexp "$left_out"; then exit 1; fi
  else
    "$python" -m pip check
  fi
done
echo "The peers are in $where. Time them by: python -m benchmarks.samplers --where $where
and likewise benchmarks.curvature and benchmarks.variational_peers."
