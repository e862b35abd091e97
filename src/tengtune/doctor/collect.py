"""What a host's bundle holds: all that doctor read, and what else tells of a failure, masked.

What doctor read is kept as it was read (host/record.py). What holds much more than doctor takes from it is
written anew, so that it reads the same: the shell's variables, the user's groups, the packages.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Container, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from tengtune.doctor.finding import Case, Finding
from tengtune.host import chips, machine, nodes, packages
from tengtune.host.bundle import OWN, RUN, Asked, Manifest
from tengtune.host.mask import Mask
from tengtune.host.place import Fault, Place, saved_as
from tengtune.host.private import COMMON, is_secret
from tengtune.host.record import Recorder
from tengtune.host.survey import ENVIRONMENT

PLOGS, PLOG_BYTES = 8, 256 << 10
"""Of the cards' own logs the newest, and of each its beginning, where the first error is."""
LOGS, LOG_BYTES = 16, 256 << 10
"""Of the run's logs the newest, and of each its end."""
_KEPT = re.compile(
    r"(?:ASCEND|HCCL|INF_NAN_|ATB_|MS_|GLOG_|TASK_QUEUE|PYTORCH_|TORCH_|NPU_|ACL|GE_|TBE_|TENGTUNE_|OMP_|NCCL_"
    r"|GLOO_|LOCAL_|MASTER_|NODE_|LC_).*"
    r"|HOME|PATH|PYTHONPATH|LD_LIBRARY_PATH|LD_PRELOAD|RANK|WORLD_SIZE|RANK_TABLE_FILE|CUDA_VISIBLE_DEVICES|LANG"
    r"|VIRTUAL_ENV|CONDA_PREFIX"
)
"""The variables that say something of a training; no other is packed."""
_FILESYSTEM = re.compile(r"^\S.*?(\s+\d+\s+\d+\s+\d+\s+\d+%)\s.*$", re.MULTILINE)
_PACKAGES = f"{OWN}/packages.txt"
_NO_VERSIONS = ("etc/hccn.conf", "proc/", f"{OWN}/")
"""What holds four numbers with dots that are addresses, whatever the line says."""
_LOWEST_OF_PEOPLE = 1000
"""The first number of people's users and groups (login.defs); those below belong to programs."""


