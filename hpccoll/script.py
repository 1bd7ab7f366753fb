"""Run a Python program as a rank of a job: ``python -m hpccoll run``.

A rank that ends by an exception leaves the others waiting in calls that it never comes to. Here its
traceback is printed, with the rank, and the job is aborted.
"""

import fcntl
import os
import pkgutil
import runpy
import signal
import stat
import sys
import termios
import time
import traceback
import types
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpccoll.information import launcher_rank

INTERRUPTED = 130
"""Status of a program that Ctrl-C ended, as shells have it."""

PATIENCE = 2.0
"""Seconds that a rank waits for its last words to be read, before it ends the job."""

OURS = (__file__, "<frozen runpy>", runpy.__file__)
"""Files whose frames stand between the command line and the program."""


@dataclass(frozen=True, slots=True)
class Program:
    """What ``python`` would run.

    Attributes
    ----------
    target : str
        A file (also a folder or an archive with a ``__main__.py``), a module, or code.
    kind : str
        "file", "module" or "code".
    arguments : sequence of str
        What ``sys.argv`` has behind its first entry.
    """

    target: str
    kind: str = "file"
    arguments: Sequence[str] = ()

    def run(self) -> int:
        """Run it as ``__main__`` and return the exit status.

        Where it fails, and other ranks may wait for this one, the job is aborted.
        """
        process = os.getpid()
        try:
            RUNS[self.kind](self.target, self.arguments)
        except SystemExit as error:
            status = _exit_status(error)
            if status == 0 or os.getpid() != process or _standing() in (ALONE, AFTER):
                raise  # as Python does
            _fail(error, status)
            return status
        except BaseException as error:
            if os.getpid() != process:  # a forked child is no rank
                raise
            status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
            _fail(error, status)
            return status
        return 0


def _run_file(path: str, arguments: Sequence[str]) -> None:
    sys.argv[:] = [path, *arguments]
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive
        _set_first_path(os.path.abspath(path), always=True)  # noqa: PTH100
        _run_as_python_does("__main__", False)
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    file = os.path.abspath(path)  # noqa: PTH100 - `Path.resolve` would follow links
    main = _new_main()
    main["__file__"] = file
    with open(path, "rb") as source:  # noqa: PTH123
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, main)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    sys.argv[:] = ["-m", *arguments]
    _set_first_path(os.getcwd())  # noqa: PTH109
    _run_as_python_does(name, True)


def _run_as_python_does(name: str, alter_argv: bool) -> None:
    # What `python -m` itself calls. `runpy.run_module` takes the module `__main__` away when the
    # code has run; but exit handlers, and what is pickled in them, need it.
    _new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _run_code(code: str, arguments: Sequence[str]) -> None:
    sys.argv[:] = ["-c", *arguments]
    _set_first_path("")
    exec(compile(code, "<string>", "exec", dont_inherit=True), _new_main())


RUNS: dict[str, Callable[[str, Sequence[str]], None]] = {
    "file": _run_file,
    "module": _run_module,
    "code": _run_code,
}


def _new_main() -> dict[str, Any]:
    """Make a module `__main__` and return its names; it lives until the process ends."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return vars(module)


def _set_first_path(folder: str, *, always: bool = False) -> None:
    """Replace what Python put in front of `sys.path` for our own module, if it did."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _exit_status(error: SystemExit) -> int:
    """Return the status that a process has which ends by this."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


ALONE, BEFORE, DURING, AFTER = "alone", "before", "during", "after"


def _standing() -> str:
    """Where this process stands: `ALONE`, or as one of several ranks before, in or after MPI."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        spawned = module.Comm.Get_parent() != module.COMM_NULL
        return DURING if module.COMM_WORLD.size > 1 or spawned else ALONE
    if launcher_rank() is None:
        return ALONE
    return AFTER if module is not None and module.Is_finalized() else BEFORE


def _fail(error: BaseException, status: int) -> None:
    """Tell what happened, and end all ranks, where there are others."""
    try:
        _tell(error, status)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # such as a pipe that nobody reads
                stream.flush()
                _wait_for_reader(stream.fileno())
        _abort(status)


def _wait_for_reader(fd: int) -> None:
    """Return when all that was written to a pipe has been read, or after `PATIENCE`.

    MPICH's launcher was seen to end a job, at an abort, before it had read what the rank said.
    """
    deadline = time.monotonic() + PATIENCE
    unread = array("i", [1])
    while stat.S_ISFIFO(os.fstat(fd).st_mode) and unread[0] and time.monotonic() < deadline:
        fcntl.ioctl(fd, termios.FIONREAD, unread)
        time.sleep(0.01)


def _abort(status: int) -> None:
    standing = _standing()
    if standing == DURING:
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(status)
    elif standing == BEFORE:
        # Others may wait for this one in MPI_Init. A status would not do: MPICH's launcher lets
        # processes come and go that have not started MPI; but none may end by a signal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _tell(error: BaseException, status: int) -> None:
    """Print the traceback of the program, and on which rank it is."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in OURS:
        frames = frames.tb_next
    error = error.with_traceback(frames)
    head = _head(status)
    if sys.excepthook is not sys.__excepthook__:  # the program's own
        with suppress(Exception):
            sys.stderr.write(head)
            sys.excepthook(type(error), error, frames)
            return
    # In one piece: other ranks may print, too.
    sys.stderr.write(head + "".join(traceback.format_exception(type(error), error, frames)))


def _head(status: int) -> str:
    """Return the line in front of a traceback; empty where there is no rank."""
    standing, rank = _standing(), launcher_rank()
    if standing == DURING:
        world = sys.modules["mpi4py.MPI"].COMM_WORLD
        return f"rank {world.rank} of {world.size} ends the job with status {status}:\n"
    if standing == BEFORE:
        return f"rank {rank} ends the job before MPI has started:\n"
    return f"rank {rank} ends with status {status}:\n" if standing == AFTER else ""
