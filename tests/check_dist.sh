#!/usr/bin/env bash
# Build the sdist, and the wheel from the sdist; install each into an environment of its own and
# run the unit tests against the installed copy. The tests are those of the sdist, and the folder
# hpccoll/ is taken away from beside them: nothing of the checkout can stand in for what users get.
#
# Called by `make dist`, which sets PYTHON, MPI and BUILD; arguments are handed on to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/dist-check
rm -rf dist "$work"
mkdir -p "$work/source"
$BUILD --outdir dist .

tar -xzf dist/hpccoll-*.tar.gz -C "$work/source" --strip-components 1
rm -r "$work/source/hpccoll"

for package in dist/hpccoll-*.whl dist/hpccoll-*.tar.gz; do
    kind=sdist
    case $package in *.whl) kind=wheel ;; esac
    echo "### $package"
    "$PYTHON" -m venv "$work/$kind"
    "$work/$kind/bin/python" -m pip install --quiet --disable-pip-version-check \
        "$package[$MPI,test]"
    bin=$(realpath "$work/$kind/bin")
    # Not `python -m pytest`, which would put the current folder first on the path.
    (cd "$work/source" && PATH="$bin:$PATH" "$bin/pytest" -p no:cacheprovider tests/unit "$@")
done
