"""The deployment that the documentation describes, and those whom it keeps out.

Nodes reach the SuperLink through nginx, with certificates of their own, and run the app that their
site signed and no other.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import ssl
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from predbayes.exchange.upload import Upload
from predbayes_flower.trusted import SIGNATURE, TRUSTED
from tests.flower.deployment import APP, BIN, CERTIFICATES, deployed, free_port, run, until
from tests.flower.nodes import LEARNER, make_node
from tests.study.world import make_world

pytestmark = pytest.mark.slow("deployments with TLS, each of many processes")

STUDY_APP = "@predbayes/predbayes-study==1.0.0"
ENDED = 550  # seconds in which a run has ended on the busiest machine
FOREIGN_CLIENT = """
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.app import Message, RecordDict
app = ClientApp()
@app.query()
def query(message, context):
    Path(context.node_config["site"]).with_name("ran").write_text("foreign code")
    return Message(RecordDict(), reply_to=message)
"""
FOREIGN_SERVER = """
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    nodes = grid.get_node_ids()
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = grid.send_and_receive(asked, timeout=120)
    print("answers:", sorted(reply.error.code if reply.has_error() else 0 for reply in replies))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), learner=LEARNER)


@pytest.fixture(scope="module")
def nodes(world):
    sites = ("Alpha", "Beta", "Careless")
    return {site: make_node(world, world.root / "nodes", site) for site in sites}


@pytest.fixture(scope="module")
def secured(nodes, tmp_path_factory):
    """A SuperLink behind nginx; Alpha and Beta as documented, Careless as it comes."""
    root = tmp_path_factory.mktemp("secured")
    with deployed(root / "deployment") as made:
        serve_app(made, ("Alpha", "Beta"))
        made.start_superlink()
        made.nginx = made.start_nginx()
        made.doors = {}
        for site in ("Alpha", "Beta"):
            made.register(site)
            made.doors[site] = made.start_door(site)
            start(made, site, nodes[site])
        made.register("Careless")
        made.start_node("Careless", nodes["Careless"])
        yield made


def start(deployment, site, config):
    trusted = deployment.root / "signed" / site / TRUSTED
    return deployment.start_node(site, config, deployment.doors[site][1], trusted=trusted)


def serve_app(deployment, sites):
    """Build the app, let sites sign it, and serve it to the SuperLink, with the commands."""
    run(BIN / "flwr", "build", "--app", APP, env=deployment.environment, cwd=deployment.root)
    (app,) = deployment.root.glob("*.fab")
    ours = (BIN / "python", "-m", "predbayes_flower.trusted")
    for site in sites:
        run(*ours, "sign", app, deployment.root / "signed" / site)
    signatures = [deployment.root / "signed" / site / SIGNATURE for site in sites]
    port = free_port()
    deployment.start("hub", *ours, "serve", app, *signatures, "--port", port)
    deployment.hub = f"http://127.0.0.1:{port}/v1"


def line_of(deployment, client):
    """A connection with a client's certificate, or without one."""
    context = ssl.create_default_context(cafile=str(deployment.certificates / "ca.crt"))
    if client is not None:
        context.load_cert_chain(client / "client.pem", client / "client.key")
    return http.client.HTTPSConnection("localhost", deployment.outside, context=context, timeout=30)


def asked(deployment, client, path="health"):
    """The status of a request."""
    with contextlib.closing(line_of(deployment, client)) as line:
        return status_of(line, path)


def status_of(line, path="health"):
    line.request("GET", f"/{path}")
    answer = line.getresponse()
    answer.read()
    return answer.status


def test_foreign_code_runs_at_no_node_that_trusts_one_app(world, secured, nodes, tmp_path):
    foreign = tmp_path / "foreign"
    (foreign / "foreign").mkdir(parents=True)
    text = (APP / "pyproject.toml").read_text().replace("predbayes-study", "foreign")
    (foreign / "pyproject.toml").write_text(text.replace("predbayes_flower", "foreign"))
    (foreign / "foreign" / "__init__.py").touch()
    (foreign / "foreign" / "client_app.py").write_text(FOREIGN_CLIENT)
    (foreign / "foreign" / "server_app.py").write_text(FOREIGN_SERVER)
    until(lambda: num_online(secured) == 3, 90, "all nodes are there")
    done = secured.start("foreign", BIN / "flwr", "run", foreign, "study", "--stream")
    done.wait(ENDED)
    ran = [site for site in nodes if Path(nodes[site]["site"]).with_name("ran").exists()]
    assert ran == ["Careless"]
    assert "answers: [0, 7, 7]" in done.text  # Flower's code for an app that is not verified
    # The study's own app from a folder: without the sites' signatures.
    study = world.begin("unsigned", ("Alpha",))
    unsigned = secured.start_run(study.folder, deadline_seconds=20)
    unsigned.wait(ENDED)
    assert "it does not trust this app" in unsigned.text
    assert not study.state().uploads


def num_online(deployment):
    listed = deployment.flwr("supernode", "list", "study", "--format", "json").stdout
    return listed.count('"online"')


