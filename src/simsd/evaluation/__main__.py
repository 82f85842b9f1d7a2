"""`python -m simsd.evaluation`: lm-evaluation-harness's own command line, which knows the model `simsd` here.

Releases of lm_eval after 0.4.13 find the model by themselves, and plain `lm_eval --model simsd` does the same.
"""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from simsd.errors import SimsdError

log = logging.getLogger("lm_eval.simsd")


def main() -> None:
    """Runs `lm_eval` with this process's arguments, with the model `simsd` and this package's tasks.

    Mistakes end it with one sentence and exit code 2; LMEVAL_LOG_LEVEL=DEBUG shows where they were found.
    """
    if find_spec("lm_eval") is None:
        sys.exit("simsd: lm-evaluation-harness is not installed; run: pip install 'simsd[eval]'")
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    parser = HarnessCLI()
    arguments = parser.parse_args()
    import_module("simsd.evaluation.harness")  # registers the model
    try:
        _add_own_tasks(arguments)
        parser.execute(arguments)
    except KeyboardInterrupt:
        _leave("interrupted; lm-evaluation-harness keeps nothing of an unfinished run", 130)
    except SimsdError as error:
        _leave(str(error), 2)
    except Exception as error:  # the harness tells the user's mistakes by exceptions of all kinds
        log.debug("lm-evaluation-harness stopped", exc_info=True)
        _leave(_sentence(error), 2)


def _add_own_tasks(arguments: argparse.Namespace) -> None:
    """This package's task files are found too; a folder of the user's own goes before them."""
    if not hasattr(arguments, "include_path"):  # the help, which has no tasks
        return
    given = arguments.include_path
    if given is None and getattr(arguments, "config", None):
        from lm_eval.config.evaluate_config import EvaluatorConfig

        given = EvaluatorConfig.load_yaml_config(arguments.config).get("include_path")
    own = str(Path(__file__).with_name("tasks"))
    arguments.include_path = [own, *([given] if isinstance(given, str) else given or [])]


def _sentence(error: Exception) -> str:
    said = " ".join(str(error).split())
    _, unknown, names = said.partition("Tasks not found: ")
    if unknown:
        return f"there is no task {names!r}; 'python -m simsd.evaluation ls tasks' lists them"
    return f"lm-evaluation-harness cannot run this ({type(error).__name__}: {said[:300]}); check the arguments"


def _leave(sentence: str, code: int) -> None:
    print(f"simsd: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