class Collection:
    """What goes into a bundle: `files` and `folders` by their names in the host's root, and the manifest."""

    def __init__(self, case: Case, place: Recorder, probes: Sequence[Finding]) -> None:
        self._case, self._place = case, place
        self.left_out = sum(not _KEPT.fullmatch(name) for name in case.host.environment)
        _forget_other_devices(place)
        texts = self._host() | self._outputs() | self._run() | dict(self._plogs())
        self.mask = self._mask()
        links = place.kept.links
        for text in (*texts.values(), *(f"/{name}" for name in texts), *place.kept.folders, *links.values()):
            self.mask.learn(text)
        hide = self.mask.text
        whole = packages.written(case.host.python)
        self.files = {
            hide(name): _masked(name, text, hide).encode("utf-8", "replace") for name, text in texts.items()
        } | {name: data for name, data in whole.items() if not name.endswith("/")}
        folders = {hide(name[1:]) for name in place.kept.folders if _wanted(name)} - {""}
        self.folders = (folders | {name for name in whole if name.endswith("/")}) - self.files.keys()
        self.manifest = Manifest(
            place.seconds,
            {hide(name): hide(target) for name, target in links.items()},
            dict(self._faults()),
            self._asked(),
            [(each.level, each.code, {k: hide(str(v)) for k, v in each.values.items()}) for each in probes],
        )

    def _host(self) -> dict[str, str]:
        """The files that were read."""
        host, place = self._case.host, self._place
        files = {name[1:]: text for name, text in place.kept.files.items()}

        def instead(name: str, write: Callable[[str], str]) -> None:
            real = place.followed(name)[0][1:]
            if real in files:
                files[real] = write(files[real])

        mine = host.user
        instead("/etc/passwd", lambda text: _rows(text, {str(mine.uid)}))
        instead("/etc/group", lambda text: _rows(text, mine.groups))
        chosen = {name: value for name, value in host.environment.items() if _KEPT.fullmatch(name)}
        pairs = (f"{name}={' '.join(value.split())}\0" for name, value in chosen.items())
        files[place.followed(ENVIRONMENT)[0][1:]] = "".join(pairs)
        if host.machine.glibcxx:
            name = place.followed(machine.LIBSTDCXX[0])[0]
            files[name[1:]] = f"GLIBCXX_{host.machine.glibcxx}\0"
        if place.folder is None:
            found = {f"{each.metadata['Name']} {each.version}" for each in metadata.distributions()}
            files[_PACKAGES] = "".join(f"{line}\n" for line in sorted(found))
        return files

    def _outputs(self) -> dict[str, str]:
        return {
            f"bin/{_name(command)}": _reduced(command, output.text)
            for command, output in self._place.kept.outputs.items()
            if output.fault != "missing"
        }

    def _faults(self) -> Iterator[tuple[str, Fault]]:
        for command, output in self._place.kept.outputs.items():
            if output.fault and output.fault != "missing":
                yield _name(command), output.fault

    def _run(self) -> dict[str, str]:
        """The run file and its folder's logs."""
        recipe = self._case.recipe
        if recipe is None:
            return {}
        files = {f"{RUN}/{recipe.file.name}": _piece(recipe.file, 0, LOG_BYTES)}
        for path in _newest(recipe.folder / "log", "*.log", LOGS):
            files[f"{OWN}/log/{path.name}"] = _piece(path, -LOG_BYTES, LOG_BYTES)
        return files

    def _plogs(self) -> Iterator[tuple[str, str]]:
        environment = self._case.host.environment
        usual = f"{environment.get('HOME', '/root')}/ascend/log"
        folder = environment.get("ASCEND_PROCESS_LOG_PATH", usual)
        for number, path in enumerate(_newest(self._place.path(folder), "plog-*.log", PLOGS)):
            yield f"{OWN}/plog/{number}-{path.name}", _piece(path, 0, PLOG_BYTES)

    def _asked(self) -> Asked | None:
        recipe = self._case.recipe
        if recipe is None:
            return None
        from tengtune.doctor.run import weights

        ranks = f"parallel.ranks={recipe.parallel.ranks}"
        overrides = [self.mask.text(each) for each in recipe.overrides]
        size = weights(recipe.model_folder) if self._case.weights is None else self._case.weights
        return Asked(self.mask.text(recipe.file.name), (*overrides, ranks), size)

    def _mask(self) -> Mask:
        host, place = self._case.host, self._place
        plain = Place(place.folder, place.seconds, place.links)
        environment = host.environment
        people = [environment.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
        people += [name or "" for node in host.nodes for name in (node.owner, node.group)]
        people += [host.user.name, Path(environment.get("HOME", "")).name]
        for file in ("/etc/passwd", "/etc/group"):
            people += [name for name, number in nodes.entries(plain, file) if _of_people(number)]
        hosts = [environment.get(name, "") for name in ("HOSTNAME", "MASTER_ADDR")]
        hosts += [plain.read(name) or "" for name in ("/etc/hostname", "/proc/sys/kernel/hostname")]
        for line in (plain.read("/etc/hosts") or "").splitlines():
            hosts += [name for name in line.partition("#")[0].split()[1:] if not _everywhere(name)]
        if place.folder is None:
            hosts.append(os.uname().nodename)
        hidden = [
            value
            for name, value in environment.items()
            if is_secret(name) and not value.startswith("/") and value.lower() not in COMMON
        ]
        return Mask(people, map(str.strip, hosts), hidden)


def _forget_other_devices(place: Recorder) -> None:
    """Leave out what is on the PCI bus and of another maker: big machines have thousands, and nothing is read
    of them."""
    kept, vendor = place.kept, "/vendor"
    foreign = {
        name.removesuffix(vendor)
        for name, text in kept.files.items()
        if name.startswith("/sys/") and name.endswith(vendor) and text.strip() != chips.VENDOR
    }
    there = {name for name in (*kept.folders, *kept.links) if place.followed(name)[0] in foreign}
    kept.folders -= there
    for name in there & kept.links.keys():
        del kept.links[name]
    for name in foreign:
        del kept.files[name + vendor]


def _name(command: Sequence[str]) -> str:
    return saved_as(("df", "-Pk") if command[0] == "df" else command)


def _reduced(command: Sequence[str], text: str) -> str:
    """Of ls the driver's nodes alone, of df the numbers."""
    if tuple(command) == nodes.LISTING:
        return "".join(f"{line}\n" for line in text.splitlines() if nodes.read_listing(line))
    return _FILESYSTEM.sub(r"disk\1 /", text) if command[0] == "df" else text


def _masked(name: str, text: str, hide: Callable[[str, bool], str]) -> str:
    """A file's text, masked; the versions of packages have four numbers, too, and nothing else is there."""
    return text if name == _PACKAGES else hide(text, not name.startswith(_NO_VERSIONS))


def _wanted(folder: str) -> bool:
    """Of /dev the driver's nodes alone."""
    node = nodes.Node(folder.removeprefix("/dev/"))
    return not folder.startswith("/dev/") or node.card is not None or node.name in nodes.CONTROL


def _rows(text: str, wanted: Container[str]) -> str:
    """The rows of /etc/passwd or /etc/group with these numbers, their names and numbers alone."""
    rows = (line.split(":") for line in text.splitlines())
    return "".join(f"{row[0]}:x:{row[2]}:\n" for row in rows if len(row) > 2 and row[2] in wanted)


def _of_people(number: str) -> bool:
    return number.isdecimal() and _LOWEST_OF_PEOPLE <= int(number) < 60000


def _everywhere(name: str) -> bool:
    return name.startswith(("localhost", "ip6-"))


def _newest(folder: Path, pattern: str, most: int) -> list[Path]:
    """The newest plain files below a folder; links are not followed."""
    found = []
    for path in folder.rglob(pattern) if folder.is_dir() else ():
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)[:most]]


def _piece(path: Path, start: int, size: int) -> str:
    """A part of a file, from its beginning or, with a negative start, from its end; what can't be read is
    said. Lines that are cut are left out: half a secret looks like none."""
    try:
        with path.open("rb") as stream:
            whole = os.fstat(stream.fileno()).st_size
            if start < 0:
                stream.seek(max(whole + start, 0))
            text = stream.read(size).decode("utf-8", "replace")
    except OSError as error:
        return f"{error.strerror}\n"
    if whole <= size:
        return text
    cut = r"\A[^\r\n]*[\r\n]" if start < 0 else r"(?<=[\r\n])[^\r\n]+\Z"
    return re.sub(cut, "", text)