class Flood:
    """Requests of one client over many lines, as many as it gets in."""

    def __init__(self, deployment, client, num_lines):
        self.seen, self.stop = Counter(), threading.Event()
        self.open = lambda: line_of(deployment, client)
        self.threads = [threading.Thread(target=self._send) for _ in range(num_lines)]

    def _send(self):
        while not self.stop.is_set():
            closed = contextlib.suppress(OSError, http.client.HTTPException)
            with closed, contextlib.closing(self.open()) as line:
                while not self.stop.is_set():
                    status = status_of(line)
                    self.seen[status] += 1
                    self.stop.wait(0.1 if status == 429 else 0)

    def __enter__(self):
        self.begin = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.seconds = time.monotonic() - self.begin


def test_behind_nginx_a_study_goes_through_a_flood_and_nobody_else_gets_in(world, secured):
    certified, stranger = secured.certify("Flooder"), secured.root / "stranger"
    run(CERTIFICATES, "server", secured.root / "other-ca", "localhost")
    run(CERTIFICATES, "request", stranger, "Alpha")
    request = (stranger / "client.csr", stranger / "client.pem")
    run(CERTIFICATES, "sign", secured.root / "other-ca", *request)
    assert asked(secured, None) == 400  # no certificate
    assert asked(secured, stranger) == 400  # of another CA
    server = secured.root / "as-client"
    server.mkdir()
    shutil.copy(secured.certificates / "server.pem", server / "client.pem")
    shutil.copy(secured.certificates / "server.key", server / "client.key")
    assert asked(secured, server) == 400  # of the CA, but not a client's
    assert asked(secured, certified) == 200
    for path in (
        "v1/control/list-runs",
        "v1/runtime/get-nodes",
        "docs",
        "openapi.json",
        "v1/fleet/../control/list-runs",
        "v1/fleet/%2e%2e/control/list-runs",
        "v1/fleet//..//control/list-runs",
        "v1/fleet%2f..%2fcontrol/list-runs",
        "v1/control/list-runs%23/../fleet/",
    ):
        assert asked(secured, certified, path) == 403, path
    study = world.begin("behind", ("Alpha", "Beta"))
    with Flood(secured, certified, 24) as flood:
        time.sleep(10)
    assert flood.seen[429] > 0
    assert flood.seen[200] <= 30 * flood.seconds + 60 + 16
    with Flood(secured, certified, 18):
        ended = secured.start_run(study.folder, STUDY_APP)
        assert ended.wait(ENDED) == 0
    assert secured.last_run()["status"] == "finished:completed"
    assert len(study.state().results[-1].uploads) == 2


def test_a_revoked_node_is_out_and_with_a_new_certificate_in_the_same_study(world, nodes, secured):
    """The server's certificate is renewed meanwhile; nothing of the study is lost."""
    study = world.begin("revoked", ("Alpha", "Beta"))
    client, (door, _) = secured.root / "clients" / "Beta", secured.doors["Beta"]
    old = client.with_name("Beta-old")
    shutil.copytree(client, old)
    run(CERTIFICATES, "revoke", secured.certificates, client / "client.pem")
    run(CERTIFICATES, "renew", secured.certificates)
    assert asked(secured, old) == 200  # until nginx has read the list
    secured.nginx.popen.send_signal(signal.SIGHUP)
    until(lambda: asked(secured, old) == 400, 30, "the list is read")
    assert asked(secured, secured.root / "clients" / "Alpha") == 200
    secured.kill_node("Beta")
    refused = start(secured, "Beta", nodes["Beta"])
    assert refused.wait(120) != 0
    ended = secured.start_run(study.folder, STUDY_APP)
    until(lambda: "in: Alpha" in ended.text, ENDED, "Alpha is in", ended)
    for name in ("client.key", "client.csr", "client.pem"):
        (client / name).unlink()
    run(CERTIFICATES, "request", client, "Beta")
    secured.sign(client)
    door.popen.send_signal(signal.SIGHUP)
    while ended.popen.poll() is None:  # as a supervisor does
        if secured.nodes["Beta"].popen.poll() is not None:
            start(secured, "Beta", nodes["Beta"])
        time.sleep(5)
    assert sorted(study.state().uploads) == ["Alpha", "Beta"]
    assert len(study.state().results) == 1


def test_a_withdrawn_upload_is_in_no_file_of_the_database(world, nodes, secured):
    study = world.begin("withdrawn", ("Alpha", "Beta"))
    assert secured.start_run(study.folder, STUDY_APP).wait(ENDED) == 0
    accepted = study.state().uploads["Alpha"]
    (path,) = study.folder.rglob(f"{accepted.digest}.safetensors")
    sent = Upload.load(path).arrays["log_probs"].numpy().tobytes()

    def num_found():
        files = b"".join(f.read_bytes() for f in secured.root.glob("state.db*"))
        return sum(sent[at : at + 64] in files for at in range(0, len(sent) - 64, 64))

    study.withdraw("Alpha")
    assert not path.exists()
    assert num_found() > 0  # the SuperLink knows nothing of it
    secured.flwr("list", "study")
    cleared = run(BIN / "python", "-m", "predbayes_flower.database", secured.root / "state.db")
    assert "no object of a run is left" in cleared.stdout
    assert num_found() == 0
    assert num_online(secured) == 3  # and it goes on
