"""Python code in an interpreter of its own."""

import os
import subprocess
import sys
from pathlib import Path

import hpccoll

ROOT = Path(hpccoll.__file__).parents[1]


def python(code: str, *arguments: str, **environment: str) -> str:
    """Run code where warnings are errors, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout.strip()
