"""Build an image for native programs (`muster.sandbox.images`) from what is installed on this machine.

    python scripts/build_native_image.py [--language python] [--package numpy …] [FOLDER]   # into muster/sandbox/built
    python scripts/build_native_image.py --language c FOLDER

`python`: this interpreter, its library, and packages of its environment. `c`: this machine's gcc, as one process for
each step. Both with the shared libraries that they need. The same files give the same image. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pyarrow

from muster.runtime.files import write_durably
from muster.sandbox.component import BUILT, IMAGE_HASH_NAME, IMAGE_NAME
from muster.sandbox.images import DOCUMENT_NAME, Image

SANDBOX: Final = Path(__file__).resolve().parent.parent / "muster" / "sandbox"
LEVEL: Final = 9
HOME: Final = "python"
PACKAGES: Final = f"{HOME}/packages"
LEFT_OUT: Final = frozenset(
    ["__pycache__", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "tkinter"]
)
"""Folders of a library that no program imports."""
_LIBRARY: Final = re.compile(r"(?:=> )?(/\S+) \(0x")
_ELF: Final = b"\x7fELF"

Files = dict[str, bytes | Path]
"""Path in the image, and what stands there."""


def build(folder: Path, language: str, packages: Iterable[str] = ()) -> Path:
    """Build into `folder`; return the image's path. Raises CalledProcessError, FileNotFoundError."""
    files, image = python_image(packages) if language == "python" else c_image()
    files[DOCUMENT_NAME] = json.dumps(asdict(image), sort_keys=True).encode()
    packed = bytes(pyarrow.Codec("zstd", compression_level=LEVEL).compress(archive(files), asbytes=True))
    write_durably(folder / IMAGE_NAME, packed)
    write_durably(folder / IMAGE_HASH_NAME, ("0x" + hashlib.sha256(packed).hexdigest() + "\n").encode())
    return folder / IMAGE_NAME


def python_image(packages: Iterable[str]) -> tuple[Files, Image]:
    """Return this interpreter with packages of its environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    files: Files = {f"{HOME}/bin/python3": Path(sys.executable).resolve()}
    files |= tree(Path(sysconfig.get_path("stdlib")), f"{HOME}/lib/{version}")
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"no package {package} here")
        origin = Path(spec.origin).parent
        for path in (origin, origin.with_name(f"{package}.libs")):
            if path.is_dir():
                files |= tree(path, f"{PACKAGES}/{path.name}")
    files["muster/call.py"] = SANDBOX / "native_guest" / "call.py"
    files["muster/typed_json.py"] = SANDBOX / "guest" / "typed_json.py"
    interpreter = (f"/{HOME}/bin/python3", "-s", "-P", "-B", "-X", "utf8")
    image = Image(
        file="program.py",
        run=(*interpreter, "/task/program.py"),
        call=(*interpreter, "/muster/call.py", "/task/program.py"),
        # One thread of linear algebra, since there can be no second; sets in the same order each time. Where packages
        # are is said here, since distributions call that folder by different names.
        environment={
            "LC_ALL": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": f"/{PACKAGES}",
        },
    )
    return files | libraries(files), image


def c_image() -> tuple[Files, Image]:
    """Return this machine's C compiler, assembler and linker, which link statically."""
    programs = {name: Path(ask("gcc", f"-print-prog-name={name}")) for name in ("cc1", "as", "ld")}
    programs = {name: path if path.is_absolute() else Path(ask("which", name)) for name, path in programs.items()}
    files: Files = {f"bin/{name}": path.resolve() for name, path in programs.items()}
    objects = ("crt1.o", "crti.o", "crtn.o", "crtbeginT.o", "crtend.o", "libc.a", "libm.a", "libgcc.a", "libgcc_eh.a")
    files |= {f"lib/{name}": Path(ask("gcc", f"-print-file-name={name}")).resolve() for name in objects}
    for name in ("libm-2.36.a", "libmvec.a"):  # what libm.a names, where it is a script
        path = Path(ask("gcc", f"-print-file-name={name}"))
        if path.is_absolute():
            files[str(path.resolve()).lstrip("/")] = path.resolve()
    folders = [line.strip() for line in ask_errors("gcc", "-E", "-v", "-x", "c", "/dev/null").splitlines()]
    folders = [line for line in folders if line.startswith("/") and " " not in line and Path(line).is_dir()]
    for folder in folders:
        files |= {
            f"include/{path.relative_to(folder)}": path
            for path in sorted(Path(folder).rglob("*.h"))
            if path.relative_to(folder).parts[0] in _HEADERS or len(path.relative_to(folder).parts) == 1
        }
    link = ["/bin/ld", "-static", "-o", "/task/out", "/lib/crt1.o", "/lib/crti.o", "/lib/crtbeginT.o", "/task/in"]
    link += ["--start-group", "/lib/libm.a", "/lib/libgcc.a", "/lib/libgcc_eh.a", "/lib/libc.a", "--end-group"]
    image = Image(
        file="program.c",
        run=("/task/program",),
        build=(
            (
                "/bin/cc1",
                "-quiet",
                "-O2",
                "-std=gnu11",
                "-nostdinc",
                "-I/include",
                "/task/program.c",
                "-o",
                "/task/out",
            ),
            ("/bin/as", "/task/in", "-o", "/task/out"),
            (*link, "/lib/crtend.o", "/lib/crtn.o"),
        ),
    )
    return files | libraries(files), image


_HEADERS: Final = frozenset(("asm", "asm-generic", "bits", "gnu", "linux", "sys"))


def tree(source: Path, target: str) -> Files:
    """Return the files below a folder, without those that no program imports."""
    return {
        f"{target}/{path.relative_to(source)}": path
        for path in sorted(source.rglob("*"))
        if path.is_file()
        and not LEFT_OUT.intersection(path.relative_to(source).parts)
        and path.suffix not in (".a", ".pyc", ".pyi", ".h", ".o")
    }


def libraries(files: Files) -> Files:
    """Return the shared libraries of the ELF files, and the loader where they look for it."""
    found: Files = {}
    own = {path.name for path in files.values() if isinstance(path, Path)}
    for path in [path for path in files.values() if isinstance(path, Path) and is_elf(path)]:
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        for library in _LIBRARY.findall(said):
            name = Path(library).name
            if name.startswith("ld-linux"):
                found[library.lstrip("/")] = Path(library).resolve()
            elif name not in own:
                found[f"lib/{name}"] = Path(library).resolve()
    return found


def is_elf(path: Path) -> bool:
    """Return whether a file is a program or a shared library."""
    with path.open("rb") as stream:
        return stream.read(4) == _ELF and path.suffix not in (".a", ".o")


def archive(files: Files) -> bytes:
    """Return a tar of the files that is the same whenever the files are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o555 if data.startswith(_ELF) else 0o444
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def ask(*command: str) -> str:
    """Return a program's output."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def ask_errors(*command: str) -> str:
    """Return a program's standard error."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def main() -> None:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=BUILT)
    parser.add_argument("--language", choices=("python", "c"), default="python")
    parser.add_argument("--package", action="append", help="with python: of this environment; numpy by default")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(build(options.folder, options.language, options.package or ("numpy",)))


if __name__ == "__main__":
    main()
