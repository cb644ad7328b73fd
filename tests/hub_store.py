"""What the test Hub keeps: repositories as commits (path -> blob), in memory."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import count
from typing import Any

import yaml

from .hub_cas import Cas
from .hub_http import HubError, Request

MEGABYTE = 1_000_000
ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.png filter=lfs diff=lfs merge=lfs -text\n"
_moments = count()


def is_lfs(path: str, size: int) -> bool:
    """Return whether the Hub keeps such a file outside git; an empty one never is."""
    return size > 0 and (path.endswith((".safetensors", ".png")) or size > 10 * MEGABYTE)


@dataclass(frozen=True)
class Blob:
    """One version of one file."""

    data: bytes = field(repr=False)
    lfs: bool
    xet_hash: str | None = None

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        """What git itself holds: the file, or the text that names an LFS object."""
        if not self.lfs:
            return self.data
        text = (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n"
        )
        return text.encode()

    @cached_property
    def oid(self) -> str:
        """Git's name for the blob (SHA-1)."""
        return hashlib.sha1(b"blob %d\0" % len(self.pointer) + self.pointer).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    files: dict[str, Blob]
    title: str
    message: str
    date: str


@dataclass
class Repo:
    """A repository of a model, or of a data set: then its `id` begins with "datasets/".

    `objects` are the LFS files uploaded to it, committed or not, by SHA-256.
    """

    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.id.removeprefix("datasets/").split("/", maxsplit=1)[0]

    def commit(self, files: dict[str, Blob], title: str, message: str = "", branch: str = "main") -> Commit:
        """Put a commit whose tree is `files` on top of `branch`."""
        moment = next(_moments)  # also makes every commit's name its own, in this process
        parent = self.branches.get(branch)
        date = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=moment)
        tree = "".join(f"{path}\0{blob.oid}\0" for path, blob in sorted(files.items()))
        sha = hashlib.sha1(f"{self.id} {parent} {moment} {title} {tree}".encode()).hexdigest()
        stamp = date.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.commits[sha] = Commit(sha, parent, dict(files), title, message, stamp)
        self.branches[branch] = sha
        return self.commits[sha]

    def at(self, revision: str) -> Commit:
        """Return the commit of a branch, a tag or a (shortened) sha; 404 without one."""
        sha = self.branches.get(revision) or self.tags.get(revision)
        if sha is None and re.fullmatch(r"[0-9a-f]{7,40}", revision):
            sha = next((known for known in self.commits if known.startswith(revision)), None)
        if sha is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[sha]

    def history(self, revision: str) -> list[Commit]:
        """Return the commits up to `revision`, newest first."""
        commits = [self.at(revision)]
        while (parent := commits[-1].parent) is not None:
            commits.append(self.commits[parent])
        return commits


@dataclass
class Store:
    """Everything a test's Hub holds, and who may see it."""

    url: str  # the Hub
    storage_url: str  # the host that signed links point to: another name, so that a client drops its token
    tokens: dict[str, str]  # token -> role ("write" or "read")
    repos: dict[str, Repo] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=lambda: {"foreign"})  # namespaces the tokens have no part in
    page_size: int = 1000
    tells_sizes: bool = True
    part_size: int | None = None  # uploads above it go in parts
    parts: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    cas: Cas = field(default_factory=Cas)

    def role(self, request: Request) -> str | None:
        """Return "write", "read", or None for an anonymous request; 401 for a token that is none."""
        header = request.headers.get("authorization")
        if header is None:
            return None
        if header.removeprefix("Bearer ") not in self.tokens:
            raise HubError(401, "Invalid credentials in Authorization header")
        return self.tokens[header.removeprefix("Bearer ")]

    def sees(self, repo: Repo, role: str | None) -> bool:
        return not repo.private or (role is not None and repo.namespace not in self.foreign)

    def open(self, repo_id: str, request: Request, *, write: bool = False, content: bool = False) -> Repo:
        """Return a repository to somebody who may read it (or `write`; or read a gated one's `content`)."""
        role = self.role(request)
        repo = self.repos.get(repo_id)
        if repo is None or not self.sees(repo, role):
            # The Hub does not tell a private repository from a missing one, and answers 401 to strangers.
            # The client takes a 401 without this code for RepositoryNotFoundError on https:// only.
            status, message = (
                (404, "Repository not found") if role else (401, "Invalid username or password.")
            )
            raise HubError(status, message, "RepoNotFound")
        if write:
            self.check_write(role, repo.namespace)
        if content and repo.gated and (role is None or repo.namespace in self.foreign):
            message = f"Access to model {repo.id} is restricted."
            raise HubError(403 if role else 401, message, "GatedRepo")
        return repo

    def check_write(self, role: str | None, namespace: str) -> None:
        if role is None:
            raise HubError(401, "Invalid username or password.")
        if role != "write":
            raise HubError(403, "Forbidden: you must use a write token to upload to a repository.")
        if namespace in self.foreign:
            raise HubError(
                403, f'You don\'t have the rights to create a model under the namespace "{namespace}"'
            )

    def create(self, repo_id: str, **facts: Any) -> Repo:
        repo = self.repos[repo_id] = Repo(repo_id, **facts)
        return repo


def card_metadata(readme: bytes) -> dict[str, Any] | None:
    """Return the YAML at the top of a README; None without any.

    Raises:
        ValueError: for a block that is not a YAML mapping.
    """
    found = re.match(r"\s*---\s*\n(.*?)\n---\s*(?:\n|$)", readme.decode("utf-8", "replace"), re.DOTALL)
    if not found:
        return None
    try:
        data = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise ValueError(f"invalid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("metadata is not a mapping")
    return data


def card_errors(data: dict[str, Any]) -> list[str]:
    """Return what the Hub's validation finds wrong: types of common keys, and the shape of model-index."""
    problems = [
        f'"{key}" must be a string' for key in ("license", "library_name", "pipeline_tag")
        if not isinstance(data.get(key, ""), str)
    ]  # fmt: skip
    from zoo.release import licenses  # late: importing this comes before huggingface_hub's settings

    license = data.get("license", "other")
    if isinstance(license, str) and license not in licenses.IDENTIFIERS:
        problems.append(f'"license" must be one of [{", ".join(sorted(licenses.IDENTIFIERS))}]')
    if not re.fullmatch(r"[a-z0-9.-]+", str(data.get("license_name", "other"))):
        problems.append('"license_name" must be lower-case letters, digits, "." and "-"')
    if not all(isinstance(tag, str) for tag in data.get("tags") or []):
        problems.append('"tags" must be an array of strings')
    for m, model in enumerate(data.get("model-index") or []):
        if not model.get("name"):
            problems.append(f'"model-index[{m}].name" is required')
        for r, result in enumerate(model.get("results") or []):
            place = f"model-index[{m}].results[{r}]"
            required = {"task": ("type",), "dataset": ("type", "name")}
            problems += [
                f'"{place}.{part}.{key}" is required'
                for part, keys in required.items() for key in keys if not (result.get(part) or {}).get(key)
            ]  # fmt: skip
            metrics = result.get("metrics") or []
            if not metrics or any("type" not in m or "value" not in m for m in metrics):
                problems.append(f'"{place}.metrics" needs "type" and "value"')
    return problems
