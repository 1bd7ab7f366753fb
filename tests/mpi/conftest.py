"""What the tests under mpiexec share."""

from pathlib import Path

import pytest
from cuda_session import REAL
from mpi4py import MPI

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, so that none runs without mpiexec by mistake.

    Where tests are to run on devices, leave out those of a fake one.
    """
    if REAL:
        items[:] = [item for item in items if "fake" not in getattr(item, "fixturenames", ())]
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("mpi"):
            item.add_marker("mpi")


@pytest.fixture(autouse=True)
def enough_ranks(request: pytest.FixtureRequest) -> None:
    """Leave out what takes long and shows on more ranks what it has shown on four."""
    is_long = request.path.name.startswith("test_cuda")
    if is_long and MPI.COMM_WORLD.size > 4 and not request.node.get_closest_marker("any_size"):
        pytest.skip("four ranks show the same in less time")
