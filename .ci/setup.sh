#!/usr/bin/env bash
# Purpose: everything that `make demo` and `make test` need, on a machine that has make, bash and little else.
#   .ci/setup.sh demo    a Vulkan loader, a driver, Python >= 3.11, .venv with the package
#   .ci/setup.sh test    the same, and what no test may miss: a C compiler, SPIR-V tools, the drm-shim, the dev group
#
# Guarantees: idempotent, and quick when all is there. Asks for what is missing, not for packages by name, so a
# machine that has it from elsewhere is left alone. Writes into the checkout only, apt apart; with sudo all of it
# belongs to the checkout's owner. One line a step; the rest goes to build/setup.log. No driver is not an error: build/no-driver then says why, and the simulated device
# takes its place. Exit 1 only where there is no Python or the package cannot be installed.
#
# Assumptions: packages come through apt, as root. Debian 12's own Mesa (22.3) lacks VK_KHR_pipeline_binary, so
# there Mesa comes from bookworm-backports, on the mirror that the machine is already configured with.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-test}
case $purpose in
demo | test) ;;
*)
    echo "usage: .ci/setup.sh demo|test" >&2
    exit 2
    ;;
esac

MESA_NEEDED=24.3
PIP_NEEDED=25.1 # the first that knows dependency groups
BACKPORTS=bookworm-backports
BACKPORTS_FILE=/etc/apt/sources.list.d/orchestrator-$BACKPORTS.list
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

mkdir -p build
log=$PWD/build/setup.log
no_driver=build/no-driver
if command -v flock >/dev/null; then # two runs in one checkout take turns
    exec 9>build/setup.lock
    flock 9
fi
: >"$log"
rm -f "$no_driver"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# pip's cache would be written to the home directory; a cache that the user named is used.
[ -n "${PIP_CACHE_DIR:-}" ] || export PIP_NO_CACHE_DIR=1

say() { echo "setup: $*"; }

quietly() { # Runs a command, output to the log.
    printf '\n+ %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null 9>&- # a daemon that a package starts must not keep the lock
}

fail() {
    say "failed: $*"
    if [ -s "$log" ]; then
        say "the log is build/setup.log; what failed is there:"
        { grep -E '^ *(E: |ERROR|error:)' "$log" || grep -Ev '^ *(\+ .*)?$' "$log" || true; } |
            tail -n 5 | cut -c 1-300 | sed 's/^ */    /'
    fi
    exit 1
}

trap 'bash .ci/owned.sh true 2>>"$log"' EXIT

# --- system packages -------------------------------------------------------------------------------------------

apt_reason() { # Why apt cannot be used, or nothing.
    command -v apt-get >/dev/null || { echo "no apt-get here"; return; }
    [ "$(id -u)" = 0 ] || echo "not root"
}

apt_updated=
apt_update() { # Once, unless the sources change.
    [ -z "$apt_updated" ] || return 0
    say "reading package lists"
    # A broken third-party source must not stop what does not depend on it: the install decides.
    quietly apt-get -q -o DPkg::Lock::Timeout=300 update || true
    apt_updated=yes
}

apt_release= # where the next packages come from; empty for apt's own choice
apt_install() { # Installs packages; false where that cannot be.
    [ -z "$(apt_reason)" ] || return 1
    apt_update
    say "installing $*${apt_release:+ from $apt_release}"
    quietly apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
        ${apt_release:+-t "$apt_release"} install "$@"
}

has_library() { # Where the system's linker finds it.
    # grep ends at its first match, which ends ldconfig with an error.
    { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true; } | grep -q "$1"
}

has_loader() { has_library 'libvulkan\.so\.1 '; }

driver_manifest() { # The manifest of Mesa's AMD driver; its name differs between versions of Mesa.
    local each
    for each in /etc/vulkan/icd.d/radeon_icd*.json /usr/share/vulkan/icd.d/radeon_icd*.json; do
        if [ -e "$each" ]; then
            echo "$each"
            return
        fi
    done
}

mesa_version() { # Empty where Mesa did not come as a Debian package.
    dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null || true
}

