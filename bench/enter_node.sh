#!/bin/sh
# Enter a node of bench/cluster.py: its network, host name, shared memory and processes.
#
# mpiexec calls this as it would call ssh: [options] address words of a command.
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
node=node$((${1##*.} - 1))
shift
PATH="$PATH:/usr/sbin:/sbin"
exec ip netns exec "$BENCH_CLUSTER-$node" \
    unshare --uts --ipc --pid --fork --kill-child --mount-proc /bin/sh -c \
    "hostname $node && mount -t tmpfs shm /dev/shm && exec $*"
