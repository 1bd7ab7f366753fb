"""`hpccoll.info`: what it says, and that it starts nothing."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import mpi4py
import numpy as np
import pytest

import hpccoll
from hpccoll import _kernels, information

ROOT = Path(__file__).resolve().parents[2]

KEYS = {
    "versions", "mpi_started", "nodes", "nonblocking", "mpi", "kernel", "cpu", "platform",
    "environment", "cuda_aware",
}  # fmt: skip
MPI_KEYS = {"library", "version", "standard", "thread_level", "note"}


def ask(code):
    """Run code in a fresh process; return what info says there at the end."""
    code = f"import json, hpccoll\n{code}\nprint(json.dumps(hpccoll.info()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def test_it_is_plain_data():
    info = hpccoll.info()
    assert json.loads(json.dumps(info)) == info
    assert set(info) == KEYS
    assert set(info["mpi"]) == MPI_KEYS


def test_it_names_versions_and_the_machine():
    info = hpccoll.info()
    versions = info["versions"]
    assert versions["hpccoll"] == hpccoll.__version__
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == np.__version__
    assert versions["mpi4py"] == mpi4py.__version__
    assert info["kernel"] == {
        "target": _kernels.target(),
        "available": list(_kernels.targets()),
        "note": "",
    }
    assert info["cpu"]["model"]
    assert info["cpu"]["cores_usable"] >= 1


def test_it_starts_no_mpi():
    info = ask("import sys; hpccoll.info(); assert 'mpi4py.MPI' not in sys.modules")
    assert info["mpi_started"] is False
    assert info["mpi"]["library"] is None
    assert info["mpi"]["note"] == "not started: mpi4py.MPI has not been imported"
    assert info["cuda_aware"] == {
        "answer": "unknown",
        "how": "MPI is not started: mpi4py.MPI has not been imported",
    }
    assert info["nonblocking"] == {
        "progress": None,
        "note": "not known: MPI is not started: mpi4py.MPI has not been imported",
    }
    lines = information.lines(info)
    assert any(re.match(r"non-blocking +not known: MPI is not started", line) for line in lines)


def test_it_knows_an_mpi_that_runs():
    info = ask("from mpi4py import MPI")
    assert info["mpi_started"] is True
    assert all(info["mpi"][key] for key in MPI_KEYS - {"note"})
    assert info["nonblocking"] == {"progress": "thread", "note": ""}
    assert info["cuda_aware"]["answer"] in ("yes", "no", "unknown")
    assert info["cuda_aware"]["how"]
    assert "calls progress: thread" in "\n".join(information.lines(info))
    assert info["mpi"]["note"] == ""


@pytest.mark.parametrize("level", ["single", "funneled", "serialized"])
def test_it_knows_how_nonblocking_calls_progress(level):
    info = ask(f"import mpi4py; mpi4py.rc.thread_level = {level!r}; from mpi4py import MPI")
    if info["mpi"]["thread_level"] == "multiple":  # an MPI library may give more than is wanted
        pytest.skip("this MPI library has no lower level")
    assert info["nonblocking"] == {
        "progress": "in test and wait",
        "note": "MPI was started below MPI.THREAD_MULTIPLE",
    }
    wanted = "calls progress: in test and wait (MPI was started below MPI.THREAD_MULTIPLE)"
    assert wanted in "\n".join(information.lines(info))


def test_it_knows_an_mpi_that_does_not_run():
    info = ask("import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI")
    assert info["mpi_started"] is False
    assert info["mpi"]["library"]
    assert info["mpi"]["thread_level"] is None
    assert info["mpi"]["note"].startswith("not started")


def test_it_knows_an_mpi_that_has_ended():
    info = ask("from mpi4py import MPI; MPI.Finalize()")
    assert info["mpi_started"] is False
    assert info["mpi"]["note"] == "not started: MPI has been finalised"
    assert info["nonblocking"]["progress"] is None


def test_it_survives_without_mpi4py_and_kernels():
    info = ask("import sys; sys.modules['mpi4py'] = sys.modules['hpccoll._kernels'] = None")
    assert info["mpi"]["note"] == "not available: mpi4py is not installed"
    assert info["kernel"]["target"] is None
    assert info["kernel"]["note"].startswith("not available: ")


def test_it_shows_no_variables_but_its_own(monkeypatch):
    monkeypatch.setenv("HPCCOLL_SOMETHING", "1")
    monkeypatch.setenv("MY_PASSWORD", "secret")
    environment = hpccoll.info()["environment"]
    assert environment["HPCCOLL_SOMETHING"] == "1"
    assert all(name.startswith("HPCCOLL_") for name in environment)


@pytest.mark.parametrize("name", information.RANK_VARIABLES)
def test_launchers_tell_the_rank(name, monkeypatch):
    for other in information.RANK_VARIABLES:
        monkeypatch.delenv(other, raising=False)
    assert information.launcher_rank() is None
    monkeypatch.setenv(name, "3")
    assert information.launcher_rank() == 3


def test_it_can_be_read():
    lines = information.lines(hpccoll.info())
    assert lines[0].split() == ["hpccoll", hpccoll.__version__]
    assert any(line.startswith("kernel ") and _kernels.target() in line for line in lines)
