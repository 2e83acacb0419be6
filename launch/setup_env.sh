# Sets up a node's shell before a job: CANN, log folder, HCCL, threads, limits. To be sourced, in bash:
#   source launch/setup_env.sh              says what it sets
#   source launch/setup_env.sh --explain    and why, and what it leaves alone
#   source launch/setup_env.sh --quiet      says nothing
# What is set already stays as it is. Source it again after changing something: unset the variable first.
#   MSPARALLEL_ASCEND_ROOT  where CANN and the driver are (default /usr/local/Ascend, then ~/Ascend)
#   MSPARALLEL_LOG_DIR      folder of the logs (default ./output/ascend_log)
# `msparallel doctor` checks what came out. Not yet run on hardware.

if [ -z "${BASH_VERSION:-}" ]; then
    echo "setup_env: this is for bash, and another shell read it (sh and dash have no arrays). Start bash first." >&2
    return 2 2>/dev/null || exit 2
fi
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    echo "setup_env: what it sets would be gone with this process. Source it: source ${BASH_SOURCE[0]}" >&2
    exit 2
fi

_msparallel_say() { [ "$_msparallel_mode" = "--quiet" ] || echo "setup_env: $*" >&2; }
_msparallel_why() { [ "$_msparallel_mode" != "--explain" ] || echo "           $*" >&2; }

# $1 name, $2 value, $3 why. A variable that is there, be it empty, is the user's.
_msparallel_set() {
    if [ -n "${!1+x}" ]; then
        _msparallel_say "$1=${!1} (as it was)"
        return 0
    fi
    export "$1=$2"
    _msparallel_say "$1=$2"
    _msparallel_why "$3"
}

# The first of CANN's set_env.sh: 8.5 and later are in cann/, earlier ones in ascend-toolkit/.
_msparallel_find_cann() {
    local root found
    for root in "${MSPARALLEL_ASCEND_ROOT:-/usr/local/Ascend}" "${HOME:-/root}/Ascend"; do
        for found in "$root/cann/set_env.sh" "$root/ascend-toolkit/set_env.sh" \
            "$(ls -d "$root"/cann-[0-9]*/set_env.sh 2>/dev/null | sort -V | tail -n 1)"; do
            if [ -n "$found" ] && [ -r "$found" ]; then
                echo "$found"
                return 0
            fi
        done
    done
    return 1
}

_msparallel_cann() {
    if [ -n "${ASCEND_HOME_PATH:-}" ]; then
        _msparallel_say "CANN is $ASCEND_HOME_PATH (as it was)"
        return 0
    fi
    local script options="$-" code=0
    if ! script="$(_msparallel_find_cann)"; then
        _msparallel_say "no CANN under ${MSPARALLEL_ASCEND_ROOT:-/usr/local/Ascend} or ${HOME:-/root}/Ascend: nothing to source"
        _msparallel_why "Recipes of the processor need none. To name another place: export MSPARALLEL_ASCEND_ROOT=/path"
        return 0
    fi
    set +eu # set_env.sh reads variables that are not set
    # shellcheck disable=SC1090
    source "$script" >/dev/null || code=$?
    case "$options" in *u*) set -u ;; esac
    case "$options" in *e*) set -e ;; esac
    if [ "$code" -ne 0 ]; then
        _msparallel_say "$script ended with code $code: CANN may not be set up"
        return 1
    fi
    _msparallel_say "CANN from $script"
    _msparallel_why "MindSpore loads libascendcl.so and its compilers from there; without it: error 500001."
}

_msparallel_driver() {
    local root="${MSPARALLEL_ASCEND_ROOT:-/usr/local/Ascend}" folder added=""
    for folder in "$root/driver/lib64" "$root/driver/lib64/common" "$root/driver/lib64/driver"; do
        case ":${LD_LIBRARY_PATH:-}:" in
            *":$folder:"*) ;;
            *) if [ -d "$folder" ]; then
                LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
                added="yes"
            fi ;;
        esac
    done
    [ -n "$added" ] || return 0
    export LD_LIBRARY_PATH
    _msparallel_say "LD_LIBRARY_PATH has the driver's lib64"
    _msparallel_why "libascend_hal.so and libdcmi.so are there; a container mounts them and tells nobody."
}

