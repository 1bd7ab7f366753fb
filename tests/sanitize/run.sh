#!/usr/bin/env bash
# Run the code of kernels/ under AddressSanitizer and UndefinedBehaviorSanitizer, and what ranks do in
# memory that they share under ThreadSanitizer. Called by `make sanitize`, which sets PYTHON; CC is gcc
# unless it is set to another one.
#
# All that is built is in build/sanitize, and nothing else is touched. The package there has modules of its
# own and the Python files of the checkout.
set -euo pipefail
cd "$(dirname "$0")/../.."

root=$PWD
work=$root/build/sanitize
CC=${CC:-gcc}
export CC
mkdir -p "$work"

fail() {
    echo "make sanitize: $*" >&2
    exit 1
}

# Runtimes map their shadow where older ones may find the addresses of a program that were chosen at
# random: without that there is nothing in the way.
fixed=()
setarch -R true 2>/dev/null && fixed=(setarch -R)

echo 'int main(void) { return 0; }' >"$work/probe.c"
for name in address undefined thread; do
    lib=lib$(echo "$name" | cut -c 1)san
    [ $name = undefined ] && lib=libubsan
    "$CC" "-fsanitize=$name" "$work/probe.c" -o "$work/probe_$name" 2>"$work/probe.log" ||
        fail "$CC cannot build with -fsanitize=$name; its runtime, $lib, is missing:" \
            "$(cat "$work/probe.log")"
    "${fixed[@]}" "$work/probe_$name" 2>"$work/probe.log" ||
        fail "a program with -fsanitize=$name does not run here: $(cat "$work/probe.log")"
done
# Python is not built with it, and so has to load it first.
preload=$(ldd "$work/probe_address" | awk '$1 ~ /^libasan/ { print $3 }')
[ -n "$preload" ] || fail "$CC has no libasan that can be loaded into Python; gcc has (CC=gcc)"

# Leaks are not looked for: Python has some that it means to have.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

# Ranks, and users of regions, as threads of C programs.
programs() {
    local name
    for name in node_threads region_threads; do
        "$CC" -std=c11 -O1 -g -Wall -Wextra -Werror -fno-omit-frame-pointer -pthread -Ikernels \
            "-fsanitize=$1" -fno-sanitize-recover=all "tests/sanitize/$name.c" -o "$work/$name.$1"
        echo "### $name, -fsanitize=$1"
        timeout 300 "${fixed[@]}" "$work/$name.$1" "$2" 1
    done
}

echo "### compiled modules, -fsanitize=address,undefined"
package=$work/lib/hpccoll
mkdir -p "$package"
for path in hpccoll/*; do
    case $path in *.so | *__pycache__) ;; *) ln -sfn "$root/$path" "$package/" ;; esac
done
HPCCOLL_SANITIZE=address,undefined "$PYTHON" setup.py --quiet build_ext --parallel 2 \
    --build-lib "$work/lib" --build-temp "$work/temp"

# From the folder of the package, so that no other one is found, neither by pytest nor by an interpreter
# that a test starts. With malloc in place of Python's own allocator, whose blocks have no bounds to look at.
cd "$work/lib"
sanitized() {
    "${fixed[@]}" env LD_PRELOAD="$preload" PYTHONMALLOC=malloc PYTHONPATH="$work/lib" "$PYTHON" "$@"
}
where=$(sanitized -c 'from hpccoll import _node; print(_node.__file__)')
case $where in "$package"/*) ;; *) fail "tests would run $where" ;; esac

# The programs wait much, and so run beside the tests.
(
    set -e
    cd "$root"
    programs thread 1000
    programs address,undefined 2000
) >"$work/programs.log" 2>&1 &
beside=$!

# Left out: what takes long and is in node_threads.c, with more chances for the sanitizer, or is about
# schedules; and what limits the address space, of which a shadow takes most.
tests=()
for name in kernels kernel_calls node node_family arena shared_arrays plans mismatch engine; do
    tests+=("$root/tests/unit/test_$name.py")
done
skipped="test_every_collective_design_and_size or test_long_chunks_are_read or every_count"
skipped+=" or test_every_rank_gets_the_exact_result or test_operands_keep_rank_order"
skipped+=" or test_what_travels_is or test_messages_are_counted or test_rounded_results"
skipped+=" or 50000 or addresses_allow"
wrong=()
# What a sanitizer says before it ends the process is to be seen: file descriptor 2 stays as it is.
sanitized -m pytest --quiet --capture=sys -c "$root/pyproject.toml" -p no:cacheprovider \
    -k "not ($skipped)" "$@" "${tests[@]}" || wrong+=("tests of compiled modules")
wait $beside || wrong+=("programs")
cat "$work/programs.log"
[ ${#wrong[@]} = 0 ] || fail "failed: ${wrong[*]}"
