"""What importing hpccoll does not do, and that it works where there is no MPI."""

import subprocess
import sys
from pathlib import Path

import pytest

import hpccoll

ROOT = Path(hpccoll.__file__).parents[1]

# An import of a module that stands as None raises ImportError.
BLOCK_MPI = "import sys; sys.modules['mpi4py.MPI'] = None; sys.modules['mpi4py'] = None\n"


def python(code):
    """Run code in a fresh interpreter, where warnings are errors, and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_importing_hpccoll_loads_little():
    code = (
        "import hpccoll, sys\n"
        "heavy = ('mpi4py.MPI', 'mpi4py', 'click', 'rich', 'torch', 'ml_dtypes', 'sklearn')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert python(code) == "[]"


def test_listing_and_simulating_do_not_load_mpi():
    code = (
        "import hpccoll, sys\n"
        "hpccoll.algorithms(), hpccoll.simulate('ring', size=4, nbytes=64), dir(hpccoll)\n"
        "print([name for name in sys.modules if name.startswith('mpi4py')])"
    )
    assert python(code) == "[]"


def test_listing_and_simulating_work_without_mpi():
    code = BLOCK_MPI + (
        "import hpccoll\n"
        "print([entry.name for entry in hpccoll.algorithms()][:2])\n"
        "print(hpccoll.simulate('ring', size=100, count=400).units[0])\n"
        "print(hpccoll.__version__)"
    )
    assert python(code).splitlines() == ["['naive_root', 'ring']", "1.98", hpccoll.__version__]


@pytest.mark.parametrize("name", ["allreduce", "Comm"])
def test_what_needs_mpi_says_so_where_there_is_none(name):
    code = BLOCK_MPI + (
        "import hpccoll\n"
        "for attempt in range(2):\n"
        "    try:\n"
        f"        hpccoll.{name}\n"
        "    except ImportError as error:\n"
        "        print('mpi4py' in str(error))"
    )
    assert python(code).splitlines() == ["True", "True"]


def test_what_needs_mpi_is_loaded_when_it_is_used():
    code = (
        "import hpccoll, sys\n"
        "import numpy as np\n"
        "print(hpccoll.allreduce(np.arange(3.0)).tolist())\n"
        "print([m for m in ('mpi4py.MPI', 'torch', 'click', 'rich') if m in sys.modules])"
    )
    assert python(code).splitlines() == ["[0.0, 1.0, 2.0]", "['mpi4py.MPI']"]


@pytest.mark.parametrize("name", hpccoll.__all__)
def test_each_public_name_is_there_and_stays_the_same_object(name):
    value = getattr(hpccoll, name)
    assert getattr(hpccoll, name) is value
    assert name in dir(hpccoll)
    assert (value.__doc__ or "").strip()


def test_the_function_is_not_hidden_by_the_package_of_its_name():
    # hpccoll.algorithms is a function and a package; one must not cover the other.
    code = (
        "import hpccoll\n"
        "import hpccoll.collectives, hpccoll.algorithms.ring\n"
        "from hpccoll.algorithms import find\n"
        "print(callable(hpccoll.algorithms), len(hpccoll.algorithms()))"
    )
    assert python(code) == f"True {len(hpccoll.algorithms())}"


def test_a_star_import_brings_the_public_names():
    code = "from hpccoll import *\nprint(sorted(n for n in dir() if not n.startswith('_')))"
    assert python(code) == str(sorted(hpccoll.__all__))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hpccoll' has no attribute 'all_reduce'"):
        hpccoll.all_reduce  # noqa: B018 - the access is what is tested
    with pytest.raises(ImportError, match="all_reduce"):
        from hpccoll import all_reduce  # noqa: F401