mesa_is_old() {
    local version
    version=$(mesa_version)
    [ -n "$version" ] && ! dpkg --compare-versions "$version" ge "$MESA_NEEDED"
}

is_debian_12() {
    (
        # shellcheck source=/dev/null
        . /etc/os-release
        [ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ]
    ) 2>/dev/null
}

apt_sources() { # "suite URI" of every source of binary packages whose lists were read.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Target-Of: deb' 2>>"$log" || true
}

add_backports() { # On the mirror of the release itself, unless there already.
    local uri signed=
    apt_update
    if apt_sources | grep -q "^$BACKPORTS "; then return; fi
    uri=$(apt_sources | sed -nE 's/^(bookworm|stable|oldstable) //p' | head -n 1)
    [ -n "$uri" ] || return 1
    if [ -e "$DEBIAN_KEYRING" ]; then signed="[signed-by=$DEBIAN_KEYRING] "; fi
    say "adding $BACKPORTS to the package sources ($BACKPORTS_FILE)"
    echo "deb $signed$uri $BACKPORTS main" >"$BACKPORTS_FILE"
    apt_updated=
}

install_driver() {
    if ! is_debian_12; then
        apt_install libvulkan1 mesa-vulkan-drivers
        return
    fi
    add_backports || return 1
    apt_release=$BACKPORTS
    if apt_install libvulkan1 mesa-vulkan-drivers; then
        apt_release=
        return
    fi
    apt_release=
    # A source that cannot be read would spoil every later update of this machine.
    rm -f "$BACKPORTS_FILE"
    return 1
}

without_driver() {
    say "no driver: $*; the simulated device takes its place"
    echo "$*" >"$no_driver"
}

set_up_driver() {
    local reason
    if has_loader && [ -n "$(driver_manifest)" ] && ! mesa_is_old; then
        return
    fi
    reason=$(apt_reason)
    if [ -n "$reason" ]; then
        without_driver "$reason, so libvulkan1 and mesa-vulkan-drivers >= $MESA_NEEDED cannot be installed"
    elif ! install_driver; then
        without_driver "apt cannot install libvulkan1 and mesa-vulkan-drivers >= $MESA_NEEDED (see build/setup.log)"
    elif ! has_loader || [ -z "$(driver_manifest)" ]; then
        without_driver "the packages libvulkan1 and mesa-vulkan-drivers bring no AMD driver on this machine"
    elif mesa_is_old; then
        without_driver "Mesa $(mesa_version) is older than $MESA_NEEDED, and apt has no newer"
    fi
}

has_drm_shim() { compgen -G '/usr/lib/*/libamdgpu_noop_drm_shim.so' >/dev/null; }

drm_shim() { # Debian's package, of Mesa's own version: it stands for the kernel's driver, which must fit.
    echo "mesa-drm-shim=$(mesa_version)"
}

