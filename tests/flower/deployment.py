"""A SuperLink and SuperNodes as a federation would run them: processes, TLS, node keys, loopback.

Each deployment has a folder and a FLWR_HOME of its own, and calls nobody. All of its processes
carry a mark in their environment, by which those that were not ended one by one are found: also
the children of a process that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import descendants

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CERTIFICATES = ROOT / "scripts" / "flower-certificates"
APP = ROOT / "deploy" / "flower-app"
NGINX, DOOR = ROOT / "deploy" / "nginx-flower.conf", ROOT / "deploy" / "nginx-node.conf"
QUICK = {"deadline-seconds": 480, "poll-seconds": 0.5, "report-seconds": 2, "ack-seconds": 5}

_MARK = "PREDBAYES_TEST_DEPLOYMENT"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Process:
    """A process that was started here, and its log."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As `kill -9` of this process; its children are not asked."""
        self.popen.kill()
        self.popen.wait()

    def wait(self, seconds: float) -> int:
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended in {seconds} s:\n{self.text[-3000:]}") from None


@dataclass
class Deployment:
    """Processes of one federation on this machine."""

    root: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    port: int = field(default_factory=lambda: free_port())
    nodes: dict[str, Process] = field(default_factory=dict)
    started: list[Process] = field(default_factory=list)
    hub: str = ""  # where the SuperLink asks for apps; the internet's, which it does not reach
    outside: int = 0  # the port that nginx opens

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        run(CERTIFICATES, "server", self.certificates, "localhost", "127.0.0.1")
        app, home = self.root / "app", self.root / "flwr"
        app.mkdir()
        home.mkdir()
        shutil.copy(APP / "pyproject.toml", app)
        (home / "config.toml").write_text(
            f'[superlink.study]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.certificates / "ca.crt"}"\n'
        )

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "FLWR_HOME": str(self.root / "flwr"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # they start each other by name
            _MARK: self.mark,
        }
        # Coverage looks at sys.path from every thread; where it changed (Flower adds the app's
        # folder), it takes modules out of sys.modules that another thread is importing.
        untraced = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        return {**untraced, **QUIET, **own}

    def start_superlink(self) -> Process:
        started = self.start(
            "superlink",
            BIN / "flower-superlink",
            *("--host", "127.0.0.1", "--port", self.port),
            *("--ssl-ca-certfile", self.certificates / "ca.crt"),
            *("--ssl-certfile", self.certificates / "server.pem"),
            *("--ssl-keyfile", self.certificates / "server.key"),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", self.root / "state.db"),
            environment={"FLWR_SUPERGRID_API_URL": self.hub} if self.hub else {},
        )
        until(lambda: listens(self.port), 60, "the SuperLink listens", started)
        return started

    def register(self, name: str) -> None:
        """Make a node's key, and let the SuperLink know it."""
        run(CERTIFICATES, "node", self.root / "keys" / name)
        public = self.root / "keys" / f"{name}.pub"
        run(BIN / "flwr", "supernode", "register", public, "study", env=self.environment)

    def start_node(
        self,
        name: str,
        config: Mapping[str, Any],
        door: int | None = None,
        *,
        trusted: Path | None = None,
    ) -> Process:
        """A SuperNode with its own configuration.

        Args:
            name: Of its key.
            config: What it knows of its site.
            door: The port of its own nginx, in place of the SuperLink's port.
            trusted: The file that says which apps it runs; any.
        """
        told = " ".join(f'{key}="{value}"' for key, value in config.items())
        certificates = self.root / "loopback" if door else self.certificates
        self.nodes[name] = self.start(
            f"node-{name}",
            BIN / "flower-supernode",
            *("--superlink", f"127.0.0.1:{door or self.port}"),
            *("--root-certificates", certificates / "ca.crt"),
            *("--auth-supernode-private-key", self.root / "keys" / name),
            *("--host", "127.0.0.1", "--port", free_port()),
            *("--node-config", told),
            *(("--trusted-entities", trusted) if trusted else ()),
        )
        return self.nodes[name]

    def kill_node(self, name: str) -> None:
        """As if the node's machine had lost power: the node and all that it started."""
        process = self.nodes.pop(name)
        pids = [process.popen.pid, *descendants(process.popen.pid)]
        process.kill()
        for pid in pids[1:]:
            _kill(pid)

    def supervise(self, name: str, config: Mapping[str, Any], run: Process) -> None:
        """Start a node again and again, while the SuperLink takes the old one for alive still."""
        while run.popen.poll() is None:
            if name not in self.nodes or self.nodes[name].popen.poll() is not None:
                self.start_node(name, config)
            time.sleep(5)

    def signal_node(self, name: str, number: signal.Signals, program: str = "") -> int:
        """Signal a node's processes, or those of a program; how many there were."""
        pid = self.nodes[name].popen.pid
        found = [p for p in [pid, *descendants(pid)] if program in _command(p)]
        for process in found:
            os.kill(process, number)
        return len(found)

    def start_run(self, study: Path, app: object = None, **settings: Any) -> Process:
        """`flwr run`, with the log of the round in its own."""
        told = {**QUICK, **{name.replace("_", "-"): value for name, value in settings.items()}}
        config = " ".join(f"{key}={str(value).lower()}" for key, value in told.items())
        return self.start(
            "run",
            BIN / "flwr",
            *("run", app or self.root / "app", "study", "--stream"),
            *("--run-config", f'study="{study}" {config}'),
        )

    def start_nginx(self) -> Process:
        """The coordinator's nginx; its port is then `outside`."""
        self.outside = free_port()
        return self._start_nginx(
            "nginx",
            NGINX,
            self.outside,
            ("listen 443 ssl", f"listen 127.0.0.1:{self.outside} ssl"),
            ("study.example.org", "localhost"),
            ("/etc/predbayes/certificates", str(self.certificates)),
            ("127.0.0.1:8000", f"127.0.0.1:{self.port}"),
        )

    def certify(self, name: str) -> Path:
        """A certificate of a site; the folder in which it is, with its key."""
        folder = self.root / "clients" / name
        run(CERTIFICATES, "request", folder, name)
        self.sign(folder)
        return folder

    def sign(self, folder: Path) -> None:
        run(CERTIFICATES, "sign", self.certificates, folder / "client.csr", folder / "client.pem")

    def start_door(self, name: str) -> tuple[Process, int]:
        """A site's own nginx, with a certificate; and its port."""
        if not (self.root / "loopback").exists():
            run(CERTIFICATES, "server", self.root / "loopback", "localhost", "127.0.0.1")
        port, client = free_port(), self.certify(name)
        shutil.copy(self.certificates / "ca.crt", client)
        door = self._start_nginx(
            f"door-{name}",
            DOOR,
            port,
            ("listen 127.0.0.1:8443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("https://study.example.org:443", f"https://127.0.0.1:{self.outside}"),
            ("study.example.org", "localhost"),
            ("/etc/predbayes/loopback", str(self.root / "loopback")),
            ("/etc/predbayes/client", str(client)),
        )
        return door, port

    def _start_nginx(self, name: str, path: Path, port: int, *replaced: tuple[str, str]) -> Process:
        """A configuration of `deploy/`, with this deployment's paths."""
        folder, text = self.root / name, path.read_text(encoding="utf-8")
        folder.mkdir()
        for documented, own in replaced:
            assert documented in text
            text = text.replace(documented, own)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        scratch = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
        whole = f"pid {folder / 'pid'};\nevents {{}}\nhttp {{\naccess_log off;\n{scratch}{text}}}\n"
        (folder / "nginx.conf").write_text(whole)
        found = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
        assert found, "this test needs nginx: apt install nginx"
        options = ("-p", folder, "-c", folder / "nginx.conf", "-e", "stderr")
        started = self.start(name, found, *options, "-g", "daemon off;")
        until(lambda: listens(port), 20, f"{name} listens", started)
        return started

    def flwr(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return run(BIN / "flwr", *arguments, env=self.environment, check=False)

    def last_run(self) -> dict[str, Any]:
        """What the SuperLink says of the newest run."""
        runs = json.loads(self.flwr("list", "study", "--format", "json").stdout)["runs"]
        return dict(runs[0])

    def logs(self) -> str:
        """The ends of all logs, for a test that failed."""
        paths = sorted((self.root / "logs").iterdir())
        return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-2500:]}" for p in paths)

    def end(self) -> None:
        """End what is left, by process id."""
        for process in self.started:
            if process.popen.poll() is None:
                # nginx writes over its environment, and with it the mark.
                for pid in [*descendants(process.popen.pid), process.popen.pid]:
                    _kill(pid)
                process.popen.wait()
        while left := _marked(self.mark):  # one that starts another meanwhile is met again
            for pid in left:
                _kill(pid)
            time.sleep(0.2)

    def start(
        self, name: str, *command: object, environment: Mapping[str, str] | None = None
    ) -> Process:
        log = self.root / "logs" / f"{len(self.started):02d}-{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as file:
            popen = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.root,
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.started.append(Process(popen, log))
        return self.started[-1]


@contextlib.contextmanager
def deployed(root: Path) -> Iterator[Deployment]:
    """A deployment without processes yet; whatever it starts ends with it."""
    deployment = Deployment(root)
    try:
        yield deployment
    except BaseException:
        sys.stderr.write(deployment.logs())
        raise
    finally:
        deployment.end()


def until(
    holds: Callable[[], bool], seconds: float, what: str, process: Process | None = None
) -> None:
    """Wait until something holds, but not for ever, nor for a process that has ended."""
    end = time.monotonic() + seconds
    while not holds():
        ended = process is not None and process.popen.poll() is not None
        if ended or time.monotonic() > end:
            log = "" if process is None else process.text[-3000:]
            raise AssertionError(f"{'ended' if ended else f'{seconds} s'} before {what}\n{log}")
        time.sleep(0.1)


def run(
    *command: object,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if check and done.returncode:
        raise AssertionError(f"{command[:3]}: {done.stdout}{done.stderr}")
    return done


def predbayes(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line, as a process of its own."""
    return run(BIN / "predbayes", *arguments)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    """Processes with a deployment's mark."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
