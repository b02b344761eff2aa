"""Builds the two native parts, on libjpeg-turbo; everything else stands in pyproject.toml.

They are optional: without a compiler or libjpeg's headers they are left out with one line that says so, and forebay
takes its library path. FOREBAY_NATIVE=0 leaves them out, FOREBAY_NATIVE=1 makes their absence an error (wheels are built
so), FOREBAY_SANITIZE=1 builds them for the address and undefined-behaviour sanitizers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, ExecError, LinkError, PlatformError

_PROBE = """
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


class OptionalBuild(build_ext):
    """Builds the extensions where that is possible, else says in one line why not."""

    def run(self) -> None:
        wanted = os.environ.get("FOREBAY_NATIVE", "auto")
        if wanted == "0":
            self.extensions = []
            return
        try:
            self._probe()
            super().run()
        except (CCompilerError, CompileError, LinkError, ExecError, PlatformError, OSError) as error:
            if wanted == "1":
                raise
            self.extensions = []
            sys.stderr.write(
                f"forebay: the native kernel was left out ({type(error).__name__}: {error}); for decoding twice as "
                "fast install a C compiler and libjpeg-turbo's headers (Debian: gcc libjpeg62-turbo-dev; Fedora: gcc "
                "libjpeg-turbo-devel) and install forebay again\n"
            )

    def _probe(self) -> None:
        from setuptools._distutils.ccompiler import new_compiler
        from setuptools._distutils.sysconfig import customize_compiler

        compiler = new_compiler()
        customize_compiler(compiler)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.c"
            source.write_text(_PROBE)
            objects = compiler.compile([str(source)], output_dir=folder, include_dirs=self.include_dirs)
            compiler.link_executable(
                objects, str(Path(folder) / "probe"), libraries=["jpeg"], library_dirs=self.library_dirs
            )


def _extension(name: str, source: str, depends: list[str]) -> Extension:
    sanitize = os.environ.get("FOREBAY_SANITIZE") == "1"
    return Extension(
        name,
        [source],
        depends=depends,
        libraries=["jpeg", "m"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-pthread", *(_SANITIZE if sanitize else ["-O3"])],
        extra_link_args=["-pthread", *(_SANITIZE[:1] if sanitize else [])],
        py_limited_api=True,
    )


setup(
    ext_modules=[
        _extension(
            "forebay.loader._kernel",
            "loader/native/kernel.c",
            [f"loader/native/{name}.h" for name in ("header", "memory", "resize", "scan")],
        ),
        _extension("forebay.sharding._transcode", "sharding/_transcode.c", []),
    ],
    cmdclass={"build_ext": OptionalBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