set_up_drm_shim() { # RADV has no null hardware from Mesa 26.1 on.
    if has_drm_shim || ! grep -qs 'Please use AMDGPU drm-shim' /usr/lib/*/libvulkan_radeon.so; then
        return
    fi
    apt_install "$(drm_shim)" || without_driver "RADV needs the drm-shim here, and apt cannot install $(drm_shim)"
}

has_validation_layer() { # Where a loader looks for layers that are asked for.
    grep -qs VK_LAYER_KHRONOS_validation /etc/vulkan/explicit_layer.d/*.json \
        /usr/local/share/vulkan/explicit_layer.d/*.json /usr/share/vulkan/explicit_layer.d/*.json
}

set_up_test_tools() {
    local wanted=() reason
    command -v gcc >/dev/null || wanted+=(gcc)
    [ -e /usr/include/stdio.h ] || wanted+=(libc6-dev)
    [ -e /usr/include/vulkan/vulkan.h ] || wanted+=(libvulkan-dev)
    command -v spirv-val >/dev/null || wanted+=(spirv-tools)
    command -v chromium >/dev/null || wanted+=(chromium) # draws the HTML report in its test
    command -v glslangValidator >/dev/null || wanted+=(glslang-tools)
    command -v Xvfb >/dev/null || wanted+=(xvfb) # a display for the example with a window
    has_library libX11.so.6 || wanted+=(libx11-6)
    has_library libXrandr.so.2 || wanted+=(libxrandr2)
    has_library libXinerama.so.1 || wanted+=(libxinerama1)
    has_library libXcursor.so.1 || wanted+=(libxcursor1)
    has_library libXi.so.6 || wanted+=(libxi6)
    has_validation_layer || wanted+=(vulkan-validationlayers)
    has_drm_shim || [ -z "$(mesa_version)" ] || wanted+=("$(drm_shim)")
    [ ${#wanted[@]} = 0 ] && return
    apt_install "${wanted[@]}" && return
    reason=$(apt_reason)
    say "without ${wanted[*]} (${reason:-apt failed, see build/setup.log}): the tests that need them are skipped"
}

# --- Python ----------------------------------------------------------------------------------------------------

is_usable_python() {
    "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11) or sys.maxsize < 2**32)' 2>>"$log"
}

find_python() {
    local each
    for each in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if command -v "$each" >/dev/null && is_usable_python "$each"; then
            echo "$each"
            return
        fi
    done
}

venv_has_pip() { [ -x .venv/bin/python ] && quietly .venv/bin/python -m pip --version; }

create_venv() { # .venv with pip in it, by what this Python offers.
    rm -rf .venv
    quietly "$1" -m venv .venv && venv_has_pip
}

borrow_pip() { # A Python without ensurepip may still have a pip that installs into another environment.
    rm -rf .venv
    quietly "$1" -m venv --without-pip .venv &&
        quietly "$1" -m pip --python .venv/bin/python install pip && venv_has_pip
}

set_up_venv() {
    local python reason
    venv_has_pip && return
    python=$(find_python)
    if [ -z "$python" ]; then
        reason=$(apt_reason)
        apt_install python3 python3-venv ||
            fail "no Python >= 3.11, and apt cannot install python3 and python3-venv (${reason:-see the log});" \
                "\`make setup\` as root, or \`sudo make setup\`, installs all that is needed"
        python=$(find_python)
        [ -n "$python" ] || fail "the system's Python is older than 3.11"
    fi
    say "creating .venv with $("$python" --version)"
    create_venv "$python" || borrow_pip "$python" && return
    # Debian splits ensurepip from python3; only the system's own Python gains from the package.
    apt_install python3-venv && create_venv /usr/bin/python3 && return
    fail "$python cannot create a virtual environment with pip; install python3-venv"
}

needs_newer_pip() {
    ! .venv/bin/python - "$PIP_NEEDED" <<'EOF'
import sys
from importlib.metadata import version
number = lambda text: tuple(int(part) for part in text.split(".")[:2])
sys.exit(number(version("pip")) < number(sys.argv[1]))
EOF
}

set_up_package() { # Once for each purpose, and again when the dependencies, this script or the place change.
    local key stamp=.venv/setup-$purpose
    key="$(cat pyproject.toml .ci/setup.sh | cksum) $PWD"
    if [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>>"$log"; then
        [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && return
        # What the tests need holds what the demo needs.
        [ "$purpose" = demo ] && [ "$(cat .venv/setup-test 2>/dev/null)" = "$key" ] && return
    fi
    set_up_venv
    local arguments=(install --quiet --editable .)
    if [ "$purpose" = test ]; then
        if needs_newer_pip; then
            quietly .venv/bin/python -m pip install --quiet --upgrade "pip >= $PIP_NEEDED" ||
                fail "pip cannot be brought to $PIP_NEEDED"
        fi
        arguments+=(--group dev)
    fi
    say "installing the package into .venv"
    quietly .venv/bin/python -m pip "${arguments[@]}" || fail "pip cannot install the package"
    echo "$key" >"$stamp"
}

set_up_driver
set_up_drm_shim
[ "$purpose" = demo ] || set_up_test_tools
set_up_package
