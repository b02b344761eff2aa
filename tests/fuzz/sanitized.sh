#!/usr/bin/env bash
# The native parts built for the address and undefined-behaviour sanitizers, beside the plain ones, and what runs on them.
#
#   tests/fuzz/sanitized.sh test             the tests of the native parts, and whether memory is given back
#   tests/fuzz/sanitized.sh fuzz SECONDS     two fuzzers at once; what they find is kept in build/fuzz
#   tests/fuzz/sanitized.sh check FILE...    inputs that were found before
#
# PYTHON is that of the environment that `make setup` made. Needs gcc, its libasan, and libjpeg-turbo's headers.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
site=build/sanitized
atheris='atheris>=3,<4'
tests=(tests/sharding/test_{transcode,addressable,smaller_jpegs,jpeg_places,ranges,native_order}.py tests/loader/test_{row_,}kernel*.py)
preloading=tests/loader/test_kernel_versions.py # starts Python with another library preloaded than the sanitizer's

leave_out() {
    echo "$1: left out, since $2" >&2
    exit 0
}

build() {
    local asan
    command -v gcc > /dev/null || leave_out "$1" "there is no gcc"
    asan=$(gcc -print-file-name=libasan.so)
    [[ $asan == /* ]] || leave_out "$1" "gcc has no libasan (Debian: apt install gcc)"
    printf '%s\n' '#include <Python.h>' '#include <stdio.h>' '#include <jpeglib.h>' |
        gcc -E -x c -I "$($python -c 'import sysconfig; print(sysconfig.get_path("include"))')" - > /dev/null 2>&1 ||
        leave_out "$1" "Python's or libjpeg-turbo's headers are missing (Debian: apt install python3-dev libjpeg62-turbo-dev)"
    rm -rf "$site"
    FOREBAY_SANITIZE=1 FOREBAY_NATIVE=1 $python -m pip install --quiet --no-deps --target "$site" .
    gcc -O2 -Wall -Wextra -shared -fPIC -o "$site/coverage.so" tests/fuzz/coverage.c
    preload="$asan $(gcc -print-file-name=libstdc++.so.6) $PWD/$site/coverage.so" # C++ throws through the sanitizer
}

# Python with the sanitized parts: found before the installed package, and every allocation the sanitizer's. A fault is
# the sanitizer's to report, not pytest's; leaks are looked for by `run.py --repeat`, as Python itself gives little back.
run() {
    PYTHONSAFEPATH=1 PYTHONPATH="$site:.${more:+:$more}" PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 \
        ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=0:allocator_may_return_null=1 \
        UBSAN_OPTIONS=print_stacktrace=1 LD_PRELOAD="$preload" "$python" "$@"
}

case ${1:-} in
test)
    build "make sanitize"
    run -c "
import sys, forebay.loader._kernel as kernel, forebay.loader._rows as rows
from forebay.sharding import _order, _ranges, _segments, _transcode
sys.exit(not all('$site' in module.__file__ for module in (kernel, rows, _order, _ranges, _segments, _transcode)) and 'the plain native parts were imported')"
    run -m pytest --deselect "$preloading" "${tests[@]}"
    run -m tests.fuzz.run --repeat
    ;;
fuzz)
    build "make fuzz"
    seconds=${2:-60} seed=${SEED:-$(date +%s)} failed=0 fuzzers=()
    if $python -m pip install --quiet --no-deps --only-binary :all: --target "$site/atheris" "$atheris"; then
        more=$site/atheris
    else
        echo "make fuzz: no atheris for this Python: fuzzing without knowing which branches are taken" >&2
    fi
    mkdir -p build/fuzz
    for fuzzer in 0 1; do
        run -m tests.fuzz.run --seconds "$seconds" --seed $((seed + fuzzer)) > "build/fuzz/log-$fuzzer" 2>&1 &
        fuzzers+=($!)
    done
    for fuzzer in 0 1; do
        if wait "${fuzzers[$fuzzer]}"; then
            grep -aE '^fuzz: |^stat::number' "build/fuzz/log-$fuzzer"
        else
            failed=1
            tail -n 60 "build/fuzz/log-$fuzzer"
        fi
    done
    [[ $failed == 0 ]] || echo "make fuzz: found something; see above, and build/fuzz for the input" >&2
    exit $failed
    ;;
check)
    build "make fuzz"
    run -m tests.fuzz.run "${@:2}"
    ;;
*)
    echo "usage: tests/fuzz/sanitized.sh test | fuzz SECONDS | check FILE..." >&2
    exit 2
    ;;
esac
