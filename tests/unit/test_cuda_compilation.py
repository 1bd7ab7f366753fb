"""The GPU kernels compiled for GPUs, as far as that goes without one, and their cache."""

import itertools
import os
import re
import subprocess
import sys

import pytest
from kernel_requests import FAMILIES, requested, trees

from hpccoll.cuda import compilation
from hpccoll.cuda.compilation import CodeCache, NvrtcCompiler
from hpccoll.cuda.kernels import Kernels

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

ELF = b"\x7fELF"

SUM = ("pair.cu", {"OPERATION": "sum", "TYPE": "float32"})


def ptx(text, arch):
    """Compile a program as `NvrtcCompiler` does, up to the instructions that can be read."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(
        arch=arch,
        std=compilation.STANDARD,
        include_path=str(compilation.source_directory()),
        **compilation.NUMERICS,
    ).as_bytes("nvrtc", "ptx")
    error, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
    assert error == 0
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    # NVRTC stores into these bytes; one byte more, since there is one b" " for all of the process.
    log = b" " * (nvrtc.nvrtcGetProgramLogSize(program)[1] + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.decode()
    assert log.strip(b"\0 \n") == b"", log.decode()
    instructions = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, instructions)
    nvrtc.nvrtcDestroyProgram(program)
    return instructions.decode()


INEXACT = re.compile(r"fma\.|mad\.(rn|f)|div\.(full|approx)|.*\.ftz")
OTHER_NANS = re.compile(r"0f(7F[C-F]|FF[8-F])(?!00000)|0d(7FF|FFF)[8-F](?!0{12})|0f[7F]FFFFFFF")
WIDE_LOAD = re.compile(r"ld(\.global)?\.v4\.[ub]32")


def family_name(family):
    return "-".join(getattr(part, "__name__", part) for part in family)


# One generation after another: each compiles every kind of kernel, and each kernel is compiled.
@pytest.mark.limit(300)
@pytest.mark.parametrize(
    ("arch", "family"),
    [
        pytest.param(arch, family, marks=pytest.mark.slow if family[0] is trees else ())
        for family, arch in zip(FAMILIES, itertools.cycle(ARCHITECTURES))
    ],
    ids=lambda x: x if isinstance(x, str) else family_name(x),
)
def test_every_kernel_compiles_and_computes_exactly(arch, family):
    programs = requested(*family)
    instructions = ptx("".join(text for text, _ in programs), arch)
    for _, name in programs:
        assert f".entry {name}(" in instructions
    words = instructions.split()
    assert not [word for word in words if INEXACT.match(word) or OTHER_NANS.match(word)]
    assert ".local" not in words  # arrays stay in registers
    assert any(WIDE_LOAD.match(word) for word in words)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "kernel",
    [
        lambda kernels: kernels.pair("sum", "float32"),
        lambda kernels: kernels.many("sum", "bfloat16"),
        lambda kernels: kernels.finish("float16", narrow=True),
        lambda kernels: kernels.copy_many(),
        lambda kernels: kernels.view(8),
    ],
    ids=["pair", "many", "finish", "copy_many", "view"],
)
def test_code_for_a_device(arch, kernel, tmp_path):
    pytest.importorskip("cuda.core")
    device = Device(arch)
    kernel(Kernels(device, NvrtcCompiler(CodeCache(tmp_path))))
    assert device.code.startswith(ELF)
    assert device.name.encode() in device.code


class Device:
    def __init__(self, arch):
        self.arch = arch

    def load_module(self, code):
        self.code = code
        return 1

    def function(self, module, name):
        self.name = name
        return 2


def test_a_device_that_nvrtc_does_not_know():
    pytest.importorskip("cuda.core")
    with pytest.raises(RuntimeError, match="could not be compiled for sm_1"):
        NvrtcCompiler(CodeCache(None)).compile(*SUM, "sm_1")


# --- the cache ------------------------------------------------------------------------------------


@pytest.fixture
def compilations(monkeypatch):
    """Count what is compiled, in place of compiling it."""
    done = []

    def compile_text(text, arch, directory):
        done.append((text, arch))
        return f"code {len(done)}".encode()

    monkeypatch.setattr(compilation, "_compile", compile_text)
    monkeypatch.setattr(compilation, "_nvrtc_version", lambda: (13, 5))
    return done


def test_code_is_compiled_once(compilations, tmp_path):
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        assert NvrtcCompiler(CodeCache(folder)).compile(*SUM, "sm_90") == b"code 1"
    assert len(compilations) == 1
    assert [path.suffix for path in folder.iterdir()] == [".cubin"]  # nothing temporary is left


def test_what_code_depends_on(compilations, tmp_path, monkeypatch):
    cache = CodeCache(tmp_path)

    def compile_with(arch="sm_90", **defines):
        before = len(compilations)
        NvrtcCompiler(cache).compile("pair.cu", {**SUM[1], **defines}, arch)
        return len(compilations) - before

    assert compile_with() == 1
    assert compile_with() == 0
    assert compile_with(OPERATION="prod") == 1
    assert compile_with(arch="sm_80") == 1
    monkeypatch.setattr(compilation, "_nvrtc_version", lambda: (13, 6))
    assert compile_with() == 1
    monkeypatch.setitem(compilation.NUMERICS, "fma", True)
    assert compile_with() == 1
    monkeypatch.setattr(compilation, "sources_digest", lambda directory: b"edited")
    assert compile_with() == 1
    assert compile_with() == 0


def test_all_sources_count(tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "half.h").write_text("1")
    (tmp_path / "cuda" / "pair.cu").write_text("2")
    digests = {compilation.sources_digest(tmp_path)}
    (tmp_path / "half.h").write_text("3")
    digests.add(compilation.sources_digest(tmp_path))
    (tmp_path / "cuda" / "pair.cu").write_text("4")
    digests.add(compilation.sources_digest(tmp_path))
    assert len(digests) == 3


@pytest.mark.parametrize(
    "damage", [lambda code: code[:-1], lambda code: b"", lambda code: code[::-1]]
)
def test_damaged_code_is_compiled_again(compilations, tmp_path, damage):
    compiler = NvrtcCompiler(CodeCache(tmp_path))
    compiler.compile(*SUM, "sm_90")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert compiler.compile(*SUM, "sm_90") == b"code 2"
    assert compiler.compile(*SUM, "sm_90") == b"code 2"


def test_a_cache_that_cannot_be_written_is_none(compilations, tmp_path):
    (tmp_path / "file").touch()  # where a folder should be: root may write anywhere else
    compiler = NvrtcCompiler(CodeCache(tmp_path / "file"))
    assert compiler.compile(*SUM, "sm_90") == b"code 1"
    assert compiler.compile(*SUM, "sm_90") == b"code 2"


def test_a_full_disk_leaves_no_file_behind(compilations, tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fdopen", fail)
    assert NvrtcCompiler(CodeCache(tmp_path)).compile(*SUM, "sm_90") == b"code 1"
    assert list(tmp_path.iterdir()) == []


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HPCCOLL_CACHE", "off")
    assert CodeCache.default().directory is None
    monkeypatch.setenv("HPCCOLL_CACHE", str(tmp_path))
    assert CodeCache.default().directory == tmp_path
    monkeypatch.delenv("HPCCOLL_CACHE")
    pytest.importorskip("platformdirs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CodeCache.default().directory == tmp_path / "hpccoll"


def test_no_cache(compilations):
    compiler = NvrtcCompiler(CodeCache(None))
    assert [compiler.compile(*SUM, "sm_90") for _ in range(2)] == [b"code 1", b"code 2"]


# --- what is installed ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["cuda.bindings", "cuda.core", "platformdirs"])
def test_what_is_missing_is_named(missing):
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"  # an import of it raises ImportError
        "from hpccoll.cuda import compilation\n"
        "if sys.argv[1] == 'cuda.core':\n"
        "    compilation._nvrtc_version = lambda: (13, 5)\n"
        "cache = None if sys.argv[1] == 'platformdirs' else compilation.CodeCache(None)\n"
        "try:\n"
        "    compilation.NvrtcCompiler(cache).compile('copy_many.cu', {}, 'sm_90')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HPCCOLL_CACHE"}
    done = subprocess.run(
        [sys.executable, "-c", code, missing],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )
    assert "which are not there" in done.stdout
    assert 'pip install "hpccoll[cuda13]", or "hpccoll[cuda12]"' in done.stdout


def test_asking_for_kernels_imports_no_compiler():
    code = (
        "import sys\n"
        "import hpccoll.cuda.kernels, hpccoll.cuda.compilation\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'platformdirs')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_sources_are_where_they_are_looked_for():
    directory = compilation.source_directory()
    for name in ("portable.h", "half.h", "operations.h", "cuda/arguments.h", "cuda/pair.cu"):
        assert (directory / name).is_file(), name
