"""What a person configures once, outside any recipe: the namespace on the Hub that bare names belong to."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zoo.config import MAX_YAML_BYTES, Config, load_yaml, parse
from zoo.errors import RecipeError
from zoo.files import read_text

NAMESPACE_VARIABLE = "ZOO_NAMESPACE"
_NAMESPACE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")


class _Settings(Config):
    namespace: str | None = None


def config_file() -> Path:
    """Return where the configuration file is looked for: `$XDG_CONFIG_HOME/zoo/config.yaml`."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "zoo" / "config.yaml"


def namespace() -> str | None:
    """Return the user or organisation on the Hub in which a bare name is looked up, or None.

    The environment variable `ZOO_NAMESPACE` wins over the key `namespace` of the configuration file; set and
    empty, it means none.

    Raises:
        RecipeError: when the file has an unknown key or is no YAML, or the value can be no name on the Hub.
    """
    where, value = f"the variable {NAMESPACE_VARIABLE}", os.environ.get(NAMESPACE_VARIABLE)
    if value is None:
        file = config_file()
        where, value = f"{file}: namespace", _from_file(file)
    if value and not _NAMESPACE.fullmatch(value):
        raise RecipeError(f'{where}: found "{value}", expected the name of a user or organisation on the Hub')
    return value or None


def _from_file(file: Path) -> str | None:
    try:
        text = read_text(file, MAX_YAML_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read: {error}") from None
    data = load_yaml(text, str(file))
    return parse(_Settings, {} if data is None else data, str(file)).namespace
