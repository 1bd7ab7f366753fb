"""Whether the MPI library takes pointers to device memory: what is asked, and what a child says."""

import subprocess
import sys

import pytest

from hpccoll.cuda import awareness
from hpccoll.cuda.awareness import Awareness, cuda_aware, exchange, query


@pytest.fixture(autouse=True)
def asked_anew():
    cuda_aware.cache_clear()
    yield
    cuda_aware.cache_clear()


@pytest.fixture(name="child")
def what_the_child_does(monkeypatch, tmp_path):
    """Return a function that says what the child runs in place of the exchange."""

    def replace(program: str) -> None:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.setattr(awareness, "CHILD", "stand_in")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return replace


def test_the_library_of_the_tests_is_asked_by_its_own_function():
    answer, how = query()
    assert answer in ("yes", "no", "unknown")
    assert "MPI" in how


@pytest.mark.parametrize(
    ("program", "answer", "how"),
    [
        ("", "yes", "came out right"),
        ("import os; os.kill(os.getpid(), 11)", "no", "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "no", "signal 40"),
        ("raise SystemExit(3)", "untried", "no device"),
        ("raise RuntimeError('cannot do that')", "no", "cannot do that"),
    ],
)
def test_what_a_child_tells(child, program, answer, how):
    child(program)
    assert exchange().answer == answer
    assert how in exchange().how


def test_a_child_that_hangs_tells_nothing(child, monkeypatch):
    child("import time; time.sleep(60)")
    monkeypatch.setattr(awareness, "CHILD_SECONDS", 0.5)
    answer, how = exchange()
    assert answer == "unknown"
    assert "not over after 0.5 s" in how


def test_a_child_is_no_rank(child, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    left = "'PMI_RANK' in os.environ or 'OMPI_COMM_WORLD_RANK' in os.environ"
    child(f"import os; raise SystemExit({left})")
    assert exchange().answer == "yes"


@pytest.mark.parametrize(
    ("claim", "driver", "program", "answer"),
    [
        ("no", True, "", "no"),
        ("yes", True, "", "yes"),
        ("yes", True, "import os; os.abort()", "no"),
        ("yes", True, "raise SystemExit(3)", "yes"),
        ("unknown", True, "", "yes"),
        ("unknown", True, "raise SystemExit(3)", "unknown"),
        ("unknown", False, "", "unknown"),
    ],
)
def test_what_is_said_and_what_is_tried(child, monkeypatch, claim, driver, program, answer):
    child(program)
    monkeypatch.setattr(awareness, "query", lambda: Awareness(claim, "it says so"))
    monkeypatch.setattr(awareness, "DRIVER_LIBRARY", "libc.so.6" if driver else "libnone.so")
    found = cuda_aware()
    assert found.answer == answer
    assert "it says so" in found.how


def test_the_program_of_the_child_says_where_there_is_no_device():
    """On a machine that has one, it tries; either way it must not be a surprise."""
    command = [sys.executable, "-m", awareness.CHILD]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, awareness.NO_DEVICE), ended.stderr
