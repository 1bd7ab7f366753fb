"""From the sources of a kernel to device code: NVRTC, and a cache on disk.

The cache is a folder of files, each named by a digest of all that its contents depend on. It is
`platformdirs`' cache folder for hpccoll, or the folder that the environment variable
``HPCCOLL_CACHE`` names; ``HPCCOLL_CACHE=off`` is for none. (cuda.core has a cache, too. It hands
out whatever a file holds, and raises where its folder cannot be written to; here neither may end a
collective, on one rank of many.)
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "HPCCOLL_CACHE"

NUMERICS = {"fma": False, "ftz": False, "prec_div": True}
"""Options of `cuda.core.ProgramOptions`: to the last bit as on the CPU, so nothing is contracted to
a fused multiply-add, subnormal numbers are kept, and division is exact."""

STANDARD = "c++17"

NEEDED = (
    "GPU kernels are compiled by cuda.core and NVRTC, which are not there ({}). Install them with "
    'pip install "hpccoll[cuda13]", or "hpccoll[cuda12]" where the driver is one of CUDA 12'
)

_DIGEST_BYTES = hashlib.sha256().digest_size


def source_directory() -> Path:
    """Return the folder of the kernels' sources.

    In an installation they are beside this file, in a checkout in ``kernels/``.
    """
    installed = Path(__file__).parent / "source"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "kernels"


def program_text(source_name: str, defines: Mapping[str, str]) -> str:
    """Return a program that includes a source file once.

    Texts may be joined to a program with several kernels.

    Parameters
    ----------
    source_name : str
        A file in ``kernels/cuda/``.
    defines : mapping of str to str
        Macros that are defined for it.
    """
    before = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    after = "".join(f"#undef {name}\n" for name in defines)
    return f'{before}#include "cuda/{source_name}"\n{after}'


def sources_digest(directory: Path) -> bytes:
    """Return a digest of all sources that a program can include.

    Parameters
    ----------
    directory : Path
        As from `source_directory`.
    """
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.h"), *directory.glob("cuda/*")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(directory)} {len(content)}\n".encode())
        digest.update(content)
    return digest.digest()


class CodeCache:
    """Device code on disk. What cannot be read or written is no error: then there is no code.

    Parameters
    ----------
    directory : Path or None
        Where the files are; made when it is first written to. None for no cache.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    @classmethod
    def default(cls) -> "CodeCache":
        """Return the cache that the environment asks for."""
        wanted = os.environ.get(CACHE_VARIABLE, "")
        if wanted == "off":
            return cls(None)
        if wanted:
            return cls(Path(wanted))
        try:
            import platformdirs
        except ImportError as error:
            raise ImportError(NEEDED.format(error)) from error
        return cls(Path(platformdirs.user_cache_dir("hpccoll")))

    def read(self, key: str) -> bytes | None:
        """Return the code that was written under a key; None if there is none that is whole.

        Parameters
        ----------
        key : str
            Hexadecimal digits.
        """
        if self.directory is None:
            return None
        try:
            content = self._path(self.directory, key).read_bytes()
        except OSError:
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return code if hashlib.sha256(code).digest() == digest else None

    def write(self, key: str, code: bytes) -> None:
        """Keep code under a key. Readers, in whatever process, see all of it or nothing.

        Parameters
        ----------
        key : str
            As for `read`.
        code : bytes
            What to keep.
        """
        if self.directory is None:
            return
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.directory)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                Path(name).replace(self._path(self.directory, key))
            except OSError:
                Path(name).unlink()

    @staticmethod
    def _path(directory: Path, key: str) -> Path:
        return directory / f"{key}.cubin"


class NvrtcCompiler:
    """Compiles kernels for a device by NVRTC, or takes them from the cache.

    Parameters
    ----------
    cache : CodeCache, optional
        Where code is kept; by default as the environment says.

    Raises
    ------
    ImportError
        cuda.core or NVRTC is not installed.
    """

    def __init__(self, cache: CodeCache | None = None) -> None:
        self.cache = CodeCache.default() if cache is None else cache
        self._directory = source_directory()
        self._version = _nvrtc_version()
        self._digest = sources_digest(self._directory)

    def compile(self, source_name: str, defines: Mapping[str, str], arch: str) -> bytes:
        """Return the code of a kernel.

        Parameters
        ----------
        source_name : str
            A file in ``kernels/cuda/``.
        defines : mapping of str to str
            Macros that choose the kernel.
        arch : str
            Of the device: "sm_90".

        Returns
        -------
        bytes
            A cubin.

        Raises
        ------
        RuntimeError
            NVRTC refuses it, or does not know the device.
        """
        return self.compile_text(program_text(source_name, defines), arch)

    def compile_text(self, text: str, arch: str) -> bytes:
        """Return the code of a program, which may include the sources; as `compile`.

        Parameters
        ----------
        text : str
            In CUDA C++.
        arch : str
            Of the device.
        """
        key = self._key(text, arch)
        code = self.cache.read(key)
        if code is None:
            code = _compile(text, arch, self._directory)
            self.cache.write(key, code)
        return code

    def _key(self, text: str, arch: str) -> str:
        options = f"{sorted(NUMERICS.items())} {STANDARD} {self._version} {arch}\n"
        return hashlib.sha256(self._digest + options.encode() + text.encode()).hexdigest()


def _nvrtc_version() -> tuple[int, int]:
    # Not cuda.core, whose import takes a second: with the code in the cache there is no need.
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # a library that is not found is a RuntimeError
        raise ImportError(NEEDED.format(error)) from error
    return int(major), int(minor)


def _compile(text: str, arch: str, directory: Path) -> bytes:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise ImportError(NEEDED.format(error)) from error
    options = ProgramOptions(arch=arch, std=STANDARD, include_path=str(directory), **NUMERICS)
    try:
        return bytes(Program(text, "c++", options).compile("cubin").code)
    except Exception as error:
        message = f"a GPU kernel could not be compiled for {arch}: {error}\n{text}"
        raise RuntimeError(message) from error
