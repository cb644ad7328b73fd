"""The command line: parse, call, print. Each command imports what it needs, so that light ones stay light."""

from __future__ import annotations

import logging
import os
import sys

from zoo.cli import centers as centers  # imported for the commands that they add
from zoo.cli import diagnosis as diagnosis
from zoo.cli import releases as releases
from zoo.cli import sweeping as sweeping
from zoo.cli import tabling as tabling
from zoo.cli import training as training
from zoo.cli.app import app
from zoo.errors import ZooError
from zoo.launch import launched, rank

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error."""
    if not sys.stderr.isatty():  # plain lines in place of the bars of huggingface_hub
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        logging.basicConfig(format="%(message)s")
        logging.getLogger("zoo").setLevel(logging.INFO if rank() == 0 else logging.WARNING)
    if launched() > 1:  # torch tells every rank of a setting of ours, zoo.training.parallel, that is meant
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        app()
    except ZooError as error:
        who = f"zoo, rank {rank()}" if launched() > 1 else "zoo"
        print(f"{who}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("zoo: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
