"""Modules import only what stands below them, and the pure ones need no MPI."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpccoll.chunks
from hpccoll.algorithms.family import FAMILY
from hpccoll.algorithms.flat import FLAT

PACKAGE = Path(hpccoll.chunks.__file__).parent

LAYERS = (
    {"chunks", "topology", "errors", "forks", "time_limits"},
    {"arena", "schedule", "cuda.device", "cuda.device_array", "cuda.driver", "cuda.driver_api"},
    {"algorithms"},
    {"expressions", "proof", "prover", "simulator", "traffic", "program", "pattern"},
    {"compiler", "device_program"},
    {
        "agreement",
        "attachments",
        "buffers",
        "ops",
        "reduction",
        "transport",
        "local_transport",
        "opening",
        "placement",
        "waiting",
        "cuda",
        "cuda.cuda_array",
        "cuda.foreign_arrays",
        "cuda.compilation",
        "cuda.copies",
        "cuda.dlpack",
        "cuda.kernel_arguments",
        "cuda.kernels",
        "cuda.mapping",
        "cuda.memory",
        "cuda.resources",
        "cuda.streams",
    },
    {"engine", "plan_info", "scratch", "task"},
    {"selection", "node", "hierarchy", "cuda.plans"},
    {"channel", "comparison", "cuda.awareness", "cuda.awareness_trial"},
    {
        "calls",
        "checks",
        "jobs",
        "cuda.terms",
        "cuda.mapped",
        "cuda.mapped_call",
        "cuda.nccl",
        "cuda.nodes",
        "cuda.on_host",
        "cuda.outcomes",
        "cuda.peers",
        "cuda.site",
    },
    {"specs", "arrays", "native", "progress"},
    {"requests"},
    {"comm", "collectives", "nonblocking", "buckets", "bucketer", "fused", "shared"},
    {"information"},
    {"benchmark", "script"},
    {"__main__"},
)
"""From the bottom up. A module may import what stands below it or beside it."""

PURE = {
    "errors": set(),
    "forks": set(),
    "time_limits": set(),
    "agreement": {"errors"},
    "arena": {"_arena"},
    "chunks": set(),
    "topology": set(),
    "schedule": {"chunks"},
    "algorithms": {"algorithms", "chunks", "schedule", "topology"},
    "expressions": {"chunks"},
    "proof": {"chunks", "expressions"},
    "prover": {"algorithms", "chunks", "expressions", "proof", "schedule", "topology"},
    "traffic": {"topology"},
    "simulator": {"algorithms", "chunks", "schedule", "topology", "traffic"},
    "program": set(),
    "pattern": {"algorithms", "chunks"},
    "compiler": {"chunks", "program", "schedule"},
    "device_program": {"chunks", "compiler", "program"},
}
"""Modules that must run without MPI, and all of this package that they may import."""

REGISTRY = {"__init__", "collective", "entry", "family", "flat", "hierarchical", "levels", "nodes"}
"""What is no algorithm among the files of algorithms/."""

TWO_PHASES = {"reduce_scatter_gather", "scatter_allgather"}
"""Flat algorithms that are put together from the phases of two others."""


def imports(path):
    """Yield every module that a file imports, with its full name; types only are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for child in ast.walk(statement)
    }
    package = ["hpccoll", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # What is imported from a package may be a module of it.
            is_package = (PACKAGE.parent / base.replace(".", "/")).is_dir()
            yield from (f"{base}.{alias.name}" if is_package else base for alias in node.names)


def own_imports(path):
    """Return the modules and packages of hpccoll that a file imports, by their name below it."""
    names = (name.split(".") for name in imports(path))
    return {layered(name[1:]) for name in names if name[0] == "hpccoll" and len(name) > 1}


def layered(name):
    """Return what has a layer: a module or package, but of the package cuda each module."""
    return ".".join(name[:2] if name[0] == "cuda" else name[:1])


def files_of(module):
    path = PACKAGE / module.replace(".", "/")
    if module == "cuda":
        return [path / "__init__.py"]
    if path.is_dir():
        return sorted(path.glob("*.py"))
    return [path for path in [path.with_suffix(".py")] if path.exists()]


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_only_pure_ones(module):
    files = files_of(module)
    assert files
    for path in files:
        assert own_imports(path) <= PURE[module], path.name
        assert "mpi4py" not in {name.split(".")[0] for name in imports(path)}, path.name


@pytest.mark.parametrize("path", files_of("algorithms"), ids=lambda path: path.stem)
def test_algorithms_are_pure(path):
    outside = {name for name in imports(path) if not name.startswith("hpccoll.")}
    typing = {"bisect", "collections", "collections.abc", "itertools", "typing"}
    data = {"dataclasses", "enum", "functools", "types"} | typing
    assert outside <= (data if path.stem in REGISTRY else typing)
    # A flat algorithm knows of ranks that are all alike, and of no other algorithm but those whose
    # phases it is put together from.
    if path.stem in {*FLAT, *(name for flat in FAMILY.values() for name in flat)}:
        others = {"algorithms"} if path.stem in TWO_PHASES else set()
        assert own_imports(path) <= {"chunks", "schedule"} | others


def test_every_module_has_its_layer():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    there |= {f"cuda.{path.stem}" for path in (PACKAGE / "cuda").glob("*.py")}
    there -= {"__init__", "__pycache__", "cuda.__init__"}
    assert there <= set().union(*LAYERS)


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_layers_point_one_way(number):
    above = set().union(*LAYERS[number + 1 :])
    for module in sorted(LAYERS[number]):
        for path in files_of(module):
            upwards = own_imports(path) & above
            assert not upwards, f"{path.name} imports {', '.join(sorted(upwards))} from above"


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_work_without_mpi(module):
    code = (
        "import sys; sys.modules['mpi4py'] = None; "  # an import of it raises ImportError
        f"import hpccoll.{module}"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        check=True,
        timeout=60,
        capture_output=True,
    )
