"""What EL7 to EL10 have, as far as packages ask for it, so that dnf can say what can be installed there."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.package_host import said_by

needs_dnf = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("dnf", "createrepo_c")),
    reason="needs root, dnf and createrepo_c (apt-get install dnf createrepo-c)",
)


class Distribution(msgspec.Struct, frozen=True):
    """Its minor versions of glibc and of GLIBCXX and CXXABI_1.3 in libstdc++, its Pythons, and its Javas."""

    glibc: int
    libstdcxx: tuple[int, int]
    pythons: tuple[str, ...]
    javas: tuple[int, ...]


DISTRIBUTIONS = {
    "el8": Distribution(28, (25, 11), ("3.6", "3.12"), (8, 11, 17, 21)),
    "el9": Distribution(34, (29, 13), ("3.9", "3.12", "3.14"), (8, 11, 17, 21)),
    "el10": Distribution(39, (33, 15), ("3.12", "3.14"), (21,)),
}
EL7 = Distribution(17, (19, 7), ("2.7", "3.6"), (8, 11))
LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "libdl.so.2")
LIBGCC = ("3.0", "3.3", "3.3.1", "3.4", "4.2.0", "4.3.0", "4.8.0", "7.0.0")


def resolves(rpms: Sequence[Path], directory: Path, host: Distribution) -> tuple[bool, str]:
    """Let dnf say whether a host can install the packages; the rest of the host are empty packages."""
    symbols = {"2.2.5", "2.3", "2.3.2", "2.3.3", "2.3.4", *(f"2.{minor}" for minor in range(4, host.glibc + 1))}
    provides = [f"{name}({part})(64bit)" for name in LIBRARIES for part in ("", *(f"GLIBC_{each}" for each in symbols))]
    cxx, abi = host.libstdcxx
    compiled = [f"libgcc_s.so.1({part})(64bit)" for part in ("", *(f"GCC_{each}" for each in LIBGCC))] + [
        f"libstdc++.so.6({part})(64bit)"
        for part in ("", "GLIBCXX_3.4", "CXXABI_1.3", *(f"GLIBCXX_3.4.{minor}" for minor in range(1, cxx + 1)),
                     *(f"CXXABI_1.3.{minor}" for minor in range(1, abi + 1)))
    ]  # fmt: skip
    packages = {
        "libstdcxx": compiled,
        "glibc": [*provides, "rtld(GNU_HASH)"],
        "host": ["/bin/sh", "systemd", "shadow-utils"],
        **{f"python{version}": [f"python(abi) = {version}"] for version in host.pythons},
        **{f"java-{version}-openjdk-headless": [f"java-{version}-headless"] for version in host.javas},
    }
    repository = directory / "repository"
    repository.mkdir()
    for name, offered in packages.items():
        spec = directory / f"{name}.spec"
        lines = [f"Name: {name}", "Version: 1", "Release: 1", "Summary: stub", "License: none"]
        spec.write_text("\n".join([*lines, *(f"Provides: {each}" for each in offered), "%description", "%files", ""]))
        said_by(
            "rpmbuild", "--quiet", "-bb", "--define", f"_topdir {directory}", "--define", f"_rpmdir {repository}", spec
        )
    for rpm in rpms:
        (repository / rpm.name).symlink_to(rpm)
    said_by("createrepo_c", "--quiet", repository)
    ended = subprocess.run(
        [
            *("dnf", "--quiet", "--assumeyes", f"--installroot={directory / 'root'}", "--releasever=1"),
            *("--setopt=reposdir=/nowhere", "--setopt=tsflags=test", f"--repofrompath=stubs,file://{repository}"),
            *("--repo=stubs", "--nogpgcheck", "install"),
            *(said_by("rpm", "-qp", "--queryformat", "%{NAME}", rpm) for rpm in rpms),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode == 0, ended.stdout + ended.stderr
