"""Compile a C++ source of the folder `sources` once, and load it.

The shared library is kept in the user's cache folder. Its name depends on the source, its headers, the flags, the
compiler, the processor and its own content, so a stale, foreign or damaged one is never loaded. Matrix products come
from the BLAS inside PyTorch's own library. Their entry points are passed as pointers, so there is nothing to link and
no second thread pool.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchbayes.native import cache

ENVIRONMENT = "TORCHBAYES_NATIVE"
SOURCES = Path(__file__).with_name("sources")
DTYPES = (torch.float32, torch.float64)
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
# Normal numbers must be the same bits on every processor, so products and sums are rounded one by one.
_FLAGS_OF = {"mean_field": ("-ffp-contract=off",), "noise": ("-ffp-contract=off",)}


class UnavailableError(RuntimeError):
    """Kernels cannot be built or run here; the message says why."""


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """Return the compiled library of `NAME.cpp`, with the routines its source asks for passed to it.

    These are matrix products (`use_blas`), and the normal numbers of the library "noise" (`use_normals`), which is
    compiled without contraction. Raises an UnavailableError if kernels are switched off, there is no compiler or no
    needed BLAS, or the compiler fails.
    """
    if os.environ.get(ENVIRONMENT) == "0":
        raise UnavailableError(f"kernels are switched off by {ENVIRONMENT}=0")
    source = SOURCES / f"{name}.cpp"
    text = source.read_text()
    blas = _blas() if "void use_blas(" in text else None
    path = _compiled(source)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # for example if machines with other system libraries share the folder
        path.unlink(missing_ok=True)
        raise UnavailableError(f"{path} could not be loaded and was removed: {error}") from error
    if blas is not None:
        library.use_blas.argtypes = [ctypes.c_void_p] * len(blas)
        library.use_blas(*blas)
    if "void use_normals(" in text:
        noise = load("noise")
        routines = [_address(routine) for routine in (noise.normals_float32, noise.normals_float64)]
        library.use_normals.argtypes = [ctypes.c_void_p] * len(routines)
        library.use_normals(*routines)
    return library


def typed(name: str, arguments: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL | None:
    """Return the compiled library of `NAME.cpp`, or None, with argument types set for functions that return nothing.

    A function that the library does not have under its own name exists in float32 and in float64.
    """
    try:
        library = load(name)
    except UnavailableError:
        return None
    for function, kinds in arguments.items():
        for entry in [function] if hasattr(library, function) else [suffixed(function, dtype) for dtype in DTYPES]:
            getattr(library, entry).restype, getattr(library, entry).argtypes = None, kinds
    return library


def suffixed(function: str, dtype: torch.dtype) -> str:
    """Return the name that a function has for a dtype."""
    return f"{function}_{str(dtype).removeprefix('torch.')}"


def available() -> bool:
    """Return whether kernels can be built and run here."""
    try:
        load("dense")
    except UnavailableError:
        return False
    return True


def _blas() -> list[int | None]:
    """Return the addresses of two matrix products and of the function that sets their threads, in PyTorch's library."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not torch.backends.mkl.is_available() or not path.exists():
        raise UnavailableError("this build of PyTorch has no MKL")
    torch_library = ctypes.CDLL(str(path))
    try:
        routines = torch_library.sgemm_, torch_library.dgemm_, torch_library.MKL_Set_Num_Threads_Local
    except AttributeError as error:
        raise UnavailableError("this build of PyTorch does not export its matrix products") from error
    return [_address(routine) for routine in routines]


def _address(routine: Any) -> int | None:
    return ctypes.cast(routine, ctypes.c_void_p).value


def _compiled(source: Path) -> Path:
    """Return the path of the shared library, compiling it if it is not there yet.

    Raises an UnavailableError if there is no compiler, it fails, or there is nowhere to write.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise UnavailableError("there is no C++ compiler; install g++ or clang++")
    flags = [*_FLAGS, *_FLAGS_OF.get(source.stem, ())]
    key = hashlib.sha256("\n".join([*_texts(source), *flags, compiler, _processor()]).encode()).hexdigest()[:16]

    def compile_to(path: Path) -> None:
        command = [*compiler.split(), *flags, str(source), "-o", str(path)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise UnavailableError(f"{compiler} could not be started: {error.strerror}") from error
        if run.returncode:
            raise UnavailableError(f"{compiler} could not compile {source.name}: {run.stderr.strip()[:500]}")

    try:
        return cache.library(f"{source.stem}-{key}", compile_to)
    except OSError as error:
        raise UnavailableError(f"kernels cannot be kept: {error}") from error


def _texts(source: Path) -> list[str]:
    """Return the text of a source, and of the headers of its folder if it includes any."""
    text = source.read_text()
    headers = sorted(source.parent.glob("*.hpp")) if '#include "' in text else []
    return [text, *(header.read_text() for header in headers)]


def _processor() -> str:
    """Return an identification of the processor, because code for one may not run on another that shares the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() + platform.machine()
