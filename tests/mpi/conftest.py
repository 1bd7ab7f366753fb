"""What the tests under mpiexec share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, so that none runs without mpiexec by mistake."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("mpi"):
            item.add_marker("mpi")


@pytest.fixture
def comm() -> Iterator[MPI.Intracomm]:
    """Give a communicator of all ranks that no other test uses.

    A message that a failed test has left behind cannot reach the next one.
    """
    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()