_msparallel_logs() {
    local folder="${MSPARALLEL_LOG_DIR:-$PWD/output/ascend_log}/$(uname -n)"
    if [ -z "${ASCEND_PROCESS_LOG_PATH+x}" ] && ! mkdir -p "$folder" 2>/dev/null; then
        _msparallel_say "$folder cannot be made: plog stays in ~/ascend/log"
        return 0
    fi
    _msparallel_set ASCEND_PROCESS_LOG_PATH "$folder" \
        "plog in one folder of the job, one a host, so that \`msparallel diagnose\` finds it; by default in ~/ascend/log."
}

# The network card of the default route, from /proc/net/route: it is there where `ip` is not.
_msparallel_card() {
    local card destination rest
    while read -r card destination rest; do
        if [ "$destination" = "00000000" ]; then
            echo "$card"
            return 0
        fi
    done 2>/dev/null </proc/net/route
    return 1
}

_msparallel_hccl() {
    local card
    _msparallel_set HCCL_CONNECT_TIMEOUT 600 \
        "Ranks that compile or read a checkpoint come minutes apart; by default the first gives up after 120 s."
    if [ -n "${HCCL_IF_IP+x}" ]; then
        _msparallel_say "HCCL_IF_IP=$HCCL_IF_IP (as it was; HCCL_SOCKET_IFNAME is not asked then)"
    elif card="$(_msparallel_card)"; then
        _msparallel_set HCCL_SOCKET_IFNAME "=$card" \
            "The card of the default route. By default HCCL takes the first by name, which other hosts may not reach."
        case "${HCCL_SOCKET_IFNAME:-}" in
            =*) _msparallel_say "  the second = is HCCL's: this card alone, not every one whose name begins so" ;;
        esac
    fi
    _msparallel_why "Left to HCCL: HCCL_ALGO (it chooses by size and group), HCCL_EXEC_TIMEOUT (1836 s), HCCL_BUFFSIZE (200 MB),"
    _msparallel_why "HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE, HCCL_RDMA_* (priority 4, the usual one for RoCE)."
}

_msparallel_threads() {
    local devices cores
    devices="$(ls "${MSPARALLEL_DEV:-/dev}" 2>/dev/null | grep -c '^davinci[0-9][0-9]*$' || true)"
    [ "$devices" -gt 0 ] || return 0
    cores="$(nproc 2>/dev/null || echo 1)"
    _msparallel_set OMP_NUM_THREADS "$((cores / devices > 0 ? cores / devices : 1))" \
        "$cores cores over $devices devices; otherwise every worker starts a thread on every core."
}

# Soft limits up to the hard ones: only a shell can do that for what it starts.
_msparallel_limits() {
    local option name soft hard
    for option in n l; do
        soft="$(ulimit -S$option)" hard="$(ulimit -H$option)"
        [ "$soft" != "$hard" ] || continue
        ulimit -S$option "$hard" 2>/dev/null || continue
        case "$option" in n) name="open files" ;; *) name="locked memory (KiB)" ;; esac
        _msparallel_say "limit of $name: $soft -> $hard"
        _msparallel_why "Links between ranks take files, copies to devices take locked memory. Beyond: /etc/security/limits.conf"
    done
}

case "${1:-}" in
    --explain | --quiet) _msparallel_mode="$1" ;;
    "") _msparallel_mode="" ;;
    *)  # A script that sources this without words hands its own ones on.
        if [ "${#BASH_SOURCE[@]}" -eq 1 ]; then
            echo "setup_env: $1 is none of its words; they are --explain and --quiet. Nothing was set." >&2
            unset -f _msparallel_say _msparallel_why _msparallel_set _msparallel_find_cann _msparallel_cann \
                _msparallel_driver _msparallel_logs _msparallel_card _msparallel_hccl _msparallel_threads _msparallel_limits
            return 2
        fi
        _msparallel_mode=""
        ;;
esac
_msparallel_code=0
_msparallel_cann || _msparallel_code=$?
_msparallel_driver
_msparallel_logs
_msparallel_hccl
_msparallel_threads
_msparallel_limits
unset -f _msparallel_say _msparallel_why _msparallel_set _msparallel_find_cann _msparallel_cann _msparallel_driver \
    _msparallel_logs _msparallel_card _msparallel_hccl _msparallel_threads _msparallel_limits
if [ "$_msparallel_code" -ne 0 ]; then
    unset _msparallel_mode _msparallel_code
    return 1
fi
unset _msparallel_mode _msparallel_code
