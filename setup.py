"""Builds the native parts, on libjpeg-turbo and xxHash's header; everything else stands in pyproject.toml.

They are optional: without a compiler or libjpeg's headers they are left out with one line that says so, and forebay
takes its library path. If one of them does not build, the others are kept. The environment decides:

FOREBAY_NATIVE=0 leaves them out, FOREBAY_NATIVE=1 makes their absence an error (wheels are built so), and auto is the
default. FOREBAY_STATIC=1 links libjpeg.a, built with -fPIC, into them, so that a wheel needs no library beside it.
FOREBAY_SANITIZE=1 builds them for the address and undefined-behaviour sanitizers and counts the branches taken, for the
fuzzer: `tests/fuzz/coverage.c` has to be preloaded.
CPPFLAGS, CFLAGS and LDFLAGS say where another libjpeg-turbo lies (-I, -L).
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError, ExecError, LinkError, OptionError

_PROBE = """
#include <Python.h>
#include <stdio.h>
#include <jpeglib.h>
#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "libjpeg-turbo 2.0 or newer is needed"
#endif
int main(void) {
    struct jpeg_decompress_struct d;
    jpeg_create_decompress(&d);
    return (int)jpeg_skip_scanlines(&d, 0);
}
"""
_SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]
_FAILURES = (BaseError, CCompilerError, OSError)
_INSTALL = (
    "for decoding twice as fast install a C compiler and libjpeg-turbo's headers (Debian: gcc python3-dev "
    "libjpeg62-turbo-dev; Fedora: gcc python3-devel libjpeg-turbo-devel) and install forebay again"
)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def _say(what: str) -> None:
    sys.stderr.write(f"forebay: {what}\n")


def _native() -> str:
    wanted = os.environ.get("FOREBAY_NATIVE") or "auto"
    if wanted not in ("0", "1", "auto"):
        raise OptionError(f"FOREBAY_NATIVE={wanted}: give 0 (without native parts), 1 (not without them) or auto")
    return wanted


class OptionalBuild(build_ext):
    """Builds the extensions where that is possible, else says in one line why not."""

    def run(self) -> None:
        """As setuptools, as far as the environment and the machine allow."""
        self.force = True  # what lies in build/ may be of another setting
        wanted = _native()
        for extension in self.extensions:
            extension.optional = wanted != "1"
        self._in_source = bool(self.inplace)
        if wanted == "0":
            self._leave_out_all()
            return
        try:
            self._probe()
        except _FAILURES as error:
            if wanted == "1":
                raise
            _say(f"the native parts were left out, since {error}; {_INSTALL}")
            self._leave_out_all()
            return
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """As setuptools, but a failure leaves out this one alone."""
        try:
            super().build_extension(ext)
        except _FAILURES:
            if not ext.optional:
                raise
            _say(f"the native part {ext.name} was left out, since it did not build; the compiler's reasons stand above")
            self._remove_built(ext)

    def _leave_out_all(self) -> None:
        for extension in self.extensions:
            self._remove_built(extension)
        self.extensions = []

    def _remove_built(self, extension: Extension) -> None:
        """So that none of an earlier build stays in the place of one that is left out."""
        Path(self.build_lib, self.get_ext_filename(extension.name)).unlink(missing_ok=True)
        if self._in_source:
            inplace, self.inplace = self.inplace, True
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.inplace = inplace

    def _probe(self) -> None:
        """Compile and link a program of a few lines, as the extensions will be."""
        from distutils.ccompiler import new_compiler  # setuptools' own, also where Python has none
        from distutils.sysconfig import customize_compiler

        compiler = new_compiler()
        customize_compiler(compiler)
        name, like = compiler.compiler[0], self.extensions[0]
        if shutil.which(name) is None:
            raise ExecError(f"there is no C compiler: {name}")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(_PROBE)
            try:
                objects = compiler.compile([str(source)], output_dir=folder, include_dirs=self.include_dirs)
            except _FAILURES as error:
                raise CompileError(f"{name} finds no Python.h, or no jpeglib.h of libjpeg-turbo") from error
            try:
                compiler.link_executable(
                    objects,
                    str(Path(folder, "probe")),
                    libraries=like.libraries,
                    library_dirs=self.library_dirs,
                    extra_postargs=like.extra_link_args,
                )
            except _FAILURES as error:
                raise LinkError(f"{name} cannot link libjpeg-turbo") from error


def _xxhash_folder() -> list[str]:
    """Where pyarrow has xxHash's header, for machines without one of their own."""
    try:
        import pyarrow
    except ImportError:
        return []
    return [str(Path(pyarrow.get_include(), "arrow", "vendored", "xxhash"))]


def _extension(name: str, source: str, *, jpeg: bool = True) -> Extension:
    sanitize, static, linux = _is_set("FOREBAY_SANITIZE"), _is_set("FOREBAY_STATIC"), sys.platform == "linux"
    compile_args = ["-std=c11", "-Wall", "-Wextra", "-pthread", "-fvisibility=hidden"]
    link_args = ["-pthread"]
    if static and jpeg:
        link_args += ["-l:libjpeg.a", "-lm"]
    if linux:  # a libjpeg inside is ours alone: other packages bring theirs into the same process
        link_args += ["-Wl,--exclude-libs,ALL"]
    if sanitize:
        compile_args += [*_SANITIZE, "-fsanitize-coverage=trace-pc"]
        link_args += _SANITIZE[:1]
    else:
        compile_args += ["-O3"]
    return Extension(
        name,
        [source],
        depends=sorted(map(str, Path(source).parent.glob("*.h"))),
        include_dirs=_xxhash_folder(),
        libraries=[] if static or not jpeg else ["jpeg", "m"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if _ABI3 else [],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        py_limited_api=_ABI3,
    )


_ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")  # a free-threaded Python has no stable ABI yet

setup(
    ext_modules=[
        _extension("forebay.loader._kernel", "loader/native/kernel.c"),
        _extension("forebay.loader._rows", "loader/native/rows.c", jpeg=False),
        _extension("forebay.sharding._transcode", "sharding/_transcode.c"),
        _extension("forebay.sharding._ranges", "sharding/_ranges.c", jpeg=False),
        _extension("forebay.sharding._segments", "sharding/_segments.c", jpeg=False),
        _extension("forebay.sharding._order", "sharding/_order.c", jpeg=False),
    ],
    cmdclass={"build_ext": OptionalBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if _ABI3 else {},
)
