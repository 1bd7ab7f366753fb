"""Start programs under mpiexec: find it, know whose it is, and end all that was started.

Also for tests that run a program on several ranks::

    launcher = Launcher.find()
    done = launcher.run(3, [sys.executable, "-m", "hpccoll", "info"], limit=60)
    assert done.status == 0, done.output
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "HPCCOLL_TEST_LAUNCH"
"""Environment variable that all processes of a launch carry, and by which they are found again."""

NESTED = re.compile(r"^(PMI_|PMIX_|PMIX|PRTE_|HYDI_|MPI_LOCAL|MPIR_CVAR_CH4_PMI|OMPI_COMM_WORLD_)")
"""Variables by which one launcher tells its ranks who they are.

They are all that is taken out of the user's environment: a launcher that starts inside another
one's rank would believe that it is that rank.
"""

GRACE = 3.0
"""Seconds that processes have to end by themselves before they are killed."""


@dataclass(frozen=True)
class Finished:
    """How a launch ended."""

    status: int
    output: str
    seconds: float
    ended_by_us: str = ""
    """Why processes had to be ended: past the limit, or left behind; empty if none had to."""


@dataclass(frozen=True)
class Launcher:
    """An mpiexec and what it needs to run more ranks than there are cores, also as root."""

    mpiexec: str
    kind: str
    """"mpich" (also for the many that share its launcher) or "openmpi"."""

    @classmethod
    def find(cls, mpiexec: str | None = None) -> "Launcher":
        """Return the given mpiexec, or the one beside this Python, or the one on PATH.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        beside = Path(sys.executable).with_name("mpiexec")
        path = mpiexec or (str(beside) if beside.exists() else shutil.which("mpiexec"))
        if path is None or shutil.which(path) is None:
            raise FileNotFoundError(f"no mpiexec at {path or f'{beside} or on PATH'}")
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        return cls(path, "openmpi" if "Open MPI" in said.stdout + said.stderr else "mpich")

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """Return the command line that runs `program` on that many ranks."""
        more = ["--oversubscribe"] if self.kind == "openmpi" else []
        return [self.mpiexec, *more, "-n", str(ranks), *program]

    def environment(self, ranks: int) -> dict[str, str]:
        """Return the user's environment and what the launch needs."""
        env = {name: value for name, value in os.environ.items() if not NESTED.match(name)}
        env["HPCCOLL_TEST_RANKS"] = str(ranks)  # conftest.py compares it with what MPI counts
        env["PYTHONUNBUFFERED"] = "1"  # what a rank printed is out before it is killed
        if self.kind == "openmpi" and os.geteuid() == 0:
            env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return env

    def run(
        self,
        ranks: int,
        program: Sequence[str],
        limit: float,
        on_line: Callable[[str], None] | None = None,
        cwd: str | Path | None = None,
    ) -> Finished:
        """Run `program` on that many ranks; `limit` is in seconds."""
        command, env = self.command(ranks, program), self.environment(ranks)
        return run(command, env, limit, on_line, cwd)


def run(
    command: Sequence[str],
    env: dict[str, str],
    limit: float,
    on_line: Callable[[str], None] | None = None,
    cwd: str | Path | None = None,
) -> Finished:
    """Run a command to its end, or end it and all that it started at the limit.

    Standard output and error come together, in `Finished.output` and line by line to `on_line`.
    """
    token = uuid.uuid4().hex
    started = time.monotonic()
    why: list[str] = []
    process = subprocess.Popen(
        command,
        env={**env, MARK: token},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )

    def stop() -> None:
        why.append(f"ended after {limit:g} s")
        process.terminate()  # mpiexec then ends its ranks
        _kill_the_rest(token)

    timer = threading.Timer(limit, stop)
    timer.start()
    lines = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            if on_line:
                on_line(line)
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:  # this function is being left by an exception
            process.terminate()
        left = _kill_the_rest(token)
        process.stdout.close()
        process.wait()
    if left and not why:
        why.append(f"left {left} processes behind")
    return Finished(process.returncode, "".join(lines), time.monotonic() - started, *why)


def _kill_the_rest(token: str) -> int:
    """Wait for the processes of a launch to end; kill and count those that do not."""
    deadline = time.monotonic() + GRACE
    while rest := _processes(token):
        if time.monotonic() > deadline:
            for pid in rest:
                os.kill(pid, signal.SIGKILL)
            return len(rest)
        time.sleep(0.05)
    return 0


def _processes(token: str) -> list[int]:
    """Return the processes that carry the token: those that one launch started, and no others.

    Neither the process group nor the session would do: launchers give their ranks new ones.
    """
    mark = f"{MARK}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # of another user, or gone in the meantime
                continue
    return found
