"""The script for machines with a GPU, as far as it goes without one."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests" / "gpu"
SCRIPTS = sorted(GPU.glob("*.sh"))

LARGE = {"numpy", "ml_dtypes", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc"}
"""What a machine with a GPU is to have itself."""

ELSEWHERE = {"hpccoll", "scikit-learn", "build"}
"""What other tests need."""


def script(*arguments, **environment):
    """Run it; with the interpreter of the tests, unless the environment says otherwise."""
    return subprocess.run(
        ["bash", str(GPU / "run.sh"), *map(str, arguments)],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_read(path):
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert os.access(path, os.X_OK)


def test_help_and_steps():
    told = script("--help")
    assert told.returncode == 0
    assert "tests/gpu/run.sh [--only STEP,STEP] [FOLDER]" in told.stdout
    assert "set " not in told.stdout
    steps = script("--list").stdout.split()
    text = (GPU / "run.sh").read_text()
    run = re.findall(r"^(?:\w+=\w+ )*(?:step|ranks) ([\w-]+) ", text, re.MULTILINE)
    libraries = re.findall(r"\w+:(\w+)", re.findall("for library in (.*); do", text)[0])
    assert sorted(steps) == sorted([*run, *libraries])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only"], "--only needs the names of steps: environment "),
        (["--only", "kernels,kernel"], "unknown step 'kernel'; wanted environment "),
        (["--every"], "unknown option '--every'"),
        (["nowhere"], "there are no wheels in 'nowhere'"),
        ([GPU], f"there are no wheels in '{GPU}'"),
    ],
)
def test_wrong_options_are_explained(arguments, said):
    refused = script(*arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"run.sh: {said}")
    assert refused.stdout == ""


def wheel(folder, name, files):
    """Write a wheel; a file whose name begins with "scripts/" is a program."""
    path = folder / f"{name}-1-py3-none-any.whl"
    files = {
        re.sub("^scripts/", f"{name}-1.data/scripts/", inside): text
        for inside, text in files.items()
    }
    about = f"{name}-1.dist-info"
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/RECORD"] = "".join(f"{one},,\n" for one in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            entry = zipfile.ZipInfo(inside)
            entry.external_attr = (0o100755 if "/scripts/" in inside else 0o100644) << 16
            archive.writestr(entry, text)
    return path


@pytest.fixture(name="wheels")
def folder_of_wheels(tmp_path):
    """Give a folder with wheels of an MPI that is none."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "mpich", {"scripts/mpiexec": "#!python\n"})
    said = "def Get_library_version():\n    return 'An MPI for tests\\n'\n"
    wheel(folder, "mpi4py", {"mpi4py/__init__.py": "", "mpi4py/MPI.py": said})
    return folder


def test_what_is_in_the_environment(tmp_path, wheels):
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["bash", str(GPU / "environment.sh"), sys.executable, str(venv), str(ROOT), str(wheels)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "An MPI for tests\n"
    code = (
        "import importlib.metadata, mpi4py, numpy, pytest, site\n"
        "print(importlib.metadata.version('mpi4py'), numpy.__file__)\n"
        "print(*site.getsitepackages(), sep='\\n')"
    )
    told = subprocess.run(
        [str(venv / "bin" / "python"), "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    versions, *folders = told.stdout.splitlines()
    # Its own before those of the interpreter that made it, but those as well.
    assert versions.startswith("1 ")
    outer = sysconfig.get_path("purelib")
    assert versions.split()[1].startswith((outer, sysconfig.get_path("platlib")))
    assert outer in folders


def test_a_folder_without_an_mpi(tmp_path, wheels):
    (wheels / "mpich-1-py3-none-any.whl").unlink()
    done = script(wheels)
    assert done.returncode == 1
    assert "there is no mpiexec: is the wheel of mpich among the others?" in done.stdout
    assert "failed, status 1" in done.stdout
    assert re.search(r"^ranks-4 +0  not run$", done.stdout, re.MULTILINE)


def test_no_step_begins_when_the_time_is_over(wheels):
    done = script(wheels, HPCCOLL_GPU_SECONDS="0")
    assert done.returncode == 1
    assert re.search(r"^environment +0  not run, no time is left$", done.stdout, re.MULTILINE)


def names(text):
    return {re.split(r"[<>=\[]", one)[0] for one in re.findall(r'"([^"]+)"', text)}


def test_what_is_carried_along_is_all_that_is_needed():
    lines = (GPU / "wheels.txt").read_text().splitlines()
    carried = {line for line in lines if not line.startswith("#")}
    text = (ROOT / "pyproject.toml").read_text()
    wanted = set()
    for name in ("requires", "dependencies", "mpich", "cuda13", "test"):
        wanted |= names(re.findall(rf"^{name} = \[(.*)\]", text, re.MULTILINE)[0])
    assert wanted - LARGE - ELSEWHERE <= carried
    assert not carried & (LARGE | ELSEWHERE)
