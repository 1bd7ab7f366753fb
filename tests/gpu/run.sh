#!/usr/bin/env bash
# All that needs a GPU, in one go and within eight minutes: tests of kernels and collectives, stress of
# streams, arrays of other libraries, figures. `make test-gpu` runs it.
#
#   tests/gpu/run.sh [--only STEP,STEP] [FOLDER]
#   tests/gpu/run.sh --list
#
# FOLDER holds wheels, as from `make gpu-wheels`: nothing is downloaded then, and what is not in it comes
# from the packages of the python3 that is used (PYTHON is another one), which must have numpy, cuda.core
# and NVRTC. Without a folder pip installs what is missing. All goes to the standard output, and nothing
# stays but the compiled modules. Exits with 1 if a step failed, with 2 if an option is wrong.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON=${PYTHON:-python3}
LIMIT=${HPCCOLL_GPU_SECONDS:-470}

STEPS=(environment device build compile kernels ranks-2 arrays torch cupy numba jax
    bandwidth mapped staged named streams ranks-4)

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
}

refuse() {
    echo "run.sh: $*" >&2
    exit 2
}

wheels=
only=
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --list)
        printf '%s\n' "${STEPS[@]}"
        exit 0
        ;;
    --only)
        [ $# -gt 1 ] || refuse "--only needs the names of steps: ${STEPS[*]}"
        only=,$2,
        for name in ${2//,/ }; do
            case " ${STEPS[*]} " in *" $name "*) ;; *) refuse "unknown step '$name'; wanted ${STEPS[*]}" ;; esac
        done
        shift
        ;;
    -*) refuse "unknown option '$1'; see --help" ;;
    *)
        [ -z "$wheels" ] || refuse "one folder of wheels, not '$wheels' and '$1'"
        wheels=$1
        ;;
    esac
    shift
done
if [ -n "$wheels" ]; then
    compgen -G "$wheels/*.whl" >/dev/null || refuse "there are no wheels in '$wheels'"
    wheels=$(cd "$wheels" && pwd)
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
mkdir "$work/results"
tree=$root
if [ ! -w "$root/hpccoll" ]; then
    tree=$work/tree
    mkdir "$tree"
    (cd "$root" && cp -r hpccoll kernels tests bench setup.py pyproject.toml README.md LICENSE "$tree") || exit 1
    chmod -R u+w "$tree"
fi
py=$work/venv/bin/python

# What a user has set for collectives would change what is tested.
unset HPCCOLL_ALGORITHM HPCCOLL_CUDA HPCCOLL_CUDA_IPC HPCCOLL_CUDA_REDUCE HPCCOLL_NODES HPCCOLL_NODE
unset HPCCOLL_CHECK HPCCOLL_TIMEOUT HPCCOLL_KERNEL
export HPCCOLL_CACHE=$work/cache PYTHONPATH=$tree:$tree/tests PYTHONUNBUFFERED=1
export HPCCOLL_BUILD_JOBS
HPCCOLL_BUILD_JOBS=$(nproc)
export XLA_PYTHON_CLIENT_PREALLOCATE=false # ranks share the device
# The python3 in use may have plugins that know nothing of ranks.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

# Whether a step is to run; nothing runs without the first ones.
is_wanted() {
    case $1 in environment | device | build) return 0 ;; esac
    [ -z "$only" ] || [[ $only == *,$1,* ]]
}

# step NAME SECONDS COMMAND...: run it, print what it printed in one piece, note how it went.
step() {
    local name=$1 limit=$2 left=$((LIMIT - SECONDS)) status=0 started=$SECONDS
    shift 2
    is_wanted "$name" || return 0
    if [ $left -lt 5 ]; then
        echo "not run, no time is left|0" >"$work/results/$name"
        return 1
    fi
    [ "$limit" -le $left ] || limit=$left
    (cd "$tree" && exec timeout --kill-after=10 "$limit" "$@") </dev/null >"$work/$name.log" 2>&1 || status=$?
    local said="failed, status $status"
    case $status in
    0) said=ok ;;
    5) [ -z "${OPTIONAL:-}" ] || said="nothing to run" ;; # of pytest
    124 | 137) said="failed, not over after $limit s" ;;
    esac
    printf '\n### %s: %s\n%s\n### %s: %s, %d s\n' \
        "$name" "${*//"$work/venv/bin/"/}" "$(cat "$work/$name.log")" "$name" "$said" $((SECONDS - started))
    echo "$said|$((SECONDS - started))" >"$work/results/$name"
    return $status
}

