#!/usr/bin/env bash
# A Slurm of one node on this machine, for tests: munge, slurmctld, slurmd. Needs root and Debian's packages.
#
#     tests/cluster/slurm.sh install | start | stop
#     tests/cluster/slurm.sh with COMMAND...       all three around a command, which finds that Slurm
#
# Everything it writes is under $SLURM_TEST_DIR (default: derivedata-slurm in the folder for
# temporary files) and /run/munge.
set -euo pipefail

place=${SLURM_TEST_DIR:-${TMPDIR:-/var/tmp}/derivedata-slurm}
export SLURM_CONF=$place/slurm.conf

install() {
    command -v slurmctld >/dev/null && command -v munged >/dev/null && return
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
}

configure() {
    mkdir -p "$place/state" "$place/spool"
    local host cores memory
    host=$(hostname -s) cores=$(nproc --all) memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
MaxArraySize=1001
KillWait=30
SchedulerParameters=sched_interval=2
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=60 State=UP
CONF
}

start() {
    if scontrol ping 2>/dev/null | grep -q UP; then
        echo "slurm is up already"
        return
    fi
    configure
    mkdir -p /run/munge /var/log/munge /var/lib/munge
    chown munge:munge /run/munge /var/log/munge /var/lib/munge
    if [ ! -s /etc/munge/munge.key ]; then
        dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none
        chown munge:munge /etc/munge/munge.key && chmod 400 /etc/munge/munge.key
    fi
    munge -n >/dev/null 2>&1 || runuser -u munge -- munged
    slurmctld -c -i
    slurmd
    for _ in $(seq 60); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && { echo "slurm is up: $(sinfo -h -o '%P %D node, %c cores')"; return; }
        sleep 0.5
    done
    echo "slurm did not come up: see $place/slurmctld.log and $place/slurmd.log" >&2
    return 1
}

stop() {
    for daemon in slurmd slurmctld; do
        [ -s "$place/$daemon.pid" ] && kill "$(cat "$place/$daemon.pid")" 2>/dev/null || true
    done
}

with() {
    install
    start
    trap stop EXIT
    "$@"
}

"$@"
