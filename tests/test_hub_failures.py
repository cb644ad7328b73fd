"""Whatever goes wrong with the Hub is one clear ZooError, leaves nothing half, and can be repeated."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants, set_client_factory
from huggingface_hub.utils import _http, get_session

import zoo
from tests import warm
from tests.hub_helpers import REPO
from zoo import hub_client

INFO = f"GET /api/models/{REPO}/revision/main$"
WEIGHTS = "GET /storage/.*/model.safetensors"
xet = pytest.param(
    "xet", marks=pytest.mark.skipif(find_spec("lz4") is None, reason="the test server's Xet needs lz4")
)


@pytest.fixture(autouse=True)
def short_patience(impatient, monkeypatch):
    monkeypatch.setattr(hub_client, "ANSWER_SECONDS", 2.0)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def refusal(call, *arguments, **options) -> str:
    """Return the message of the one ZooError that a call raises: a line that names the repository."""
    with pytest.raises(zoo.ZooError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert f'Hub repository "{REPO}"' in message
    assert "Traceback" not in message
    assert len(message) < 500, message
    return message


def half_written(home: Path) -> list[Path]:
    """Return what lies in the cache and is neither a whole file nor a lock."""
    return [path for path in home.rglob("*") if path.name.endswith((".incomplete", ".tmp"))]


DOWNLOADS = {
    "401": (INFO, {"status": 401}, "does not exist, or is private and needs a token"),
    "403": (INFO, {"status": 403}, "403: fault 403"),
    "403 gated": (INFO, {"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "must be requested"),
    "404": (INFO, {"status": 404, "headers": {"X-Error-Code": "RepoNotFound"}}, "does not exist"),
    "404 of a file": (
        "HEAD .*/metrics.json",
        {"status": 404, "headers": {"X-Error-Code": "EntryNotFound"}},
        "",
    ),
    "409": (INFO, {"status": 409}, "the Hub refuses this (409"),
    "429": (INFO, {"status": 429}, r"the Hub has trouble (429"),
    "500": (INFO, {"status": 500}, "the Hub has trouble (500: fault 500); try again later"),
    "500 of a file": (WEIGHTS, {"status": 500}, "the Hub has trouble (500"),
    "503 of the tree": ("GET /api/models/.*/tree/", {"status": 503}, "the Hub has trouble (503"),
    "time-out": (INFO, {"delay": 5.0}, "did not answer in time"),
    "time-out of the tree": ("GET /api/models/.*/tree/", {"delay": 5.0}, "did not answer in time"),
    "time-out of a file": (WEIGHTS, {"delay": 5.0}, "did not answer in time"),
    "cut": (INFO, {"cut_after": 3}, "the connection was cut"),
    "cut in a file": (WEIGHTS, {"cut_after": 1000}, "the connection was cut"),
    "no Hub": (INFO, {"body": b"<html>log in</html>"}, "the answer is not that of a Hub"),
    "no Hub's JSON": (INFO, {"body": b"[]"}, "the answer is not that of a Hub"),
    "truncated": (WEIGHTS, {"body": b"short"}, "another size than the Hub states"),
    "other bytes": (WEIGHTS, {"body": b"?"}, "came damaged"),
    "other small bytes": ("GET .*/resolve/.*/metrics.json", {"body": b"?"}, "came damaged"),
}


@pytest.mark.parametrize("what", DOWNLOADS)
def test_a_failing_download_is_one_clear_error_and_a_retry_works(made, hub, tmp_path, what):
    files = contents(made.path)
    hub.create(REPO, files)
    match, fault, message = DOWNLOADS[what]
    if fault.get("body") == b"?":  # as long as the true one
        name = "model.safetensors" if match == WEIGHTS else "metrics.json"
        fault = {"body": bytes(len(files[name]))}
    hub.fault(match, times=100, **fault)
    assert message in refusal(zoo.pull, REPO, out=tmp_path / "out")
    assert half_written(hub.home) == []
    assert list(tmp_path.iterdir()) == []
    hub.mend()
    assert zoo.load(REPO).num_features == 64
    assert contents(zoo.pull(REPO, out=tmp_path / "out").path) == files


XET_DOWNLOADS = {
    "no token of the storage": (
        "GET /api/models/.*/xet-read-token",
        {"status": 500},
        "the Hub has trouble (500",
    ),
    "no recipe": ("GET /cas/.*/reconstructions", {"status": 500}, "the Hub has trouble (500 of the storage)"),
    "cut": ("GET /cas/", {"cut_after": 100}, "the connection was cut"),
}


@pytest.mark.skipif(find_spec("lz4") is None, reason="the test server's Xet needs lz4")
@pytest.mark.parametrize("what", XET_DOWNLOADS)
def test_a_failing_download_over_xet_is_one_clear_error_too(made, hub, tmp_path, what):
    hub.transport = "xet"
    zoo.push(made, REPO, token=hub.token)
    match, fault, message = XET_DOWNLOADS[what]
    hub.fault(match, times=100, **fault)
    assert message in refusal(zoo.pull, REPO, out=tmp_path / "out")
    assert half_written(hub.home) == []
    assert list(tmp_path.iterdir()) == []
    hub.mend()
    zoo.pull(REPO, out=tmp_path / "out").verify()


def changed_config(files, **changes):
    config = json.loads(files["config.json"])
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = config
        for name in sections:
            section = section[name]
        section[key] = value
    return files | {"config.json": json.dumps(config).encode()}


UNSOUND = {
    "wrong hash": (lambda files: changed_config(files, zoo__weights_sha256="0" * 64), "sha256"),
    "truncated weights": (
        lambda f: f | {"model.safetensors": f["model.safetensors"][:-9]},
        "model.safetensors",
    ),
    "unknown architecture": (lambda files: changed_config(files, architecture="resnet999"), "resnet999"),
    "unknown key": (lambda files: changed_config(files, auto_map="x"), "auto_map"),
    "no hash": (lambda files: changed_config(files, zoo__weights_sha256=3), "weights_sha256"),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_an_unsound_repository_is_refused_and_its_mended_state_loads(made, hub, tmp_path, what):
    spoil, message = UNSOUND[what]
    hub.create(REPO, spoil(contents(made.path)))
    with pytest.raises(zoo.ZooError, match=message):
        zoo.load(REPO)
    if what != "unknown architecture":  # which is no matter of files
        with pytest.raises(zoo.ZooError, match=message):
            zoo.pull(REPO, out=tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
    hub.create(REPO, contents(made.path))
    assert zoo.load(REPO).num_features == 64


@pytest.mark.parametrize("fault", [{"status": 429}, {"cut_after": 1000}, {"status": 503}])
def test_what_the_client_mends_by_itself_is_no_error(made, hub, fault):
    hub.create(REPO, contents(made.path))
    hub.fault(WEIGHTS, times=1, **fault)
    if fault == {"status": 503}:
        refusal(zoo.load, REPO)
    assert zoo.load(REPO).num_features == 64


UPLOADS = {
    "401": ("POST /api/repos/create", {"status": 401}, "does not accept the token (401)"),
    "404": ("POST /api/models/.*/commit/", {"status": 404}, "(404"),
    "409": ("POST /api/models/.*/commit/", {"status": 409}, "somebody else at the same time (409)"),
    "412": ("POST /api/models/.*/commit/", {"status": 412}, "somebody else at the same time (412)"),
    "500 of the API": ("POST /api/models/.*/commit/", {"status": 500}, "the Hub has trouble (500"),
    "500 of the storage": ("PUT /storage", {"status": 500}, "the Hub has trouble (500"),
    "400 of the card": ("POST /api/validate-yaml", {"status": 400}, "Invalid metadata in README.md"),
    "time-out": ("POST /api/models/.*/commit/", {"delay": 5.0}, "did not answer in time"),
    "time-out of the versions": ("GET /api/models/.*/refs", {"delay": 5.0}, "did not answer in time"),
    "cut in an upload": ("PUT /storage", {"cut_after": 1000}, "the connection was cut"),
    "no Hub": ("POST /api/models/.*/preupload/", {"body": b"<html>"}, "the answer is not that of a Hub"),
    "no Hub's JSON": ("POST /api/models/.*/commit/", {"body": b"{}"}, "the answer is not that of a Hub"),
}


@pytest.mark.parametrize("what", UPLOADS)
def test_a_failing_push_is_one_clear_error_and_a_retry_works(made, hub, what):
    match, fault, message = UPLOADS[what]
    hub.fault(match, times=100, **fault)
    assert message in refusal(zoo.push, made, REPO, token=hub.token)
    assert REPO not in hub.store.repos or hub.tags(REPO) == {}
    hub.mend()
    assert zoo.push(made, REPO, token=hub.token).endswith("/tree/v1")
    assert {**hub.files(REPO), "README.md": b""} == {
        **contents(made.path), "README.md": b"", ".gitattributes": hub.files(REPO)[".gitattributes"]
    }  # fmt: skip


def test_tokens_that_are_missing_wrong_or_read_only_are_told_apart(made, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for token in (None, False):
        assert "needs a token with write access; log in with" in refusal(zoo.push, made, REPO, token=token)
    assert hub.requests == []
    assert "does not accept the token (401)" in refusal(zoo.push, made, REPO, token="hf_wrong")
    assert "it needs write access" in refusal(zoo.push, made, REPO, token=hub.read_token)
    zoo.push(made, REPO, token=hub.token)
    changed = zoo.pull(REPO, out=hub.home / "own")
    changed.add_evaluation({"protocol": "knn", "data": "d", "split": "test", "metrics": {"accuracy": 1.0}})
    assert "403" in refusal(zoo.push, changed, REPO, token=hub.read_token)
    assert len(hub.commits(REPO)) == 2
    assert "no token is stored" in refusal(zoo.load, f"hf-hub:{REPO}", token=True)


def test_a_namespace_without_rights_is_403(made, hub):
    hub.store.foreign.add("alice")
    assert "403" in refusal(zoo.push, made, REPO, token=hub.token)
    assert REPO not in hub.store.repos


def test_without_a_network_it_is_said_where_the_hub_was_looked_for(made, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    message = refusal(zoo.load, REPO)
    assert (
        "cannot be reached at http://127.0.0.1:9; is there a network; it is not in the local cache either"
        in message
    )
    assert "cannot be reached" in refusal(zoo.push, made, REPO, token=hub.token)


@pytest.mark.usefixtures("no_network")
def test_a_host_without_an_address_is_told_at_once(hub, made, monkeypatch):
    said = f"cannot be reached at {constants.ENDPOINT}; is there a network"
    with pytest.raises(zoo.ZooError) as caught:
        zoo.list_hub("alice")
    assert str(caught.value) == f'Hub namespace "alice": {said}'
    assert said in refusal(zoo.push, made, REPO, token=hub.token)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # then the proxy looks hosts up
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    close_session()  # it reads them when it begins
    with pytest.raises(pytest.fail.Exception, match="the client waits"):
        zoo.list_hub("alice")


@pytest.fixture
def factory():
    """Set what makes the client, as a user does; at the end it is made as before."""
    before = _http._GLOBAL_CLIENT_FACTORY
    yield set_client_factory
    set_client_factory(before)


def test_a_users_client_whose_proxy_looks_hosts_up_is_asked(hub, factory, monkeypatch):
    def made_by_user():
        transport = hub_client._transport
        hooks = {"request": [lambda request: asked.append(request.url.host)]}
        return transport.Client(proxy="http://127.0.0.1:9", event_hooks=hooks, follow_redirects=True)

    asked: list[str] = []
    factory(made_by_user)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.corporation.invalid")
    with pytest.raises(zoo.ZooError, match="cannot be reached"):
        zoo.list_hub("alice")
    assert asked[0] == "hub.corporation.invalid"  # its own hook is there too
    assert len(asked) > 1  # so the proxy was asked, and again: a host without an address is asked for once


def test_no_request_waits_for_ever_after_the_client_was_made_anew(factory):
    def made_by_user():
        return hub_client._transport.Client(timeout=None)

    def limit() -> float | None:
        request = get_session().build_request("POST", "http://127.0.0.1:9/")
        for hook in get_session().event_hooks["request"]:
            hook(request)
        return request.extensions["timeout"]["read"]

    for make in (_http.default_client_factory, made_by_user):
        factory(make)
        with hub_client.talking("x", {}, zoo.ZooError), hub_client.talking("x", {}, zoo.ZooError):
            assert limit() == 2.0
            close_session()  # as the client does where a connection fails
            assert limit() == 2.0
        assert limit() is None  # what others ask for is theirs
        close_session()
        with hub_client.talking("x", {}, zoo.ZooError):
            assert limit() == 2.0


def test_offline_a_push_is_refused(made, hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal(zoo.push, made, REPO, token=hub.token)
    assert hub.requests == []


@pytest.mark.parametrize("transport", ["lfs", xet])
def test_a_full_disk_or_a_cache_without_rights_is_one_clear_error(made, hub, tmp_path, transport):
    hub.transport = transport
    zoo.push(made, REPO, token=hub.token)
    (tmp_path / "cache").write_text("a file where the cache should be")
    assert "cache" in refusal(zoo.load, REPO, cache_dir=tmp_path / "cache")
    with pytest.raises(zoo.ZooError, match="cannot be written"):
        zoo.pull(REPO, out=tmp_path / "cache" / "out")


XET_FAULTS = {
    "token of the storage": (
        "GET /api/models/.*/xet-write-token",
        {"status": 500},
        "the Hub has trouble (500 of the storage)",
    ),
    "an upload refused": ("POST /cas/", {"status": 403}, "the token may not do this (403 of the storage)"),
    "an upload cut": ("POST /cas/", {"cut_after": 100}, "the connection was cut"),
}


@pytest.mark.skipif(find_spec("lz4") is None, reason="the test server's Xet needs lz4")
@pytest.mark.parametrize("what", XET_FAULTS)
def test_failures_of_xet_are_one_clear_error_too(made, hub, what):
    hub.transport = "xet"
    match, fault, message = XET_FAULTS[what]
    hub.fault(match, times=100, **fault)
    assert message in refusal(zoo.push, made, REPO, token=hub.token)
    assert hub.tags(REPO) == {}
    hub.mend()
    assert zoo.push(made, REPO, token=hub.token).endswith("/tree/v1")
    assert zoo.load(REPO).num_features == 64


def test_the_commands_print_one_line_and_no_traceback(made, hub):
    hub.create(REPO, contents(made.path))
    hub.fault(WEIGHTS, times=100, status=403)
    for arguments in (["pull", REPO], ["push", str(made.path), REPO]):
        done = warm.zoo(*arguments)
        assert done.returncode == 1, (arguments, done.stdout)
        *progress, error = done.stderr.splitlines()
        assert error.startswith("zoo: Hub repository"), done.stderr
        assert all(line.startswith("fetching ") for line in progress), done.stderr