ranks() { # ranks NAME SECONDS NUMBER COMMAND...
    local name=$1 limit=$2 number=$3
    shift 3
    step "$name" "$limit" "$work/venv/bin/mpiexec" -n "$number" "$@"
}

PYTEST=("$py" -m pytest -q -p pytest_mpi -o required_plugins= -p no:cacheprovider)
export HPCCOLL_TEST_GPU=1

finish() {
    local name failed=0 said seconds
    printf '\n'
    grep -h '^bar: ' "$work"/*.log 2>/dev/null
    printf '\n%-12s %8s  %s\n' step seconds result
    for name in "${STEPS[@]}"; do
        if [ -e "$work/results/$name" ]; then
            IFS='|' read -r said seconds <"$work/results/$name"
        else
            is_wanted "$name" || continue
            said="not run" seconds=0
        fi
        [[ $said == ok || $said == nothing* ]] || failed=1
        printf '%-12s %8s  %s\n' "$name" "$seconds" "$said"
    done
    printf '%-12s %8s\n' all "$SECONDS"
    exit $failed
}

step environment 240 bash tests/gpu/environment.sh "$PYTHON" "$work/venv" "$tree" "$wheels" || finish
step device 60 "$py" tests/gpu/describe.py || finish
step build 240 "$py" setup.py --quiet build_ext --inplace --parallel "$HPCCOLL_BUILD_JOBS" || finish
step compile 90 "$py" tests/gpu/compile_kernels.py --seconds 40

# Correct or not, whatever else the device does at the same time. A line of steps in the background each.
step kernels 150 "${PYTEST[@]}" tests/unit/test_cuda_{kernels,copies}.py tests/gpu/test_kernels_on_device.py &
kernels=$!
(cd "$tree" && ls tests/mpi/test_cuda*.py | grep -v test_cuda_libraries.py) >"$work/files"
mapfile -t files <"$work/files"
ranks ranks-2 180 2 "${PYTEST[@]}" --with-mpi "${files[@]}" &
ranks_2=$!
for library in Own:arrays Torch:torch CuPy:cupy Numba:numba Jax:jax; do
    OPTIONAL=1 ranks "${library#*:}" 60 2 "${PYTEST[@]}" --with-mpi -rs -k "${library%:*}" tests/mpi/test_cuda_libraries.py
done
wait $kernels $ranks_2

# Figures: nothing else runs.
BENCH=("$py" -m hpccoll bench allreduce --device cuda --seconds 0.5 --quiet)
step bandwidth 60 "$py" tests/gpu/bandwidth.py
ranks mapped 90 2 "${BENCH[@]}" -a auto --both -b 4K -e 256M -f 4 --json "$work/mapped.json"
HPCCOLL_CUDA_IPC=off ranks staged 90 2 "${BENCH[@]}" -a auto --both -b 4K -e 256M -f 4 --json "$work/staged.json"
ranks named 60 2 "${BENCH[@]}" -b 64K -e 64M -f 32
for name in mapped staged; do
    [ ! -e "$work/$name.json" ] || "$py" "$tree/tests/gpu/bars.py" "$name" "$work/$name.json" | tee -a "$work/$name.log"
done

ranks streams 120 2 "${PYTEST[@]}" --with-mpi tests/gpu/test_stream_order.py &
streams=$!
ranks ranks-4 150 4 "${PYTEST[@]}" --with-mpi "${files[@]}" &
wait $streams $!
finish
