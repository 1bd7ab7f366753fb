"""What holds for every test: markers, time limits, and one report under mpiexec."""

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Under ``--with-mpi``, let the ranks report as one."""
    config.stash[STDERR] = os.dup(2)  # the real one: pytest captures nothing yet
    if not (config.getoption("with_mpi") or config.getoption("only_mpi")):
        return
    from mpi_session import MpiSession

    session = MpiSession(config)
    config.pluginmanager.register(session, "mpi-session")
    wanted = os.environ.get("HPCCOLL_TEST_RANKS", str(session.size))
    if int(wanted) != session.size:
        raise _usage_error(
            config,
            f"mpiexec was to start {wanted} ranks, and MPI counts {session.size}: "
            "it belongs to another MPI library than the one that mpi4py has loaded",
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Settle how hypothesis draws, before the first module that uses it is imported.

    All ranks must draw the same examples, and no machine is too slow to be right. Only where it is
    used, since its import takes longer than many a test.
    """
    if b"hypothesis" in module_path.read_bytes():
        from hypothesis import settings

        settings.register_profile("tests", derandomize=True, database=None, deadline=None)
        settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse misspelled markers, and leave out slow tests unless they are asked for."""
    wrong = [complaint for item in items if (complaint := _misuse(item))]
    if wrong:
        raise _usage_error(config, *wrong)
    if config.getoption("slow") or "slow" in config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test its own time limit. (Under mpiexec the session does, and says which rank.)"""
    mark = item.get_closest_marker("limit")
    if mark and not item.config.pluginmanager.has_plugin("mpi-session"):
        faulthandler.dump_traceback_later(mark.args[0], exit=True, file=item.config.stash[STDERR])


@pytest.fixture
def comm() -> "Iterator[MPI.Intracomm]":
    """Give a communicator of all ranks that no other test uses.

    A message that a failed test has left behind cannot reach the next one.
    """
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


def _misuse(item: pytest.Item) -> str:
    """Say what is wrong with a test's ``mpi`` and ``limit`` markers; empty if nothing is.

    pytest-mpi looks up ``min_size`` and ignores every other word, so that a test with
    ``mpi(minsize=4)`` would run, and pass, on any number of ranks.
    """
    for mark in item.iter_markers("mpi"):
        if mark.args or set(mark.kwargs) - {"min_size"}:
            return f"{item.nodeid}: write pytest.mark.mpi or pytest.mark.mpi(min_size=N)"
    for mark in item.iter_markers("limit"):
        if len(mark.args) != 1 or mark.kwargs:
            return f"{item.nodeid}: write pytest.mark.limit(SECONDS)"
    return ""


def _usage_error(config: pytest.Config, *lines: str) -> pytest.UsageError:
    """Return an error that only one rank prints."""
    session = config.pluginmanager.get_plugin("mpi-session")
    return pytest.UsageError(*(lines if session is None or session.rank == 0 else ()))
