#!/usr/bin/env bash
# Make the virtual environment in which run.sh runs.
#
#   environment.sh PYTHON VENV TREE [FOLDER]
#
# It has what is in FOLDER, or what pip finds, and beside that all packages of PYTHON: of an interpreter
# in a virtual environment of its own, too, whose packages one made with --system-site-packages does
# not see.
set -euo pipefail
python=$1 venv=$2 tree=$3 wheels=${4:-}

# Without pip, which not every machine can put there; that of PYTHON is seen.
"$python" -m venv --without-pip "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" - "$packages/zz_outer_packages.pth" <<'END'
import site
import sys
from pathlib import Path

folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
# Whoever looks for libraries beside packages, such as NVRTC's, asks `site` where packages are.
lines = [f"import site; site.PREFIXES.append({sys.prefix!r})"]
lines += [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(folders)]
Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
END

"$venv/bin/python" -c 'import pip' 2>/dev/null || "$venv/bin/python" -m ensurepip >/dev/null

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir "$@"
}

if [ -n "$wheels" ]; then
    # What PYTHON has of the same is left alone, and comes second.
    pip install --quiet --no-index --no-deps --ignore-installed --no-compile "$wheels"/*.whl
else
    driver=$("$venv/bin/python" -c '
import ctypes
import sys

version = ctypes.c_int()
try:
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
except OSError as error:
    sys.exit(f"there is no CUDA driver on this machine: {error}")
print(12 if version.value < 13000 else 13)')
    # Not those of PYTHON, which may belong to an MPI that is not there.
    pip install --quiet --no-deps --ignore-installed mpich mpi4py
    requirements=$("$venv/bin/python" - "$tree/pyproject.toml" "cuda$driver" <<'END'
import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text()
# No tomllib before Python 3.11.
for name in ("requires", "dependencies", "test", sys.argv[2]):
    (line,) = re.findall(rf"^{name} = \[(.*)\]", text, re.MULTILINE)
    wanted = re.findall(r'"([^"]*)"', line)
    print("\n".join(one for one in wanted if not one.startswith("hpccoll")))
END
)
    mapfile -t requirements <<<"$requirements"
    pip install --quiet "${requirements[@]}"
fi
[ -x "$venv/bin/mpiexec" ] || {
    echo "there is no mpiexec: is the wheel of mpich among the others?" >&2
    exit 1
}
"$venv/bin/python" -c 'from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0])'
